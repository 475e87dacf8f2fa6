//go:build unix

package compat

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// SharePort is a net.ListenConfig.Control that lets other processes of the same user listen on the same port
// (SO_REUSEPORT): the kernel spreads new connections over them, so that one can take over from another.
func SharePort(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	if err != nil {
		return err
	}
	return failed
}
