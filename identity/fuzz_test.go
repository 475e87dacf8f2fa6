package identity_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

var wellFormed = regexp.MustCompile(`^(?i:bearer) +([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)$`)

// FuzzAuthorization: whatever is sent, the verifier answers; and what it accepts is one canonical token that, signed
// again by hand with the secret its header names, comes out as it came in.
func FuzzAuthorization(f *testing.F) {
	r := newResolver(f)
	f.Fuzz(func(t *testing.T, value, second string, two bool) {
		c := bearer(value)
		if two {
			c.Authorization = append(c.Authorization, second)
		}
		id, err := r.Tenant(c)
		if err != nil {
			if !errors.Is(err, identity.ErrInvalid) || errors.Is(err, identity.ErrMissing) || id.Tenant != "" {
				t.Fatalf("got %+v, %v; want ErrInvalid", id, err)
			}
			return
		}
		parts := wellFormed.FindStringSubmatch(value)
		if two || parts == nil || id.Tenant == "" || id.Subject == "" || !id.Expires.After(now) {
			t.Fatalf("accepted %q as %+v", value, id)
		}
		header, err1 := base64.RawURLEncoding.DecodeString(parts[1])
		payload, err2 := base64.RawURLEncoding.DecodeString(parts[2])
		var names struct {
			Alg string `json:"alg"`
		}
		if err := errors.Join(err1, err2, json.Unmarshal(header, &names)); err != nil {
			t.Fatalf("accepted %q: %v", value, err)
		}
		secret := map[string]string{"HS256": secret256, "HS384": secret384, "HS512": secret512}[names.Alg]
		if token := strings.Join(parts[1:], "."); secret == "" || sign(string(header), string(payload), secret) != token {
			t.Fatalf("accepted %q, whose signature is not that of %s", value, names.Alg)
		}
	})
}

// FuzzCookie: what is accepted is, signed again by hand, the same value.
func FuzzCookie(f *testing.F) {
	r := newResolver(f)
	f.Fuzz(func(t *testing.T, header, value string) {
		if id := r.Anonymous(cookieHeader(header)); (id.Cookie == "") == (id.SetCookie == "") {
			t.Errorf("%q: got %+v, want either a client id or a new cookie", header, id)
		}
		if got, ok := r.Cookie(value); ok {
			parts := strings.Split(value, ".")
			if len(parts) != 3 || got != parts[0] ||
				value != makeCookie(parts[0], parts[1], cookieKey) && value != makeCookie(parts[0], parts[1], oldCookie) {
				t.Errorf("%q is valid: %q", value, got)
			}
		}
	})
}

// FuzzAddress: a key is its own key, holds what it was made from, and is the same from every source.
func FuzzAddress(f *testing.F) {
	r := newResolver(f, func(c *identity.Config) { c.Cookie.Secrets = nil })
	xff := newResolver(f, trusting(1))
	f.Fuzz(func(t *testing.T, text string) {
		key, ok := r.Address(text)
		if !ok {
			if key != "" {
				t.Errorf("%q: key %q of no address", text, key)
			}
			return
		}
		if again, ok := r.Address(key); !ok || again != key {
			t.Errorf("%q: key %q has the key %q, %v", text, key, again, ok)
		}
		if strings.ContainsAny(key, "%[] ,") {
			t.Errorf("%q: key %q", text, key)
		}
		if strings.Contains(text, "/") {
			return
		}
		addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if err != nil {
			t.Fatalf("%q: key %q of no address: %v", text, key, err)
		}
		addr = addr.Unmap().WithZone("")
		network, err := netip.ParsePrefix(key)
		if addr.Is4() && key != addr.String() || addr.Is6() && (err != nil || !network.Contains(addr) || network.Bits() != 64) {
			t.Errorf("%q: key %q", text, key)
		}
		if got := r.Anonymous(identity.Credentials{ClientAddress: []string{text}}).Address; got != key {
			t.Errorf("%q: key %q from a header, %q from a descriptor", text, got, key)
		}
		c := identity.Credentials{ForwardedFor: []string{"6.6.6.6, " + text}, Peer: netip.MustParseAddr("10.0.0.2")}
		if got := xff.Anonymous(c).Address; got != key {
			t.Errorf("%q: key %q from X-Forwarded-For, %q from a descriptor", text, got, key)
		}
	})
}

// FuzzForwardedFor: the answer is the peer, or an address that stands in the list.
func FuzzForwardedFor(f *testing.F) {
	resolvers := make([]*identity.Resolver, 5)
	for hops := range resolvers {
		resolvers[hops] = newResolver(f, trusting(hops))
	}
	f.Fuzz(func(t *testing.T, first, second string, hops uint8) {
		r := resolvers[int(hops)%len(resolvers)]
		c := identity.Credentials{ForwardedFor: []string{first, second}, Peer: netip.MustParseAddr("10.0.0.2")}
		got := r.Anonymous(c).Address
		if got == "10.0.0.2" {
			return
		}
		for entry := range strings.SplitSeq(first+","+second, ",") {
			if key, ok := r.Address(strings.Trim(entry, " \t")); ok && key == got {
				return
			}
		}
		t.Errorf("%q, %q, %d hops: got %q", first, second, hops, got)
	})
}
