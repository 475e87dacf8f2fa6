package testserver

import "syscall"

// dieWithParent has the kernel kill the child when this process dies, however it dies: a test binary that is killed by
// its timeout leaves no servers behind.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
