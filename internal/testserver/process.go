// Package testserver runs real servers for tests, demo, benchmarks and drills: Redis, Valkey, Envoy, or any program.
//
// Every server is a child process on loopback (or a unix socket) with a temporary directory of its own. It can be
// frozen, thawed, killed and restarted. Programs come from PATH, or from .tools/bin, which `make tools` fills.
// Start and StartEnvoy belong to a test and end with it; Run, RunEnvoy and Exec return a server that the caller stops.
package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrMissing says that a program is neither on PATH nor in .tools/bin.
var ErrMissing = errors.New("program not found")

// envoyRelease is the Envoy that tests are written against; another one on PATH is passed over.
const envoyRelease = "/1.40."

// Find returns the path of a program: from PATH, else from .tools/bin of the project that the working directory is in.
// Of Envoy only release 1.40 will do. The error wraps ErrMissing.
func Find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil && suitable(name, path) {
		return path, nil
	}
	if root, err := Root(); err == nil {
		if path := filepath.Join(root, ".tools", "bin", name); suitable(name, path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is neither on PATH nor in .tools/bin: run `make tools`", ErrMissing, name)
}

func suitable(name, path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return false
	}
	if name != "envoy" {
		return true
	}
	version, err := exec.Command(path, "--version").Output()
	return err == nil && strings.Contains(string(version), envoyRelease)
}

// Root returns the project's root: the nearest directory at or above the working directory that holds go.mod.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod at or above the working directory")
		}
		dir = parent
	}
}

// Process is a running program. Safe for concurrent use, but that only one goroutine at a time may restart it.
type Process struct {
	name string
	path string
	args []string
	env  []string

	mu   sync.Mutex // protects cmd and exit, which Restart replaces
	cmd  *exec.Cmd
	exit chan struct{} // closed once the program has ended and its output is complete

	log tail
}

// Exec starts a program with args and, added to this process' environment, env ("NAME=value"). name stands in errors.
// The program is killed when this process dies (on Linux).
func Exec(name, path string, args, env []string) (*Process, error) {
	p := &Process{name: name, path: path, args: args, env: env}
	if err := p.Restart(); err != nil {
		return nil, err
	}
	return p, nil
}

// Restart starts the program again with the same arguments, after killing it if it still runs. Log goes on.
func (p *Process) Restart() error {
	p.Kill()
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	cmd.SysProcAttr = dieWithParent()
	// A grandchild that holds the output pipe open must not keep Wait from returning.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	exit := make(chan struct{})
	go func() {
		defer close(exit)
		_ = cmd.Wait() // how it ended is read from cmd.ProcessState
	}()
	p.cmd, p.exit = cmd, exit
	return nil
}

// Kill ends the program at once (SIGKILL), frozen or not, and waits until it is gone. Killing an ended program is legal.
func (p *Process) Kill() {
	cmd, exit := p.current()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill() // it may have ended by itself
	<-exit
}

// Signal sends a signal to the program.
func (p *Process) Signal(s os.Signal) error {
	cmd, _ := p.current()
	if err := cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signalling %s: %w", p.name, err)
	}
	return nil
}

// Freeze stops the program's execution (SIGSTOP): connections stay open, nothing answers.
func (p *Process) Freeze() error { return p.Signal(syscall.SIGSTOP) }

// Thaw continues a frozen program (SIGCONT).
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Done is closed once the program that runs now has ended.
func (p *Process) Done() <-chan struct{} {
	_, exit := p.current()
	return exit
}

// ExitCode returns the exit code once Done is closed; -1 while the program runs or when a signal ended it.
func (p *Process) ExitCode() int {
	cmd, exit := p.current()
	select {
	case <-exit:
		return cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// PID returns the process id of the program.
func (p *Process) PID() int {
	cmd, _ := p.current()
	return cmd.Process.Pid
}

// Log returns the end of what the program printed, over all restarts, at most 64 KiB.
func (p *Process) Log() string { return p.log.String() }

func (p *Process) current() (*exec.Cmd, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.exit
}

// await polls ready every few milliseconds until it is true, the program ends, or timeout passes.
func (p *Process) await(timeout time.Duration, ready func() bool) error {
	deadline := time.Now().Add(timeout)
	for !ready() {
		select {
		case <-p.Done():
			return fmt.Errorf("%s ended with exit code %d before it was ready:\n%s", p.name, p.ExitCode(), p.Log())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %v:\n%s", p.name, timeout, p.Log())
		}
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if len(t.buf) > 2*tailBytes {
		t.buf = bytes.Clone(t.buf[len(t.buf)-tailBytes:])
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-tailBytes):])
}
