package envoy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The names of the headers that the contract fixes. Lower case, as Envoy sends every name.
const (
	headerAuthorization      = "authorization"
	headerCookie             = "cookie"
	headerForwardedFor       = "x-forwarded-for"
	headerContentType        = "content-type"
	headerRetryAfter         = "retry-after"
	headerWWWAuthenticate    = "www-authenticate"
	headerSetCookie          = "set-cookie"
	headerGRPCStatus         = "grpc-status"
	headerRateLimitLimit     = "ratelimit-limit"
	headerRateLimitRemaining = "ratelimit-remaining"
	headerRateLimitReset     = "ratelimit-reset"
	headerEnvoyRateLimited   = "x-envoy-ratelimited"
)

// header returns a header of a RateLimitResponse, which has no append options. Only value is set: Envoy reads a raw_value
// as an empty one. Envoy copies the value without any check, so every caller passes one that is visible ASCII.
func header(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: name, Value: value}
}

var (
	wrappedFalse = wrapperspb.Bool(false)
	wrappedTrue  = wrapperspb.Bool(true)
)

// overwrite returns a header of a CheckResponse that replaces what is there. Envoy honours append in some lists and
// append_action in others, and their defaults contradict each other, so both are set and agree. Among denied headers this
// is also the only pair that Envoy does not drop.
func overwrite(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       header(name, value),
		Append:       wrappedFalse, //lint:ignore SA1019 deprecated, and the only one that Envoy reads in headers to the upstream
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// add returns a header of a CheckResponse that stands beside those of its name.
func add(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       header(name, value),
		Append:       wrappedTrue, //lint:ignore SA1019 as in overwrite
		AppendAction: corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD,
	}
}

// identityValue returns an identity as a header value: visible ASCII as it is, every other byte and % percent-encoded.
// Two identities never share a value, which replacing bytes would allow: an upstream decides by it. A space is encoded
// too, or one at an end would be trimmed away.
func identityValue(s string) string {
	plain := func(c byte) bool { return '!' <= c && c <= '~' && c != '%' }
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// replaceOutside returns s with every character that keep refuses replaced by an underscore.
func replaceOutside(s string, keep func(rune) bool) string {
	return strings.Map(func(r rune) rune {
		if keep(r) {
			return r
		}
		return '_'
	}, s)
}

// label returns the name of a limit as current_limit and bodies show it. Envoy writes it between quotes into
// X-RateLimit-Limit without escaping it.
func label(s string) string {
	return replaceOutside(s, func(r rune) bool { return '!' <= r && r <= '~' && r != '"' && r != '\\' })
}

// printable returns s as a header value that may hold spaces.
func printable(s string) string {
	return replaceOutside(s, func(r rune) bool { return ' ' <= r && r <= '~' })
}

// quoted returns s as a quoted-string (RFC 9110 5.6.4).
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(printable(s)) + `"`
}

// seconds returns d in whole seconds rounded up, for d >= 0. Envoy cuts fractions and shows 0.4 s as "now".
func seconds(d time.Duration) int64 { return ceil(d, time.Second) }

// ceil returns d in whole units rounded up, for d >= 0, without overflow.
func ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// checkHeaderName reports why Envoy or HTTP would not carry a header of ours under that name.
func checkHeaderName(name string) error {
	for _, r := range name {
		if !strings.ContainsRune("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz", r) {
			return fmt.Errorf("header name %q: %q does not belong in a lower-case header name", name, r)
		}
	}
	switch name {
	case "host", "date", "server", "content-length", "connection", "transfer-encoding":
		return fmt.Errorf("header name %q: belongs to Envoy", name)
	}
	return nil
}
