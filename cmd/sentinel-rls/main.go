// Command sentinel-rls answers Envoy's rate limit and ext_authz questions over gRPC. docs/cli.md is its manual.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
)

// version is set by the linker (make build); empty: the module's own.
var version string

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitInvalid = 3
	exitFinding = 4
)

// exitMeanings says what the exit codes mean; docs/cli.md is made of it.
var exitMeanings = map[int]string{
	exitOK: "done; for `serve`: stopped as asked",
	exitFailure: "it could not run: an address is in use, a server does not answer, a part of the process ended by itself; " +
		"for `healthcheck`: anything but SERVING",
	exitUsage: "the command line is wrong",
	exitInvalid: "configuration, policies, a secret, or Redis' own configuration is wrong: someone must edit something; for `diff` " +
		"also: a running process would refuse the new policies after the old ones",
	exitFinding: "`diff`: a change loosens or tightens more than `--allow` says",
}

func main() {
	// Whoever reads the log may go away; that must not end the process.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// environment is what a command may use of the world.
type environment struct {
	ctx            context.Context // done: stop
	variables      []string        // as os.Environ
	stdin          io.Reader
	stdout, stderr io.Writer
}

// invalidError is an error that goes away when someone edits a file, a flag or a variable.
type invalidError struct{ error }

func (e invalidError) Unwrap() error { return e.error }

// usageError is an error of the command line that only shows once configuration or policies are read.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// findingError says that a command did its work and found something: diff a change that is not allowed.
type findingError struct{ error }

func (e findingError) Unwrap() error { return e.error }

// run is the program: args without its name, env as os.Environ gives it. It returns the exit code.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	target, err := newCommandLine(stdout).parse(args)
	if help, ok := errors.AsType[helpError](err); ok {
		fmt.Fprint(stdout, string(help))
		return exitOK
	}
	if err != nil {
		complain(stderr, err)
		return exitUsage
	}
	err = target.Run(&environment{ctx: ctx, variables: env, stdin: os.Stdin, stdout: stdout, stderr: stderr})
	if err == nil {
		return exitOK
	}
	complain(stderr, err)
	return exitCode(err)
}

func exitCode(err error) int {
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[invalidError](err); ok {
		return exitInvalid
	}
	if _, ok := errors.AsType[findingError](err); ok {
		return exitFinding
	}
	return exitFailure
}

// complain prints an error, one line for each of the problems that it joins.
func complain(stderr io.Writer, err error) {
	for problem := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(stderr, "sentinel-rls: "+problem)
	}
}

// versionCommand is `sentinel-rls version`.
type versionCommand struct{}

// Run prints one line.
func (versionCommand) Run(env *environment) error {
	b := telemetry.ReadBuild(version)
	_, err := fmt.Fprintf(env.stdout, "sentinel-rls %s (revision %s, %s)\n", b.Version, b.Revision, b.Go)
	return err
}
