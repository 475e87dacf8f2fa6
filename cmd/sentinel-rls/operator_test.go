package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// runCommand runs an operator's command in this process.
func runCommand(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, nil, &out, &errs)
	return code, out.String(), errs.String()
}

// keys returns everything that a Redis holds, by key.
func keys(t *testing.T, url string) map[string]string {
	t.Helper()
	options, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(options)
	defer client.Close()
	all, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]string{}
	for _, key := range all {
		if strings.Contains(key, ":orders:") || strings.Contains(key, ":login:") {
			if held[key], err = client.Get(t.Context(), key).Result(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return held
}

// Support is asked why a tenant is refused: it looks, and spends nothing; then it gives the bucket back.
func TestPeekAndResetOfALiveBucket(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			store := testserver.Start(t, kind)
			dir := shop(t)
			config := filepath.Join(dir, "sentinel.yaml")
			p := serve(t, []string{"SENTINEL_REDIS_BUDGET=5s"}, "--config", config, "--redis", store.URL())
			conn := dial(t, p.grpcAddr)
			bearer := token(t, "acme")
			for range 10 {
				if got := check(t, conn, "orders", bearer); got != http.StatusOK {
					t.Fatalf("Check: %d", got)
				}
			}
			if got := check(t, conn, "orders", token(t, "globex")); got != http.StatusOK {
				t.Fatalf("another tenant: %d", got)
			}
			if got := check(t, conn, "orders", bearer); got != http.StatusTooManyRequests {
				t.Fatalf("the eleventh: %d", got)
			}
			before := keys(t, store.URL())

			// By endpoint and tenant, by descriptor, by token: the same bucket, the same answer.
			tokenFile := filepath.Join(dir, "token")
			if err := os.WriteFile(tokenFile, []byte(bearer+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, question := range [][]string{
				{"--endpoint", "orders", "--tenant", "acme"},
				{"--endpoint", "orders", "--token-file", tokenFile},
				{"--domain", "shop", "endpoint_id=orders", "tenant=acme"},
			} {
				code, stdout, stderr := runCommand(t, append([]string{"explain", "--peek", "--json", "--config", config, "--redis", store.URL()}, question...)...)
				var r report
				if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
					t.Fatalf("%v: exit code %d, %v\n%s%s", question, code, err, stdout, stderr)
				}
				if len(r.Asks) != 1 || len(r.Asks[0].Limits) != 1 {
					t.Fatalf("%v: %s", question, stdout)
				}
				b := r.Asks[0].Limits[0].Bucket
				if b == nil || !b.Used || b.Fits || b.Remaining != 0 || b.RetryAfter != nil || b.FullAfter != nil {
					t.Errorf("%v: the bucket is %+v, want used up and never refilled", question, b)
				}
				if r.Answer == nil || r.Answer.Allowed || r.Answer.Reason != "RATE_LIMITED" || r.Answer.Policy != "orders" || r.Answer.RetryAfter != nil {
					t.Errorf("%v: foresees %+v, want RATE_LIMITED by orders for ever", question, r.Answer)
				}
				if strings.Contains(stdout, bearer) || strings.Contains(stdout, secret) {
					t.Errorf("%v shows a secret:\n%s", question, stdout)
				}
			}
			if after := keys(t, store.URL()); len(after) != len(before) {
				t.Errorf("explaining changed the buckets from %v to %v", before, after)
			} else {
				for key, value := range before {
					if after[key] != value {
						t.Errorf("explaining changed %s from %s to %s", key, value, after[key])
					}
				}
			}
			code, stdout, _ := runCommand(t, "explain", "--peek", "--config", config, "--redis", store.URL(), "--endpoint", "orders", "--tenant", "acme")
			for _, want := range []string{
				"now 0 left, the cost fits never, full again never\n", "answer now: refused with RATE_LIMITED by orders, a retry fits never\n",
			} {
				if code != exitOK || !strings.Contains(stdout, want) {
					t.Errorf("exit code %d, and the text lacks %q:\n%s", code, want, stdout)
				}
			}

			code, stdout, stderr := runCommand(t, "reset", "--config", config, "--redis", store.URL(), "--endpoint", "orders", "--tenant", "acme")
			if code != exitOK || stdout != "1 of 1 buckets were in use, and are reset; running processes deny from memory for up to 1s more\n" {
				t.Fatalf("reset: exit code %d, %q, %q", code, stdout, stderr)
			}
			record, ok := logRecord(stderr, "reset")
			if !ok || record["endpoint_id"] != "orders" || record["scope"] != "tenant" || record["removed"] != 1.0 || record["operator"] == "" {
				t.Errorf("the log of the reset is %v:\n%s", record, stderr)
			}
			if strings.Contains(stderr, "acme") {
				t.Errorf("the log of the reset names the tenant:\n%s", stderr)
			}
			if _, held := keys(t, store.URL())[record["keys"].([]any)[0].(string)]; held {
				t.Error("the bucket is still there")
			}
			if len(keys(t, store.URL())) != len(before)-1 {
				t.Errorf("left are %v, want all of %v but one", keys(t, store.URL()), before)
			}
			admitted := 0
			for range 40 {
				if check(t, conn, "orders", bearer) == http.StatusOK {
					admitted++
				}
				if admitted == 0 {
					waitABit() // the process still denies from memory
				}
			}
			if admitted != 10 {
				t.Errorf("%d admitted after the reset, want 10", admitted)
			}
		})
	}
}

