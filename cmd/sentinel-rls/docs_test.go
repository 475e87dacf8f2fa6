package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jessevdk/go-flags"
	goredis "github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The README's policy is one that loads.
func TestReadmePolicyIsValid(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?s)```yaml\n(domain: .*?)```").FindAllStringSubmatch(document(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("README.md shows no policy")
	}
	for _, block := range blocks {
		if _, err := descriptors.Parse([]descriptors.File{{Name: "README.md", Data: []byte(block[1])}}, descriptors.Options{}); err != nil {
			t.Error(err)
		}
	}
}

// A command line of the program: at the start of a line, or within another command.
var commandLineText = regexp.MustCompile("(?m)(?:^ *|\\(|/)sentinel-rls((?: [^\\s`|>)]+)+)")

// Every command that the pages speak of exists, and has every flag that it is shown with.
func TestCommandsOfTheManualExist(t *testing.T) {
	t.Parallel()
	app := newCommandLine(io.Discard).Command
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, page := range append(pages, "../../README.md", "../../CONTRIBUTING.md") {
		name := strings.TrimPrefix(filepath.ToSlash(page), "../../")
		for _, m := range commandLineText.FindAllStringSubmatch(code(document(t, name)), -1) {
			words := strings.Fields(m[1])
			at := app
			for len(words) > 0 {
				below := at.Find(words[0])
				if below == nil {
					break
				}
				at, words = below, words[1:]
			}
			if at == app && !strings.HasPrefix(words[0], "--") {
				t.Errorf("%s speaks of sentinel-rls%s: there is no such command", name, m[1])
				continue
			}
			seen[at.Name] = true
			for _, word := range words {
				flag, _, _ := strings.Cut(strings.TrimRight(word, ".,;:\"'"), "=")
				if strings.HasPrefix(flag, "--") && !slices.Contains(flagsOf(at), flag) {
					t.Errorf("%s speaks of sentinel-rls%s: %s has no flag %s", name, m[1], at.Name, flag)
				}
			}
		}
	}
	for _, c := range leafCommands(app, "") {
		if !seen[c.Name] {
			t.Errorf("no page shows how %s is used", c.Name)
		}
	}
}

// leafCommand is a command with none below.
type leafCommand struct {
	*flags.Command
	words string // after the program's name
}

// leafCommands returns the commands that can be run, in their order.
func leafCommands(c *flags.Command, words string) (leaves []leafCommand) {
	for _, below := range c.Commands() {
		leaves = append(leaves, leafCommands(below, strings.TrimSpace(words+" "+below.Name))...)
	}
	if leaves == nil {
		return []leafCommand{{c, words}}
	}
	return leaves
}

