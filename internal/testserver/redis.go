package testserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the kind of a store server.
type Kind string

// The kinds.
const (
	Redis  Kind = "redis"
	Valkey Kind = "valkey"
)

// Kinds returns every kind, for tests that run on each.
func Kinds() []Kind { return []Kind{Redis, Valkey} }

const startTimeout = 20 * time.Second

// Option changes how a store server starts.
type Option func(*options)

type options struct {
	args     []string
	port     int
	socket   bool
	password string
	certs    *Certificates
	sentinel string // the configuration file of a sentinel, in a directory that becomes the server's
}

// WithArgs adds command line arguments, "--maxmemory", "1mb" for example. They win over the ones set here.
// The default user must keep the right to PING and INFO, by which the start is told to be complete.
func WithArgs(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

// WithPassword has the default user need this password, of letters and digits. URL carries it.
func WithPassword(password string) Option {
	return func(o *options) { o.password = password }
}

// WithTLS has the server speak TLS only, with these certificates, and ask clients for theirs. Valkey from the package
// index is built without TLS.
func WithTLS(certs Certificates) Option {
	return func(o *options) { o.certs = &certs }
}

// OnPort has the server listen on this loopback port instead of a free one.
func OnPort(port int) Option {
	return func(o *options) { o.port = port }
}

// OnSocket has the server listen on a unix socket instead of a loopback port.
func OnSocket() Option {
	return func(o *options) { o.socket = true }
}

// Server is a running Redis or Valkey without persistence and with the eviction policy noeviction.
// Safe for concurrent use.
type Server struct {
	*Process
	kind    Kind
	version string
	network string
	addr    string
	dir     string

	password string
	tls      *tls.Config // nil: none
}

// Run starts a store server and returns once it answers PING. ctx bounds the start only: the caller ends the server
// with Stop. The error wraps ErrMissing when there is no such program.
func Run(ctx context.Context, kind Kind, opts ...Option) (*Server, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	for {
		s, err := run(ctx, kind, o)
		var taken *portTakenError
		if o.port == 0 && errors.As(err, &taken) && ctx.Err() == nil {
			continue // someone was quicker: another port
		}
		return s, err
	}
}

// portTakenError is a start that failed because another process took the port first.
type portTakenError struct{ cause error }

func (e *portTakenError) Error() string { return e.cause.Error() }
func (e *portTakenError) Unwrap() error { return e.cause }

func run(ctx context.Context, kind Kind, o options) (_ *Server, err error) {
	path, err := Find(string(kind) + "-server")
	if err != nil {
		return nil, err
	}
	version, err := versionOf(ctx, path)
	if err != nil {
		return nil, err
	}
	// Not t.TempDir: a unix socket's path may have no more than about 100 bytes.
	dir, err := os.MkdirTemp("", string(kind))
	if err != nil {
		return nil, err
	}
	s := &Server{kind: kind, version: version, dir: dir, network: "tcp", password: o.password}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	args := []string{
		"--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
		"--maxmemory-policy", "noeviction", "--loglevel", "notice", "--port",
	}
	if o.socket {
		s.network, s.addr = "unix", filepath.Join(dir, "s")
		args = append(args, "0", "--unixsocket", s.addr)
	} else {
		port := o.port
		if port == 0 {
			if port, err = FreePort(); err != nil {
				return nil, err
			}
		}
		s.addr = LoopbackAddr(port)
		if o.certs != nil {
			if s.tls, err = o.certs.Client(); err != nil {
				return nil, err
			}
			args = append(args, "0", "--tls-cert-file", o.certs.Cert, "--tls-key-file", o.certs.Key,
				"--tls-ca-cert-file", o.certs.CA, "--tls-replication", "yes", "--tls-cluster", "yes", "--tls-port")
		}
		args = append(args, strconv.Itoa(port))
	}
	if o.password != "" {
		args = append(args, "--requirepass", o.password)
	}
	if o.sentinel != "" {
		_ = os.RemoveAll(s.dir)
		s.dir = filepath.Dir(o.sentinel)
		args = []string{o.sentinel, "--sentinel", "--port", args[len(args)-1]}
	}
	if s.Process, err = Exec(string(kind), path, slices.Concat(args, o.args), nil); err != nil {
		return nil, err
	}
	if err = s.await(ctx); err != nil {
		if portTaken(s.Log()) {
			err = &portTakenError{err}
		}
		return nil, err
	}
	return s, nil
}

var versionPattern = regexp.MustCompile(`\bv=(\S+)`)

func versionOf(ctx context.Context, path string) (string, error) {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", path, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s prints no version: %q", path, out)
	}
	return string(m[1]), nil
}

func (s *Server) await(ctx context.Context) error {
	timeout := startTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	err := s.Process.await(timeout, func() bool { return s.ready() || ctx.Err() != nil })
	return errors.Join(err, ctx.Err())
}

// ready says whether this very process answers PING: at a port that was taken, another server may answer.
func (s *Server) ready() bool {
	conn, err := net.DialTimeout(s.network, s.addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if s.tls != nil {
		conn = tls.Client(conn, s.tls)
	}
	hello := "PING\r\nINFO server\r\n"
	want := []string{"+PONG"}
	if s.password != "" {
		hello, want = "AUTH "+s.password+"\r\n"+hello, []string{"+OK", "+PONG"}
	}
	if _, err := io.WriteString(conn, hello); err != nil {
		return false
	}
	lines := bufio.NewScanner(conn)
	for _, w := range want {
		if !lines.Scan() || lines.Text() != w {
			return false
		}
	}
	for lines.Scan() {
		if pid, ok := strings.CutPrefix(lines.Text(), "process_id:"); ok {
			return pid == strconv.Itoa(s.PID())
		}
	}
	return false
}

// Restart starts the server again at the same address, after killing it if it still runs, and returns once it answers.
// Without persistence it comes back empty.
func (s *Server) Restart() error {
	if err := s.Process.Restart(); err != nil {
		return err
	}
	return s.await(context.Background())
}

// Stop kills the server and removes its directory. Stopping twice is legal.
func (s *Server) Stop() {
	if s.Process != nil {
		s.Kill()
	}
	_ = os.RemoveAll(s.dir)
}

// Kind returns the kind of the server.
func (s *Server) Kind() Kind { return s.kind }

// Version returns the server's version, "7.0.15" for example.
func (s *Server) Version() string { return s.version }

// Network returns "tcp" or "unix".
func (s *Server) Network() string { return s.network }

// Addr returns "127.0.0.1:port" or the socket's path.
func (s *Server) Addr() string { return s.addr }

// Dir returns the server's working directory, which survives restarts.
func (s *Server) Dir() string { return s.dir }

// TLS returns how a client connects to a server with TLS; nil for one without.
func (s *Server) TLS() *tls.Config { return s.tls }

// URL returns "redis://127.0.0.1:port", "rediss://127.0.0.1:port" or "unix:///path", with the password if there is one.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.addr}
	if s.tls != nil {
		u.Scheme = "rediss"
	}
	if s.network == "unix" {
		u = url.URL{Scheme: "unix", Path: s.addr}
	}
	if s.password != "" {
		u.User = url.UserPassword("", s.password)
	}
	return u.String()
}
