package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// reply is an error as a server sends it.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// TestClassify: the texts are the servers' own.
func TestClassify(t *testing.T) {
	t.Parallel()
	dial := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	for _, c := range []struct {
		err  error
		want error
	}{
		{context.DeadlineExceeded, rls.ErrTimeout},
		{fmt.Errorf("pipeline: %w", context.DeadlineExceeded), rls.ErrTimeout},
		{os.ErrDeadlineExceeded, rls.ErrTimeout},
		{&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, rls.ErrTimeout},
		{dial(syscall.ETIMEDOUT), rls.ErrTimeout},
		{&net.DNSError{Err: "i/o timeout", IsTimeout: true}, rls.ErrTimeout},

		{dial(syscall.ECONNREFUSED), rls.ErrUnavailable},
		{dial(syscall.ENOENT), rls.ErrUnavailable}, // a unix socket that is not there
		{&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, rls.ErrUnavailable},
		{&net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}, rls.ErrUnavailable},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, rls.ErrUnavailable},
		{io.EOF, rls.ErrUnavailable},
		{io.ErrUnexpectedEOF, rls.ErrUnavailable},
		{net.ErrClosed, rls.ErrUnavailable},
		{context.Canceled, rls.ErrUnavailable},
		{redis.ErrPoolTimeout, rls.ErrUnavailable},
		{redis.ErrPoolExhausted, rls.ErrUnavailable},
		{redis.ErrClosed, rls.ErrUnavailable},

		{reply("LOADING Redis is loading the dataset in memory"), rls.ErrUnavailable},
		{reply("LOADING Valkey is loading the dataset in memory"), rls.ErrUnavailable},
		{reply("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), rls.ErrUnavailable},
		{reply("READONLY You can't write against a read only replica."), rls.ErrUnavailable},
		{reply("READONLY You can't write against a read only replica. script: 5e2b, on @user_script:81."), rls.ErrUnavailable},
		{reply("ERR Error running script (call to f_5e2b): @user_script:81: @user_script: 81: -READONLY You can't write against a read only replica."), rls.ErrUnavailable},
		{reply("CLUSTERDOWN The cluster is down"), rls.ErrUnavailable},
		{reply("CLUSTERDOWN Hash slot not served"), rls.ErrUnavailable},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), rls.ErrUnavailable},
		{reply("NOREPLICAS Not enough good replicas to write."), rls.ErrUnavailable},
		{reply("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."), rls.ErrUnavailable},
		{reply("ERR max number of clients reached"), rls.ErrUnavailable},
		{fmt.Errorf("failed to initialize: %w", reply("LOADING Redis is loading the dataset in memory")), rls.ErrUnavailable},

		{reply("OOM command not allowed when used memory > 'maxmemory'. script: 5e2b, on @user_script:81."), rls.ErrStore},
		{reply("ERR Error running script (call to f_5e2b): @user_script:81: @user_script: 81: -OOM command not allowed when used memory > 'maxmemory'."), rls.ErrStore},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), rls.ErrStore},
		{reply("WRONGPASS invalid username-password pair or user is disabled."), rls.ErrStore},
		{reply("NOAUTH Authentication required."), rls.ErrStore},
		{reply("NOSCRIPT No matching script. Please use EVAL."), rls.ErrStore},
		{reply("CROSSSLOT Keys in request don't hash to the same slot"), rls.ErrStore},
		{reply("MOVED 3999 127.0.0.1:6381"), rls.ErrStore},
		{reply("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), rls.ErrStore},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value script: 5e2b, on @user_script:1."), rls.ErrStore},
		{reply("ERR sentinel: unknown algorithm"), rls.ErrStore},
		{reply("ERR unknown command 'EVALSHA', with args beginning with: "), rls.ErrStore},
		{reply("ERR LOADING is only a word here"), rls.ErrStore},
		{reply(""), rls.ErrStore},
		{redis.Nil, rls.ErrStore},
	} {
		got := classify(c.err)
		if !errors.Is(got, c.want) || !errors.Is(got, c.err) {
			t.Errorf("%T %v: got %v, want %v", c.err, c.err, got, c.want)
		}
		classes := 0
		for _, class := range []error{rls.ErrTimeout, rls.ErrUnavailable, rls.ErrStore, rls.ErrCircuitOpen} {
			if errors.Is(got, class) {
				classes++
			}
		}
		if classes != 1 {
			t.Errorf("%v is of %d classes", got, classes)
		}
	}
}