// code returns what stands in blocks and between backquotes, a line each.
func code(text string) string {
	var b strings.Builder
	block := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```"):
			block = !block
		case block || strings.HasPrefix(line, "    "):
			b.WriteString(line)
		default:
			for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(line, -1) {
				b.WriteString(m[1] + "\n")
			}
		}
	}
	return b.String()
}

// docs/limits.md has the bounds that the code has.
func TestLimitsAreAsDocumented(t *testing.T) {
	t.Parallel()
	page := document(t, "docs/limits.md")
	cfg := config.Default()
	for what, bound := range map[string]any{
		"one gRPC message": size(cfg.GRPC.MaxRecvBytes), "descriptors of a request": cfg.Bounds.Descriptors,
		"entries of a descriptor": cfg.Bounds.Entries, "bytes of an entry's key": cfg.Bounds.KeyBytes, "bytes of an entry's value": cfg.Bounds.ValueBytes,
		"buckets that one request asks for together": rls.MaxTakes, "a bearer token": size(identity.MaxTokenBytes),
		"capacity of a token bucket": algorithms.MaxCapacity, "limit of a window": algorithms.MaxLimit,
		"a native policy file": size(descriptors.MaxFileBytes), "a file of envoyproxy/ratelimit": size(descriptors.MaxDropInFileBytes),
		"limits on one drop-in node": descriptors.MaxNodeLimits, "all policy files together": size(policyfile.MaxTotalBytes),
		"problems reported of one set": maxProblems, "buckets of the memory store": cfg.Memory.MaxBuckets,
		"remembered denials": cfg.DenyCache.MaxBuckets, "age of a remembered denial": "1 s", "verified tokens kept": cfg.JWT.CacheTokens,
		"shares of an emergency cap (`per_key`)": rls.MaxEmergencyShares, "statistics of drop-in rules whose names hold values of requests": rls.DefaultMaxStats,
		"emergency caps of policies that are gone": rls.MaxRetiredCaps, "log lines waiting to be written": logQueueLines, "a JWK set": size(identity.MaxJWKSBytes), "connections to the gRPC port": maxConnections,
		"calls in flight on a connection": cfg.GRPC.MaxConcurrentStreams, "calls waiting for Redis": cfg.Redis.Queue,
		"one round trip to Redis": "20 ms", "a call that comes without a deadline": "200 ms", "connections to Redis": cfg.Redis.Workers,
	} {
		row := regexp.MustCompile("(?m)^\\| " + regexp.QuoteMeta(what) + " \\| ([^|]*)\\|").FindStringSubmatch(page)
		if row == nil {
			t.Errorf("docs/limits.md has no row for %s", what)
			continue
		}
		if !regexp.MustCompile(`(^|\D)` + regexp.QuoteMeta(fmt.Sprint(bound)) + `(\D|$)`).MatchString(row[1]) {
			t.Errorf("docs/limits.md bounds %s by %s; it is %v", what, row[1], bound)
		}
	}
	if cfg.DenyCache.MaxAge != time.Second || cfg.Redis.Budget != 20*time.Millisecond || cfg.Guard.NoDeadline != 200*time.Millisecond {
		t.Error("a default time has changed: docs/limits.md and this test name it")
	}
}

// size writes bytes as the page does.
func size(bytes int) string {
	if bytes%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

// The users of docs/redis-sizing.md may do what the page says, and no more.
func TestRedisUsersOfTheManual(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	options, err := goredis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(options)
	defer client.Close()
	rules := regexp.MustCompile(`(?m)^ACL SETUSER (\w+) .*$`).FindAllStringSubmatch(document(t, "docs/redis-sizing.md"), -1)
	if len(rules) != 2 {
		t.Fatalf("%d users in docs/redis-sizing.md, want 2", len(rules))
	}
	for _, rule := range rules {
		var args []any
		for word := range strings.FieldsSeq(strings.Replace(rule[0], "PASSWORD", "hunter22hunter22", 1)) {
			args = append(args, word)
		}
		if err := client.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", rule[0], err)
		}
	}
	dir := shop(t)
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("hunter22hunter22"), 0o600); err != nil {
		t.Fatal(err)
	}
	configFile := filepath.Join(dir, "sentinel.yaml")
	env := func(user string) []string {
		return []string{"SENTINEL_REDIS_USERNAME=" + user, "SENTINEL_REDIS_PASSWORD_FILE=" + filepath.Join(dir, "password"), "SENTINEL_REDIS_URL=" + server.URL()}
	}
	p := serve(t, env("sentinel"), "--config", configFile)
	if got := check(t, dial(t, p.grpcAddr), "orders", token(t, "acme")); got != http.StatusOK {
		t.Fatalf("Check: %d, want 200\n%s", got, p.log())
	}
	for _, c := range []struct {
		user string
		args []string
		code int
		want string
	}{
		{"sentinel", []string{"explain", "--peek", "--endpoint", "orders", "--tenant", "acme"}, exitOK, "now 9 left"},
		{"sentinel", []string{"reset", "--endpoint", "orders", "--tenant", "acme"}, exitFailure, "no permissions to run the 'unlink' command"},
		{"support", []string{"explain", "--peek", "--endpoint", "orders", "--tenant", "acme"}, exitOK, "now 9 left"},
		{"support", []string{"reset", "--endpoint", "orders", "--tenant", "acme"}, exitOK, "1 of 1 buckets were in use"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append(c.args, "--config", configFile), env(c.user), &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String()+stderr.String(), c.want) {
			t.Errorf("%s %v: exit code %d, want %d and %q:\n%s%s", c.user, c.args, code, c.code, c.want, stdout.String(), stderr.String())
		}
	}
}
