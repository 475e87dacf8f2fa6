package main

import (
	"crypto/rand"
	_ "embed"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

//go:embed demo.yaml
var demoPolicy []byte

const (
	demoTenant   = "alice"
	demoLifetime = 24 * time.Hour
)

// demo is what a person needs to try the built-in endpoint.
type demo struct {
	token   string // of demoTenant
	expires time.Time
}

// newDemo returns the built-in policy set and gives cfg the random secret that its token is signed with. Reflection is
// on, so that grpcurl works without proto files.
func newDemo(cfg *config.Config) (*demo, *descriptors.Set, error) {
	set, err := descriptors.Parse([]descriptors.File{{Name: "(built-in)", Data: demoPolicy}}, descriptors.Options{})
	if err != nil {
		return nil, nil, err
	}
	secret := rand.Text() + rand.Text() // 52 characters, 260 bits
	cfg.JWT.Keys = []config.JWTKey{{Algorithm: "HS256", Secret: config.NewSecret(secret)}}
	cfg.GRPC.Reflection = true

	d := &demo{expires: time.Now().Add(demoLifetime).Truncate(time.Second)}
	d.token, err = jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Subject: demoTenant, ExpiresAt: jwt.NewNumericDate(d.expires),
	}).SignedString([]byte(secret))
	return d, set, err
}

// announce says, loudly, what is served and how to try it.
func (d *demo) announce(w io.Writer, grpc, admin net.Addr) error {
	ask := "grpcurl -plaintext -d '%s' " + reachable(grpc) + " %s\n"
	_, err := fmt.Fprintf(w, `
*** DEMO: nothing is configured, so sentinel-rls serves ONE built-in endpoint, "demo" of the domain "demo":
*** 5 requests and 1 more each second for each tenant, counted in the memory of this process, under a random secret
*** that ends with it. Not for production: see sentinel-rls serve --help.

A token of tenant %q that works until %s:

%s

Ask as Envoy's filters do (five pass, the sixth is over the limit):

`+ask+`
`+ask+`
curl http://%s/metrics

`, demoTenant, d.expires.Format(time.RFC3339), d.token,
		`{"attributes":{"context_extensions":{"endpoint_id":"demo"},"request":{"http":{"headers":{"authorization":"Bearer `+d.token+`"}}}}}`,
		"envoy.service.auth.v3.Authorization/Check",
		`{"domain":"demo","descriptors":[{"entries":[{"key":"endpoint_id","value":"demo"},{"key":"tenant","value":"`+demoTenant+`"}]}]}`,
		"envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
		reachable(admin))
	return err
}

// reachable returns the address under which this machine reaches a listener.
func reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
