package envoy

import (
	"net/netip"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// IP-15: whatever kind of address Envoy names as the source, only an IP address is one; nothing is looked up.
func TestIP_15_PeerAddress(t *testing.T) {
	t.Parallel()
	socket := func(address string) *corev3.Address {
		return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 40000},
		}}}
	}
	for name, tt := range map[string]struct {
		address *corev3.Address
		want    string // empty: none
	}{
		"IPv4":         {socket("203.0.113.7"), "203.0.113.7"},
		"IPv6":         {socket("2001:db8::1"), "2001:db8::1"},
		"IPv6 zone":    {socket("fe80::1%eth0"), "fe80::1%eth0"},
		"a name":       {socket("localhost"), ""},
		"empty":        {socket(""), ""},
		"octal":        {socket("010.0.0.1"), ""},
		"port only":    {&corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{}}}, ""},
		"a pipe":       {&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/a.sock"}}}, ""},
		"Envoy itself": {&corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{EnvoyInternalAddress: &corev3.EnvoyInternalAddress{}}}, ""},
		"no address":   {&corev3.Address{}, ""},
		"nothing":      {nil, ""},
	} {
		got := peerAddress(tt.address)
		want, _ := netip.ParseAddr(tt.want)
		if got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
