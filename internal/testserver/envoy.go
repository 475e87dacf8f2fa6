package testserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Envoy is a running Envoy with one worker. Safe for concurrent use.
type Envoy struct {
	*Process
	dir   string
	admin string
	http  http.Client
}

// RunEnvoy starts Envoy on a bootstrap (YAML) and returns once its listeners accept. The bootstrap's admin address is
// replaced by a free port, and listeners may use port 0: see Addr. ctx bounds the start only: the caller ends Envoy
// with Stop. The error wraps ErrMissing when there is no such program, and holds Envoy's complaint when it refuses the
// bootstrap.
func RunEnvoy(ctx context.Context, bootstrap string) (_ *Envoy, err error) {
	path, err := Find("envoy")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "envoy")
	if err != nil {
		return nil, err
	}
	e := &Envoy{dir: dir, http: http.Client{Timeout: 5 * time.Second}}
	defer func() {
		if err != nil {
			e.Stop()
		}
	}()
	file, adminFile := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err = os.WriteFile(file, []byte(bootstrap), 0o600); err != nil {
		return nil, err
	}
	e.Process, err = Exec("envoy", path, []string{
		"--config-path", file,
		"--config-yaml", "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}",
		"--admin-address-path", adminFile,
		"--disable-hot-restart", "--concurrency", "1", "--log-level", "warning",
	}, nil)
	if err != nil {
		return nil, err
	}
	timeout := startTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	err = e.await(timeout, func() bool {
		addr, readErr := os.ReadFile(adminFile)
		if readErr != nil || len(addr) == 0 {
			return ctx.Err() != nil
		}
		e.admin = string(addr)
		body, getErr := e.get("/ready")
		return getErr == nil && strings.HasPrefix(body, "LIVE") || ctx.Err() != nil
	})
	if err != nil {
		return nil, err
	}
	return e, ctx.Err()
}

// Admin returns the host:port of the admin interface.
func (e *Envoy) Admin() string { return e.admin }

// Addr returns the host:port that the named listener of the bootstrap is bound to.
func (e *Envoy) Addr(listener string) (string, error) {
	body, err := e.get("/listeners?format=json")
	if err != nil {
		return "", err
	}
	var answer struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return "", fmt.Errorf("envoy's listeners: %w", err)
	}
	for _, s := range answer.Statuses {
		if s.Name == listener {
			return s.Address.Socket.Address + ":" + strconv.Itoa(s.Address.Socket.Port), nil
		}
	}
	return "", fmt.Errorf("envoy has no listener %q: %s", listener, body)
}

// Stats returns the counters and gauges whose names match an (unanchored) regular expression.
func (e *Envoy) Stats(pattern string) (map[string]uint64, error) {
	body, err := e.get("/stats?filter=" + url.QueryEscape(pattern))
	if err != nil {
		return nil, err
	}
	stats := make(map[string]uint64)
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			continue // a histogram or text
		}
		stats[name] = n
	}
	return stats, nil
}

// Stat returns one counter or gauge; 0 when Envoy does not have it yet.
func (e *Envoy) Stat(name string) (uint64, error) {
	stats, err := e.Stats("^" + strings.ReplaceAll(name, ".", `\.`) + "$")
	return stats[name], err
}

// Stop kills Envoy and removes its directory. Stopping twice is legal.
func (e *Envoy) Stop() {
	if e.Process != nil {
		e.Kill()
	}
	e.http.CloseIdleConnections()
	_ = os.RemoveAll(e.dir)
}

func (e *Envoy) get(path string) (string, error) {
	resp, err := e.http.Get("http://" + e.admin + path)
	if err != nil {
		return "", fmt.Errorf("asking envoy: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return "", fmt.Errorf("asking envoy: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("asking envoy for %s: %s", path, resp.Status)
	}
	return string(body), nil
}