// TestRefusedForKeys: the words of servers and proxies that run no script over keys of several slots, or over another's keys.
func TestRefusedForKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err            error
		slots, refused bool
	}{
		{nil, false, false},
		{io.EOF, false, false},
		{reply("CROSSSLOT Keys in request don't hash to the same slot"), true, true},
		{reply("ERR CROSSSLOT Keys in request don't hash to the same slot"), true, true},
		{reply("ERR 'EVALSHA' command keys must in same slot"), true, true},
		{reply("ERR eval/evalsha command keys must be in same slot"), true, true},
		{reply("NOPERM this user has no permissions to access one of the keys used as arguments"), false, true},
		{reply("NOPERM No permissions to access a key"), false, true},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), false, false},
		{reply("NOPERM ACL failure in script: User u has no permissions to run the 'mget' command"), false, false},
		{reply("CLUSTERDOWN Hash slot not served"), false, false},
		{reply("MOVED 1 127.0.0.1:7000"), false, false},
		{reply("READONLY You can't write against a read only replica."), false, false},
	} {
		if slots, refused := refusedForKeys(c.err); slots != c.slots || refused != c.refused {
			t.Errorf("%v: slots %v, refused %v", c.err, slots, refused)
		}
	}
}

func TestOlder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, oldest string
		want            bool
	}{
		{"6.2.0", "6.2", false},
		{"6.2", "6.2", false},
		{"7.0.15", "6.2", false},
		{"10.0.0", "6.2", false},
		{"6.0.16", "6.2", true},
		{"6.1.240", "6.2", true},
		{"5.0.14", "6.2", true},
		{"2.8.4", "6.2", true},
		{"7.2.4", "7.2", false},
		{"8.1.1", "7.2", false},
		{"7.0.0", "7.2", true},
		{"", "6.2", false},
		{"unstable", "6.2", false},
		{"6", "6.2", false},
		{"255.255.255", "6.2", false},
	} {
		if got := older(c.version, c.oldest); got != c.want {
			t.Errorf("%q older than %q: %v", c.version, c.oldest, got)
		}
	}
}

// TestUnfitServer: LUA-20 for the servers that are too old.
func TestUnfitServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		info string
		want string // part of the fault; empty: fit
	}{
		{"# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n", ""},
		{"# Server\r\nredis_version:6.2.14\r\n", ""},
		{"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\nredis_mode:standalone\r\n", ""},
		{"", ""},
		{"# Server\r\nredis_version:6.0.16\r\n", "Redis 6.0.16: upgrade to Redis 6.2 or Valkey 7.2"},
		{"# Server\r\nredis_version:7.2.4\r\nvalkey_version:7.1.0\r\n", "Valkey 7.1.0: upgrade"},
		{"# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\n", "runs in cluster mode"},
		{"# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\nserver_mode:cluster\r\n", "runs in cluster mode"},
		{"# Server\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\n", "is a sentinel: name it in redis.url as redis+sentinel"},
	} {
		fault := unfitServer(c.info, standalone)
		if (fault == nil) != (c.want == "") || fault != nil && !strings.Contains(fault.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.info, fault, c.want)
		}
	}
}

// TestGroupFitsAScript: what Validate lets through can be encoded.
func TestGroupFitsAScript(t *testing.T) {
	t.Parallel()
	if rls.MaxTakes > lua.MaxCalls {
		t.Fatalf("a group may have %d takes, a script call %d", rls.MaxTakes, lua.MaxCalls)
	}
}

// TestProblem: which replies are faults of the configuration, in the words of servers that tests do not run.
func TestProblem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?": "refuses the login",
		"ERR invalid password":                                      "refuses the login",
		"ERR Client sent AUTH, but no password is set":              "refuses the login",
		"ERR unknown command `evalsha`, with args beginning with: ": "refuses a command",
		"ERR Error running script (call to f_5e2b): @user_script:1: @user_script: 1: Unknown Redis command called from Lua script": "refuses a command",
		"ERR The user executing the script can't run this command or subcommand script: 5e2b, on @user_script:78.":                 "refuses a command",
		"ERR ACL failure in script: User u has no permissions to run the 'set' command script: 5e2b, on @user_script:78.":          "refuses a command",
		"ERR invalid DB index": "no such database",
		"DENIED Redis is running in protected mode because protected mode is enabled and no password is set": "protected mode",

		"LOADING Redis is loading the dataset in memory":          "",
		"OOM command not allowed when used memory > 'maxmemory'.": "",
		"ERR something else": "",
	} {
		err := problem(reply(text))
		fault, ok := errors.AsType[*ConfigFault](err)
		if ok != (want != "") || ok && !strings.Contains(fault.Problem, want) {
			t.Errorf("%q: got %v, want a fault with %q", text, err, want)
		}
	}
}
