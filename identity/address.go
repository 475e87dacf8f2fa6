package identity

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
)

// AddressSource says where the client's address comes from. The zero value is FromHeader.
type AddressSource uint8

// The sources.
const (
	FromHeader       AddressSource = iota // a header that Envoy overwrites: Credentials.ClientAddress
	FromPeer                              // the connection's peer: Credentials.Peer
	FromForwardedFor                      // X-Forwarded-For, where the peer is a trusted proxy
)

// AddressConfig says where the client's address comes from and how much of it counts.
type AddressConfig struct {
	From AddressSource
	// TrustedProxies are the networks whose X-Forwarded-For is believed; required with FromForwardedFor.
	TrustedProxies []netip.Prefix
	// Hops is how many entries at the right of X-Forwarded-For trusted proxies appended, 0 to 16; the client is the
	// leftmost of them. 0: X-Forwarded-For is not read.
	Hops int
	// IPv6Prefix is the length in bits of the network that counts as one client, 1 to 128; 0: 64.
	IPv6Prefix int
	// OnPrivatePeer, if not nil, is called once, when FromPeer first meets a private or loopback address: most likely a
	// proxy stands before Envoy and everyone shares its bucket. It must not block.
	OnPrivatePeer func(netip.Addr)
}

const (
	defaultIPv6Prefix = 64
	maxHops           = 16
	maxAddressBytes   = 128 // of one address as text; a longer one is none
)

// addresses finds the client's address. Safe for concurrent use.
type addresses struct {
	from          AddressSource
	trusted       []netip.Prefix
	hops          int
	ipv6Prefix    int
	onPrivatePeer func(netip.Addr)
	warned        atomic.Bool
}

func newAddresses(cfg AddressConfig) (*addresses, error) {
	a := &addresses{from: cfg.From, hops: cfg.Hops, ipv6Prefix: cfg.IPv6Prefix, onPrivatePeer: cfg.OnPrivatePeer}
	if a.ipv6Prefix == 0 {
		a.ipv6Prefix = defaultIPv6Prefix
	}
	var errs []error
	for _, p := range cfg.TrustedProxies {
		network, ok := unmapNetwork(p)
		if !ok {
			errs = append(errs, fmt.Errorf("trusted proxy %s is not a network", p))
		}
		a.trusted = append(a.trusted, network)
	}
	if a.from > FromForwardedFor {
		errs = append(errs, fmt.Errorf("client address source %d is unknown", a.from))
	}
	if a.from == FromForwardedFor && len(a.trusted) == 0 {
		errs = append(errs, errors.New("X-Forwarded-For without trusted proxies"))
	}
	if a.hops < 0 || a.hops > maxHops {
		errs = append(errs, fmt.Errorf("%d hops; 0 to %d", a.hops, maxHops))
	}
	if a.ipv6Prefix < 1 || a.ipv6Prefix > 128 {
		errs = append(errs, fmt.Errorf("IPv6 prefix %d is not 1 to 128", a.ipv6Prefix))
	}
	return a, errors.Join(errs...)
}

// client returns the key of the client's address; empty when it is unknown.
func (a *addresses) client(c Credentials) string {
	switch a.from {
	case FromPeer:
		return a.peer(c.Peer)
	case FromForwardedFor:
		return a.forwardedFor(c)
	}
	if len(c.ClientAddress) != 1 {
		return ""
	}
	addr, ok := parseAddress(c.ClientAddress[0])
	if !ok {
		return ""
	}
	return a.key(addr)
}

func (a *addresses) peer(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	addr = canonical(addr)
	if a.onPrivatePeer != nil && (addr.IsPrivate() || addr.IsLoopback()) && a.warned.CompareAndSwap(false, true) {
		a.onPrivatePeer(addr)
	}
	return a.key(addr)
}

// forwardedFor returns the address that the trusted proxies vouch for, or else that of the peer.
func (a *addresses) forwardedFor(c Credentials) string {
	if !c.Peer.IsValid() {
		return ""
	}
	addr := canonical(c.Peer)
	if a.trusts(addr) {
		if client, ok := nthFromRight(c.ForwardedFor, a.hops); ok {
			addr = client
		}
	}
	return a.key(addr)
}

func (a *addresses) trusts(addr netip.Addr) bool {
	for _, p := range a.trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// nthFromRight returns the n-th address from the right of X-Forwarded-For, whose header lines form one list. Empty
// members do not count. What stands further left is the client's word and is not looked at; anything unreadable on the
// way means that the list is not what the proxies were thought to write, and there is no answer.
func nthFromRight(headers []string, n int) (addr netip.Addr, ok bool) {
	for i := len(headers) - 1; i >= 0 && n > 0; i-- {
		rest, more := headers[i], true
		for more && n > 0 {
			var entry string
			comma := strings.LastIndexByte(rest, ',')
			if more = comma >= 0; more {
				rest, entry = rest[:comma], rest[comma+1:]
			} else {
				entry = rest
			}
			if entry = strings.Trim(entry, " \t"); entry == "" {
				continue
			}
			if addr, ok = parseAddress(entry); !ok {
				return netip.Addr{}, false
			}
			n--
		}
	}
	return addr, ok && n == 0
}

// parseAddress reads an address, IPv6 also in brackets. Neither names nor ports, and no spelling that other readers
// would take for another address: 010.0.0.1, 0x0a.0.0.1, 10.1.
func parseAddress(text string) (netip.Addr, bool) {
	if len(text) > maxAddressBytes {
		return netip.Addr{}, false
	}
	inner, bracketed := strings.CutPrefix(text, "[")
	if bracketed {
		var closed bool
		if inner, closed = strings.CutSuffix(inner, "]"); !closed {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(inner)
	if err != nil || bracketed && addr.Is4() || addr.Zone() != "" && !zone.MatchString(addr.Zone()) {
		return netip.Addr{}, false
	}
	return canonical(addr), true
}

// zone is what may follow the % of an address. netip takes anything, a comma and a second address too.
var zone = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`)

// canonical is the one form of an address: IPv4 unmapped, zone dropped. Prefix.Contains is false for both otherwise.
func canonical(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// key returns the address key of a canonical address: IPv4 as text, IPv6 as its network.
func (a *addresses) key(addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	return netip.PrefixFrom(addr, a.ipv6Prefix).Masked().String()
}

// networkKey returns the address key of a network in CIDR form. A single IPv4 address is written as such, and IPv6 is
// cut to the configured prefix, so that a client has one key however Envoy was told to write its address.
func (a *addresses) networkKey(text string) (string, bool) {
	if len(text) > maxAddressBytes {
		return "", false
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return "", false
	}
	p, ok := unmapNetwork(p)
	if !ok {
		return "", false
	}
	if p.Addr().Is4() && p.Bits() == 32 {
		return p.Addr().String(), true
	}
	if p.Addr().Is6() && p.Bits() > a.ipv6Prefix {
		p = netip.PrefixFrom(p.Addr(), a.ipv6Prefix)
	}
	return p.Masked().String(), true
}

// unmapNetwork returns a network of IPv4-mapped addresses as one of IPv4. False: p is no network, or holds more than the
// mapped addresses.
func unmapNetwork(p netip.Prefix) (netip.Prefix, bool) {
	if !p.IsValid() {
		return p, false
	}
	if !p.Addr().Is4In6() {
		return p, true
	}
	if p.Bits() < 96 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96), true
}
