package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sentinel-rls/sentinel-rls/config"
)

// healthcheckCommand is `sentinel-rls healthcheck`.
type healthcheckCommand struct {
	Config  string        `long:"config" value-name:"FILE" description:"The process configuration that the server was started with."`
	GRPC    *string       `long:"grpc" value-name:"ADDR" description:"Where the server listens (grpc.address)."`
	Service string        `long:"service" value-name:"NAME" description:"The gRPC service to ask about, as envoy.service.ratelimit.v3.RateLimitService; without it the server as a whole."`
	Timeout time.Duration `long:"timeout" value-name:"DURATION" default:"2s" description:"How long the answer may take."`
}

// Validate refuses a time in which no answer can come.
func (c *healthcheckCommand) Validate() error {
	if c.Timeout <= 0 {
		return errors.New("--timeout: must be above 0s")
	}
	return nil
}

// Run asks the server for its gRPC health. Any answer but SERVING is an error.
func (c *healthcheckCommand) Run(env *environment) error {
	cfg, _, err := config.Load(c.Config, env.variables, overrides(override("--grpc", "grpc.address", given(c.GRPC)...))...)
	if err != nil {
		return invalidError{err}
	}
	target := dialable(cfg.GRPC.Address)
	ctx, cancel := context.WithTimeout(env.ctx, c.Timeout)
	defer cancel()
	answer, err := askHealth(ctx, target, c.Service)
	if err != nil {
		return fmt.Errorf("%s: %s (is sentinel-rls running there? --grpc names another address)", target, status.Convert(err).Message())
	}
	if answer != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s: %s", target, answer)
	}
	_, err = fmt.Fprintln(env.stdout, answer)
	return err
}

func askHealth(ctx context.Context, target, service string) (healthv1.HealthCheckResponse_ServingStatus, error) {
	// Passed through: the address is one already, and a proxy of the environment must not stand before this machine.
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return healthv1.HealthCheckResponse_UNKNOWN, err
	}
	defer conn.Close()
	resp, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	return resp.GetStatus(), err
}

// dialable returns the address under which this machine reaches what listens on address. No name is looked up for it: an
// image without /etc/hosts knows no localhost.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "" || err == nil && ip.IsUnspecified() && ip.Is4():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}
