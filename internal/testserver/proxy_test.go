package testserver

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestProxy walks through what a proxy does to a connection.
func TestProxy(t *testing.T) {
	t.Parallel()
	s := Start(t, Redis)
	p, err := NewProxy(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	open := func() *redis.Client {
		return redis.NewClient(&redis.Options{
			Addr: p.Addr(), Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: 500 * time.Millisecond, PoolSize: 1,
		})
	}
	client := open()
	defer client.Close()
	ping := func() (time.Duration, error) {
		start := time.Now()
		err := client.Ping(t.Context()).Err()
		return time.Since(start), err
	}
	if _, err := ping(); err != nil {
		t.Fatal(err)
	}

	if n := p.Dials(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}

	p.SetDelay(func() time.Duration { return 50 * time.Millisecond })
	if took, err := ping(); err != nil || took < 50*time.Millisecond {
		t.Errorf("delayed: %v after %v", err, took)
	}
	p.SetDelay(nil)

	p.SetHole(true)
	var timeout net.Error
	if _, err := ping(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("swallowed: %v", err)
	}
	p.SetHole(false)
	if _, err := ping(); err != nil {
		t.Errorf("after it: %v", err)
	}

	if err := client.Set(t.Context(), "k", strings.Repeat("x", 1000), 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.SetCut(500)
	if err := client.Get(t.Context(), "k").Err(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("cut: %v", err)
	}
	p.SetCut(0)

	p.SetPace(100)
	sha, err := client.ScriptLoad(t.Context(), "return 1").Result()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 10 {
		if err := client.EvalSha(t.Context(), sha, []string{"sentinel:v1:a", "sentinel:v1:b"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < 190*time.Millisecond {
		t.Errorf("20 decisions took %v at 100 a second", took)
	}
	p.Close()
	if _, err := ping(); err == nil {
		t.Error("a closed proxy answers")
	}
}