func TestTopShowsWhoIsDenied(t *testing.T) {
	t.Parallel()
	p := serve(t, nil, "--config", filepath.Join(shop(t), "sentinel.yaml"))
	conn := dial(t, p.grpcAddr)
	for tenant, times := range map[string]int{"acme": 17, "globex": 12, "initech": 3} {
		for range times {
			limited(t, conn, "shop", "orders", tenant)
		}
	}
	code, stdout, stderr := runCommand(t, "top", "--admin", p.adminAddr)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		"9 denials since ", "counts are exact to 0",
		"caller at endpoint  ", " orders  7\n", " orders  2\n", "endpoint  ", "\norders    ", "    9\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("top lacks %q:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "acme") {
		t.Errorf("top shows a tenant:\n%s", stdout)
	}
	var shown admin.Policies
	_, stdout, _ = runCommand(t, "top", "--json", "--admin", p.adminAddr)
	if err := json.Unmarshal([]byte(stdout), &shown); err != nil || shown.Denied == nil || shown.Denied.Denials != 9 ||
		len(shown.Denied.Pairs) != 2 || shown.Denied.Pairs[0].AtLeast != 7 || shown.Denied.Pairs[0].AtMost != 7 {
		t.Errorf("%v: %s", err, stdout)
	}
	// It is what /policies shows.
	if _, body := get(t, p.instance, "/policies"); !strings.Contains(body, `"denied":{"since":"`) || !strings.Contains(body, `"denials":9,"error":0`) {
		t.Errorf("/policies shows %s", body)
	}
}

func TestTopSaysWhyNot(t *testing.T) {
	t.Parallel()
	p := serve(t, nil)
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nobody listens":  {[]string{"--admin", "127.0.0.1:1"}, exitFailure, "connection refused"},
		"another server":  {[]string{"--admin", p.grpcAddr}, exitFailure, p.grpcAddr},
		"no address":      {[]string{"--admin", "nonsense"}, exitInvalid, "--admin"},
		"too little time": {[]string{"--admin", p.adminAddr, "--timeout", "1ns"}, exitFailure, "deadline exceeded"},
		"a word too many": {[]string{"extra"}, exitUsage, "unexpected argument"},
	} {
		code, stdout, stderr := runCommand(t, append([]string{"top"}, c.args...)...)
		if code != c.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q, %q; want %d and one line with %q", name, code, stdout, stderr, c.code, c.want)
		}
	}
}

// waitABit gives what expires within a second some time to do so.
func waitABit() { time.Sleep(100 * time.Millisecond) }
