package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// DefaultProbeKey is the bucket that Probe takes from. No identity hashes to it.
const DefaultProbeKey = "sentinel:v1:{probe}:probe:1"

// The oldest servers that the scripts run on.
const (
	oldestRedis  = "6.2"
	oldestValkey = "7.2"
)

// ConfigFault is a fault in how the server is configured, or in how this process is configured to reach it. Waiting
// does not mend it.
type ConfigFault struct {
	Problem string // what is wrong
	Mend    string // what to do about it
}

// Error returns both parts as one line.
func (f *ConfigFault) Error() string { return f.Problem + ": " + f.Mend }

// Probe asks every server for everything that the store needs: that this user may log in and run the script, that the
// server is new enough, and that it evicts no keys. A configuration fault is a *ConfigFault; any other error wraps one of
// the classes of store failure and says that a server cannot be asked now.
//
// Run asks again now and then. A fault that is found then fails every call until it is mended: keys that are evicted or
// written by another version of the arithmetic would admit in silence what nobody counted.
func (s *Store) Probe(ctx context.Context) error { return s.servers.probe(ctx) }

// probeNode is Probe on one server. key is one that it keeps; empty: its part is left out.
func (s *Store) probeNode(ctx context.Context, n *node, key string) (err error) {
	defer func() { n.heard(err) }()
	if err := s.probeServer(ctx, n); err != nil || key == "" {
		return err
	}
	return s.probeScript(ctx, n, key)
}

func (s *Store) probeServer(ctx context.Context, n *node) error {
	var info [3]string // empty where it may not be read
	cmds := []*redis.Cmd{
		redis.NewCmd(ctx, "info", "server"), redis.NewCmd(ctx, "info", "memory"), redis.NewCmd(ctx, "info", "replication"),
	}
	n.pipeline(ctx, cmds)
	for i, cmd := range cmds {
		var err error
		// The refusal may be of a command that opens the connection: then nothing else will do either.
		if info[i], err = cmd.Text(); err != nil && !(refused(err) && strings.Contains(err.Error(), "info")) {
			return problem(err)
		}
	}
	n.standalone.Store(serverMode(info[0]) == "standalone")
	n.recognise(identity{infoField(info[0], "run_id"), infoField(info[2], "master_replid")})
	if fault := unfitServer(info[0], s.topology); fault != nil {
		return fault
	}
	if fault := s.evicts(info[1]); fault != nil {
		return fault
	}
	return nil
}

// unfitServer reads INFO server; what is not in there cannot be judged.
func unfitServer(info string, want topology) *ConfigFault {
	mode := serverMode(info)
	switch {
	case mode == "sentinel":
		return &ConfigFault{
			"the server is a sentinel", "name it in redis.url as redis+sentinel://host:port/MASTER",
		}
	case mode == "cluster" && want != clustered:
		return &ConfigFault{
			"the server runs in cluster mode", "name it in redis.url as redis+cluster://host:port, or name another server",
		}
	case mode == "standalone" && want == clustered:
		return &ConfigFault{
			"the server does not run in cluster mode", "name it in redis.url as redis://host:port, or name nodes of a cluster",
		}
	}
	name, version, oldest := "Redis", infoField(info, "redis_version"), oldestRedis
	if valkey := infoField(info, "valkey_version"); valkey != "" {
		name, version, oldest = "Valkey", valkey, oldestValkey
	}
	if older(version, oldest) {
		return &ConfigFault{
			fmt.Sprintf("the server is %s %s", name, version),
			fmt.Sprintf("upgrade to Redis %s or Valkey %s at least", oldestRedis, oldestValkey),
		}
	}
	return nil
}

// evicts reads INFO memory.
func (s *Store) evicts(info string) *ConfigFault {
	const mend = "set maxmemory-policy noeviction on the server, or name a server that limits alone use"
	switch policy := infoField(info, "maxmemory_policy"); {
	case policy == "noeviction", policy == "" && s.AssumeNoeviction:
		return nil
	case policy == "":
		return &ConfigFault{
			"the server's eviction policy cannot be read from INFO memory",
			"allow the user +info, or set redis.assume_noeviction: true once maxmemory-policy is known to be noeviction",
		}
	default:
		return &ConfigFault{"the server evicts keys (maxmemory-policy " + policy + "), and with them limits", mend}
	}
}

// probeScript takes one token from the bucket of a key, which needs every command that a call needs.
func (s *Store) probeScript(ctx context.Context, n *node, key string) error {
	rule, err := algorithms.NewTokenBucket(1, algorithms.Rate{Tokens: 1, Seconds: 1})
	if err != nil {
		return err
	}
	// A charge, since it always writes.
	probe := rls.Group{{Key: key, Rule: rule, Op: algorithms.OpCharge, Cost: 1}}
	call := newCall(ctx, 1)
	call.put(0, probe)
	answer := &call.decisions[0]
	command, load := newCommand(answer), loadScript(ctx)
	command.encode(s.encoder)
	n.pipeline(ctx, []*redis.Cmd{load, command.reply})
	command.read()
	if err := cmp.Or(load.Err(), answer.err); err != nil {
		return problem(err)
	}
	return nil
}

