package identity_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

type addressVectors struct {
	Addresses []struct {
		ID, Address, Why string
		Key              string `json:"expect_key"`
	}
	XFF []struct {
		ID, Peer, Why string
		Headers       []string `json:"xff_headers"`
		Hops          int      `json:"trusted_hops"`
		Client        string   `json:"expect_client"`
	}
}

// caseOfVector names the fault case that a shared vector belongs to, with a space after it; empty: none of its own.
func caseOfVector(id string) string {
	for _, c := range []struct{ name, prefixes string }{
		{"IP-07", "A-v6-zone"},
		{"IP-06", "A-v6"},
		{"IP-09", "A-oct A-hex A-dec A-short"},
		{"IP-10", "A-nat64 A-6to4 A-compat"},
		{"IP-12", "A-unknown A-obf X-garbage X-commas X-trailing X-ows X-v6br"},
		{"IP-15", "A-host A-empty"},
		{"IP-01", "X-spoof"},
		{"IP-02", "X-offbyone X-2"},
		{"IP-03", "X-short X-none X-empty X-0hops"},
		{"IP-11", "X-peer-mapped"},
	} {
		for prefix := range strings.FieldsSeq(c.prefixes) {
			if strings.HasPrefix(id, prefix) {
				return c.name + " "
			}
		}
	}
	return ""
}

// TestSharedAddressVectors runs IP-06, IP-07, IP-09 and IP-10 through each source that reads one address.
func TestSharedAddressVectors(t *testing.T) {
	t.Parallel()
	var file addressVectors
	readCases(t, "ip_vectors.json", &file)
	if len(file.Addresses) < 30 {
		t.Fatalf("%d vectors", len(file.Addresses))
	}
	r := newResolver(t)
	xff := newResolver(t, trusting(1))
	for _, v := range file.Addresses {
		t.Run(caseOfVector(v.ID)+v.ID, func(t *testing.T) {
			header, forwarded := v.Key, v.Key
			if v.Key == "INVALID" {
				header, forwarded = "", "10.0.0.2" // the unknown bucket; the proxy's own address
			}
			if got := r.Anonymous(identity.Credentials{ClientAddress: []string{v.Address}}).Address; got != header {
				t.Errorf("header, %s: got %q, want %q", v.Why, got, header)
			}
			if v.ID != "A-cidr" { // masked_remote_address is a network
				if got, ok := r.Address(v.Address); got != header || ok != (v.Key != "INVALID") {
					t.Errorf("descriptor, %s: got %q, %v; want %q", v.Why, got, ok, header)
				}
			}
			if v.ID != "A-space" { // white space around a list member is no part of it
				c := identity.Credentials{ForwardedFor: []string{v.Address}, Peer: netip.MustParseAddr("10.0.0.2")}
				if got := xff.Anonymous(c).Address; got != forwarded {
					t.Errorf("xff, %s: got %q, want %q", v.Why, got, forwarded)
				}
			}
		})
	}
}

// trusting reads X-Forwarded-For from private peers.
func trusting(hops int) func(*identity.Config) {
	return func(c *identity.Config) {
		c.Address = identity.AddressConfig{
			From: identity.FromForwardedFor, Hops: hops,
			TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::/0")},
		}
	}
}

// TestSharedForwardedForVectors runs IP-01, IP-02, IP-03, IP-11, IP-12 and IP-14.
func TestSharedForwardedForVectors(t *testing.T) {
	t.Parallel()
	var file addressVectors
	readCases(t, "ip_vectors.json", &file)
	if len(file.XFF) < 19 {
		t.Fatalf("%d vectors", len(file.XFF))
	}
	for _, v := range file.XFF {
		t.Run(caseOfVector(v.ID)+v.ID, func(t *testing.T) {
			r := newResolver(t, trusting(v.Hops))
			c := identity.Credentials{ForwardedFor: v.Headers, Peer: netip.MustParseAddr(v.Peer)}
			if got := r.Anonymous(c).Address; got != v.Client {
				t.Errorf("%s: got %q, want %q", v.Why, got, v.Client)
			}
		})
	}
}

func TestForwardedFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		hops    int
		peer    string
		headers []string
		want    string
	}{
		{"lines form one list", 2, "10.0.0.2", []string{"6.6.6.6", "203.0.113.7", "10.0.0.1"}, "203.0.113.7"},
		{"a line may be empty", 1, "10.0.0.2", []string{"203.0.113.7", "", " , "}, "203.0.113.7"},
		{"garbage between the client and the right end", 2, "10.0.0.2", []string{"203.0.113.7, junk"}, "10.0.0.2"},
		{"IPv4 with a port is no address", 1, "10.0.0.2", []string{"203.0.113.7:80"}, "10.0.0.2"},
		{"a mapped address is IPv4", 1, "10.0.0.2", []string{"::ffff:203.0.113.7"}, "203.0.113.7"},
		{"IP-07 a peer with a zone", 1, "fe80::1%eth0", []string{"203.0.113.7"}, "203.0.113.7"},
		{"IP-11 ::/0 does not trust IPv4", 1, "198.51.100.9", []string{"203.0.113.7"}, "198.51.100.9"},
		{"IP-15 no peer", 1, "", []string{"203.0.113.7"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			peer, _ := netip.ParseAddr(tt.peer)
			got := newResolver(t, trusting(tt.hops)).Anonymous(identity.Credentials{ForwardedFor: tt.headers, Peer: peer}).Address
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestIP_01_SpoofedEntriesDoNotMatter: whatever a client writes, the address its proxy saw decides.
func TestIP_01_SpoofedEntriesDoNotMatter(t *testing.T) {
	t.Parallel()
	resolvers := map[int]*identity.Resolver{}
	for hops := 1; hops <= 4; hops++ {
		resolvers[hops] = newResolver(t, trusting(hops))
	}
	rapid.Check(t, func(rt *rapid.T) {
		hops := rapid.IntRange(1, 4).Draw(rt, "hops")
		lines := rapid.SliceOfN(rapid.String(), 0, 3).Draw(rt, "spoofed lines")
		last := rapid.String().Draw(rt, "spoofed start of the last line")
		honest := []string{"203.0.113.7"}
		for i := range hops - 1 {
			honest = append(honest, fmt.Sprintf("10.0.0.%d", i))
		}
		lines = append(lines, last+","+strings.Join(honest, rapid.SampledFrom([]string{",", ", ", " ,\t", ",,"}).Draw(rt, "separator")))
		c := identity.Credentials{ForwardedFor: lines, Peer: netip.MustParseAddr("10.0.0.2")}
		if got := resolvers[hops].Anonymous(c).Address; got != "203.0.113.7" {
			rt.Fatalf("%d hops, %q: got %q", hops, lines, got)
		}
	})
}

func TestIP_06_HostBitsDoNotMatter(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	keys := map[string]bool{}
	for range 1000 {
		host := rand.Uint64()
		text := fmt.Sprintf("2001:db8:1:2:%x:%x:%x:%x", host>>48, host>>32&0xffff, host>>16&0xffff, host&0xffff)
		keys[r.Anonymous(identity.Credentials{ClientAddress: []string{text}}).Address] = true
	}
	if len(keys) != 1 || !keys["2001:db8:1:2::/64"] {
		t.Errorf("keys: %v", keys)
	}
}

func TestIP_14_LongListsAreReadFromTheRight(t *testing.T) {
	c := identity.Credentials{
		ForwardedFor: []string{strings.Repeat("6.6.6.6,", 1<<20) + "203.0.113.7"},
		Peer:         netip.MustParseAddr("10.0.0.2"),
	}
	r := newResolver(t, trusting(1), func(c *identity.Config) { c.Cookie.Secrets = nil })
	best := time.Hour
	for range 20 {
		start := time.Now()
		if got := r.Anonymous(c).Address; got != "203.0.113.7" {
			t.Fatalf("got %q", got)
		}
		best = min(best, time.Since(start))
	}
	if best > time.Millisecond {
		t.Errorf("8 MiB took %v", best)
	}
}

func TestSingleAddressSources(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	everything := identity.Credentials{
		ClientAddress: []string{"203.0.113.1"}, ForwardedFor: []string{"203.0.113.2"}, Peer: addr("203.0.113.3"),
	}
	for _, tt := range []struct {
		name string
		from identity.AddressSource
		c    identity.Credentials
		want string
	}{
		{"header reads only the header", identity.FromHeader, everything, "203.0.113.1"},
		{"peer reads only the peer", identity.FromPeer, everything, "203.0.113.3"},
		{"no header is unknown, not the peer", identity.FromHeader, identity.Credentials{Peer: addr("203.0.113.3")}, ""},
		{"two headers are unknown", identity.FromHeader, identity.Credentials{ClientAddress: []string{"203.0.113.1", "203.0.113.1"}}, ""},
		{"joined headers are unknown", identity.FromHeader, identity.Credentials{ClientAddress: []string{"203.0.113.1,203.0.113.1"}}, ""},
		{"no peer is unknown", identity.FromPeer, identity.Credentials{ClientAddress: []string{"203.0.113.1"}}, ""},
		{"a mapped peer is IPv4", identity.FromPeer, identity.Credentials{Peer: addr("::ffff:203.0.113.3")}, "203.0.113.3"},
		{"a peer's zone is dropped", identity.FromPeer, identity.Credentials{Peer: addr("fe80::1%eth0")}, "fe80::/64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newResolver(t, func(c *identity.Config) { c.Address.From = tt.from })
			if got := r.Anonymous(tt.c).Address; got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestDescriptorAddresses: an entry is an address or, masked by Envoy, a network; one client has one key either way.
func TestDescriptorAddresses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text   string
		prefix int
		want   string // empty: invalid
	}{
		{"203.0.113.7", 64, "203.0.113.7"},
		{"203.0.113.7/32", 64, "203.0.113.7"},
		{"203.0.113.7/24", 64, "203.0.113.0/24"},
		{"0.0.0.0/0", 64, "0.0.0.0/0"},
		{"::ffff:203.0.113.7/128", 64, "203.0.113.7"},
		{"::ffff:203.0.113.7/120", 64, "203.0.113.0/24"},
		{"::ffff:203.0.113.7/64", 64, ""},
		{"2001:db8:1:2::9", 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2::9/128", 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2::/64", 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2::9", 48, "2001:db8:1::/48"},
		{"2001:db8:1:2::/64", 48, "2001:db8:1::/48"},
		{"2001:db8:1::/48", 64, "2001:db8:1::/48"},
		{"2001:db8:1:2::9", 128, "2001:db8:1:2::9/128"},
		{"fe80::1%eth0/64", 64, ""},
		{"203.0.113.7/33", 64, ""},
		{"203.0.113.7/032", 64, ""},
		{"203.0.113.7/", 64, ""},
		{"/", 64, ""},
		{"[2001:db8::1]/64", 64, ""},
		{"[203.0.113.7]", 64, ""},
		{"[2001:db8::1", 64, ""},
		{"::ffff:203.0.113.7%eth0", 64, "203.0.113.7"}, // IP-07: the zone is dropped
		{"fe80::1%eth0,203.0.113.7", 64, ""},
		{strings.Repeat("1", 1<<20), 64, ""},
		{strings.Repeat("1", 1<<20) + "/8", 64, ""},
		{"", 64, ""},
	} {
		r := newResolver(t, func(c *identity.Config) { c.Address.IPv6Prefix = tt.prefix })
		if got, ok := r.Address(tt.text); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%.40q with /%d: got %q, %v; want %q", tt.text, tt.prefix, got, ok, tt.want)
		}
	}
}

func TestPrivatePeersAreToldOnce(t *testing.T) {
	t.Parallel()
	told := make(chan netip.Addr, 100)
	r := newResolver(t, func(c *identity.Config) {
		c.Address = identity.AddressConfig{From: identity.FromPeer, OnPrivatePeer: func(a netip.Addr) { told <- a }}
	})
	peer := func(text string) { r.Anonymous(identity.Credentials{Peer: netip.MustParseAddr(text)}) }
	peer("203.0.113.7")
	if len(told) != 0 {
		t.Fatalf("told of %v, a public address", <-told)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { peer("::ffff:10.0.0.1") })
		wg.Go(func() { peer("10.0.0.1") })
	}
	wg.Wait()
	if n, first := len(told), <-told; n != 1 || first != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("told %d times, first of %v", n, first)
	}
}

// TestClientAddressTable runs the table of who counts as the client, which docs/identity.md shows: each source, each kind of
// peer, and what the client or a proxy wrote.
func TestClientAddressTable(t *testing.T) {
	t.Parallel()
	var rows []struct {
		Row, From, Peer string
		Trusted         []string
		Hops            int
		Header, XFF     []string
		Client          string // the bucket; empty: unknown
	}
	data, err := os.ReadFile("testdata/client_address.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	sources := map[string]identity.AddressSource{
		"header": identity.FromHeader, "peer": identity.FromPeer, "xff": identity.FromForwardedFor,
	}
	manual, err := os.ReadFile("../docs/identity.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		from, ok := sources[row.From]
		if !ok {
			t.Fatalf("%s: source %q", row.Row, row.From)
		}
		cfg := identity.AddressConfig{From: from, Hops: row.Hops}
		for _, network := range row.Trusted {
			cfg.TrustedProxies = append(cfg.TrustedProxies, netip.MustParsePrefix(network))
		}
		r := newResolver(t, func(c *identity.Config) { c.Address = cfg })
		peer, _ := netip.ParseAddr(row.Peer)
		got := r.Anonymous(identity.Credentials{ClientAddress: row.Header, ForwardedFor: row.XFF, Peer: peer}).Address
		if got != row.Client {
			t.Errorf("%s: %q, want %q", row.Row, got, row.Client)
		}
		if !strings.Contains(string(manual), "| "+row.Row+" |") {
			t.Errorf("docs/identity.md has no row %q", row.Row)
		}
	}
	if len(rows) < 12 {
		t.Errorf("%d rows", len(rows))
	}
}
