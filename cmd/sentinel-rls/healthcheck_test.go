package main

import (
	"bytes"
	"net"
	"strings"
	"testing"
)

func healthcheck(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"healthcheck"}, args...), env, &out, &errs)
	return code, out.String(), errs.String()
}

func TestHealthcheckOfARunningServer(t *testing.T) {
	t.Parallel()
	p := serve(t, nil)
	for name, c := range map[string]struct {
		env, args []string
	}{
		"by flag":        {nil, []string{"--grpc", p.grpcAddr}},
		"by environment": {[]string{"SENTINEL_GRPC_ADDRESS=" + p.grpcAddr}, nil},
		"past a proxy":   {[]string{"HTTPS_PROXY=http://127.0.0.1:1", "SENTINEL_GRPC_ADDRESS=" + p.grpcAddr}, nil},
		"one service":    {nil, []string{"--grpc", p.grpcAddr, "--service", "envoy.service.auth.v3.Authorization"}},
	} {
		if code, stdout, stderr := healthcheck(t, c.env, c.args...); code != exitOK || stdout != "SERVING\n" || stderr != "" {
			t.Errorf("%s: exit code %d, %q, %q; want 0 and SERVING", name, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := healthcheck(t, nil, "--grpc", p.grpcAddr, "--service", "nobody"); code != exitFailure || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("an unknown service: exit code %d, %q, %q; want 1 and one line", code, stdout, stderr)
	}
}

func TestHealthcheckSaysWhyNot(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", ephemeral) // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.Listen("tcp", ephemeral)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nobody listens":       {[]string{"--grpc", gone.Addr().String()}, exitFailure, "connection refused"},
		"nobody answers":       {[]string{"--grpc", silent.Addr().String(), "--timeout", "50ms"}, exitFailure, "deadline exceeded"},
		"no address":           {[]string{"--grpc", "nonsense"}, exitInvalid, "--grpc"},
		"no such file":         {[]string{"--config", "missing.yaml"}, exitInvalid, "missing.yaml"},
		"no time to answer":    {[]string{"--timeout", "0s"}, exitUsage, "must be above 0s"},
		"an argument too many": {[]string{"extra"}, exitUsage, "unexpected argument"},
	} {
		code, stdout, stderr := healthcheck(t, nil, c.args...)
		if code != c.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d and one line with %q", name, code, stdout, stderr, c.code, c.want)
		}
	}
}

func TestDialable(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		":8081": "127.0.0.1:8081", "0.0.0.0:8081": "127.0.0.1:8081", "[::]:8081": "[::1]:8081", "10.0.0.7:8081": "10.0.0.7:8081",
		"sentinel:8081": "sentinel:8081", "[2001:db8::1]:1": "[2001:db8::1]:1", "": "",
	} {
		if got := dialable(address); got != want {
			t.Errorf("dialable(%q) = %q, want %q", address, got, want)
		}
	}
}