// problem is the fault behind err, or err in its class when there is none.
func problem(err error) error {
	if errors.Is(err, errPassword) {
		return &ConfigFault{err.Error(), "put the password into the file that redis.password_file names"}
	}
	if e, ok := errors.AsType[*sentinelError](err); ok {
		if fault := e.fault(); fault != nil {
			return fault
		}
	}
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return classify(err)
	}
	text := reply.Error()
	begins := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(text, p) })
	}
	switch {
	case begins("WRONGPASS", "NOAUTH", "ERR AUTH", "ERR invalid password", "ERR Client sent AUTH"):
		return &ConfigFault{"the server refuses the login: " + text, "check redis.username and redis.password_file"}
	case refused(err):
		return &ConfigFault{
			"the server refuses a command that the store needs: " + text,
			"allow the user +evalsha +script|load +mget +set +time +info, +select for a database other than 0, " +
				"+cluster|slots +asking for a cluster, and its keys",
		}
	case begins("ERR DB index", "ERR invalid DB index"):
		return &ConfigFault{"the server has no such database: " + text, "name another one in redis.url"}
	case begins("DENIED"):
		return &ConfigFault{"the server is in protected mode", "give it a password or a bind address"}
	}
	return classify(err)
}

// refused reports a reply that denies the user a command, in the words of all server versions, or does not know it.
func refused(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return false
	}
	for _, words := range []string{
		"NOPERM", "ACL failure in script", "can't run this command", "unknown command", "Unknown Redis command",
	} {
		if strings.Contains(reply.Error(), words) {
			return true
		}
	}
	return false
}

// serverMode reads INFO server: standalone, cluster or sentinel; empty when it is not in there.
func serverMode(info string) string {
	return cmp.Or(infoField(info, "redis_mode"), infoField(info, "server_mode"))
}

// infoField returns the value of a field of INFO's reply; empty when there is none.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// older compares the first two numbers of a version. One that has none is not older.
func older(version, oldest string) bool {
	major, minor, ok := majorMinor(version)
	wantMajor, wantMinor, _ := majorMinor(oldest)
	return ok && (major < wantMajor || major == wantMajor && minor < wantMinor)
}

func majorMinor(version string) (major, minor int, ok bool) {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, errMajor := strconv.Atoi(a)
	minor, errMinor := strconv.Atoi(b)
	return major, minor, errMajor == nil && errMinor == nil
}

// watchTimeout bounds one Probe of watch, unless the budget is longer.
const watchTimeout = time.Second

// unfitEvery is how soon watch looks again while the configuration is unfit, so that what is mended is soon in use.
const unfitEvery = time.Second

// watch probes the servers until ctx is done: until one has answered as Startup says, and from then on every ProbeEvery, or
// sooner while they are unfit. The error wraps ErrNoServer: none answered for as long as Startup allows.
func (s *Store) watch(ctx context.Context) error {
	if err := s.awaitFirst(ctx); err != nil {
		return err
	}
	for sleep(ctx, s.pause(), nil) {
		_ = s.look(ctx) // what is known of it stays
	}
	return nil
}

// pause is how long it is until the next probe of a server that has answered.
func (s *Store) pause() time.Duration {
	if s.fault.Load() != nil {
		return min(s.ProbeEvery, unfitEvery)
	}
	return s.ProbeEvery
}

// awaitFirst returns once a server has answered a probe, were it with a fault, or a call, or ctx is done.
func (s *Store) awaitFirst(ctx context.Context) error {
	var why error
	began, wait := time.Now(), min(s.Startup.Every, s.Startup.Most)
	for !s.answered() {
		pause := wait
		if s.Startup.Bound > 0 {
			left := s.Startup.Bound - time.Since(began)
			if left <= 0 {
				return s.noServer(why)
			}
			pause = min(pause, left)
		}
		if !sleep(ctx, pause, nil) {
			return nil
		}
		why = s.look(ctx)
		wait = min(2*wait, s.Startup.Most)
	}
	return nil
}

// answered reports whether a server has ever answered.
func (s *Store) answered() bool {
	return s.fault.Load() != nil || slices.ContainsFunc(s.servers.nodes(), func(n *node) bool { return n.answered.Load() })
}

// noServer is what becomes of a start without a server. why is the last probe's error, which does not always name the server.
func (s *Store) noServer(why error) error {
	err := fmt.Errorf("%w, for %v", ErrNoServer, s.Startup.Bound)
	for _, n := range s.servers.nodes() {
		if cause := n.cause(); cause != nil {
			return fmt.Errorf("%w: %s: %w", err, n.addr, cause)
		}
	}
	if why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// look probes the servers and keeps what is unfit about them. The error is that of one that cannot be asked: what is known
// about it stays.
func (s *Store) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(watchTimeout, s.Budget))
	defer cancel()
	err := s.Probe(ctx)
	found, _ := errors.AsType[*ConfigFault](err)
	if err != nil && found == nil {
		return err
	}
	known := s.fault.Swap(found)
	if (known == nil) != (found == nil) || known != nil && *known != *found {
		s.Observer.ConfigFault(found)
	}
	return nil
}
