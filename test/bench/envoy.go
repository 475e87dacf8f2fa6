package main

import (
	"context"
	"fmt"
	"net"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// bootstrap is an Envoy with a listener whose requests the rate limit filter asks a service about, and an upstream in
// itself, which answers at once.
const bootstrap = `
static_resources:
  listeners:
  - name: ingress
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions:
                    - generic_key: {descriptor_key: endpoint_id, descriptor_value: all}
                    - request_headers: {header_name: x-tenant, descriptor_key: tenant}
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: load
              timeout: 1s
              failure_mode_deny: true
              rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: service}}}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  - name: upstream
    address: {socket_address: {address: 127.0.0.1, port_value: %[1]d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: upstream
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: upstream
    type: STATIC
    load_assignment:
      cluster_name: upstream
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[1]d}}}}]}]
  - name: service
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: service
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]s}}}}]}]
`

// throughEnvoy has two entrants: an Envoy that asks the bare server, and one that asks the program.
func (b *bench) throughEnvoy(ctx context.Context, r *Report) error {
	program, _, stop, err := b.start(ctx, load.Settings{Policies: admitAll, Store: b.store})
	if err != nil {
		return err
	}
	defer stop()
	tenants := make([]string, b.size.Tenants)
	for i := range tenants {
		tenants[i] = load.Tenant(uint64(i))
	}
	var entrants []entrant
	var envoys []*testserver.Envoy
	for _, service := range []struct {
		addr   string
		server *testserver.Process
	}{{b.bare.Addr(), b.bare.Process}, {program.Addr(), program.Process}} {
		envoy, url, err := runEnvoy(ctx, service.addr)
		if err != nil {
			return err
		}
		defer envoy.Stop()
		envoys = append(envoys, envoy)
		client := load.NewHTTP(b.size.Callers)
		defer client.Close()
		entrants = append(entrants, entrant{
			server: service.server, ask: client.Get(url, "x-tenant", tenants), means: load.Allowed,
			conns: make(load.Conns, 1), // the client has its own
			also:  []int{envoy.PID()},
		})
	}
	race, err := b.race(ctx, entrants...)
	if err != nil {
		return err
	}
	row := race.row("envoy", "an Envoy with "+bareServer, 0, 1)
	row.Store = race.store(1)
	r.Rows = append(r.Rows, row)
	return asked(envoys)
}

// runEnvoy starts an Envoy that asks the service at addr, and returns where clients go.
func runEnvoy(ctx context.Context, addr string) (envoy *testserver.Envoy, url string, err error) {
	upstream, err := testserver.FreePort()
	if err != nil {
		return nil, "", err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", err
	}
	if envoy, err = testserver.RunEnvoy(ctx, fmt.Sprintf(bootstrap, upstream, port)); err != nil {
		return nil, "", err
	}
	ingress, err := envoy.Addr("ingress")
	if err != nil {
		envoy.Stop()
		return nil, "", err
	}
	return envoy, "http://" + ingress + "/", nil
}

// asked checks that every request of each Envoy was decided by its service: a request that passes without is quick.
func asked(envoys []*testserver.Envoy) error {
	for _, e := range envoys {
		counts, err := e.Stats(`^(cluster\.upstream\.ratelimit\.(ok|error|failure_mode_allowed|over_limit)|http\.ingress\.downstream_rq_total)$`)
		if err != nil {
			return err
		}
		ok, total := counts["cluster.upstream.ratelimit.ok"], counts["http.ingress.downstream_rq_total"]
		if float64(ok) < float64(total)*(1-maxOdd) {
			return fmt.Errorf("of %d requests through Envoy the service admitted %d: %v", total, ok, counts)
		}
	}
	return nil
}
