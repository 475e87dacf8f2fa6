package story

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// The demo's endpoints that are limited by tenant, three at once and one every three seconds: by ext_authz, by ratelimit.
const (
	pathOrders = "/v1/orders"
	pathSearch = "/v1/search"

	capacity = 3
	period   = 3 * time.Second
)

// emergencyCap is what the demo's fail-open endpoints admit at most while the store is away (and one more an hour).
const emergencyCap = 3

// Steps returns the story. Each step has tenants of its own, so that it can be played alone; those of the outage follow
// one another.
func Steps() []Step {
	return append([]Step{
		{
			Name:     "missing token",
			Expected: `401 unauthenticated, WWW-Authenticate: Bearer realm="sentinel"`,
			Play: func(ctx context.Context, s *Stack) (string, error) {
				r, err := s.Get(ctx, pathOrders, "")
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%d %s, WWW-Authenticate: %s", r.Status, r.Code(), r.Header.Get("WWW-Authenticate")), nil
			},
		},
		{
			Name:     "forged tokens: wrong secret, no signature, expired, two in one header",
			Expected: "401 unauthenticated, 401 unauthenticated, 401 unauthenticated, 401 unauthenticated",
			Play:     forged,
		},
		{
			Name:     "unknown endpoint: without a token 401, so that strangers learn nothing; with one 404",
			Expected: "401 unauthenticated, 404 not_found",
			Play: func(ctx context.Context, s *Stack) (string, error) {
				stranger, err := s.Get(ctx, "/nowhere", "")
				if err != nil {
					return "", err
				}
				tenant, err := s.Get(ctx, "/nowhere", s.Token("acme"))
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%d %s, %d %s", stranger.Status, stranger.Code(), tenant.Status, tenant.Code()), nil
			},
		},
		{
			Name:     "allowed, with rate limit headers; the upstream learns the tenant",
			Expected: "200, RateLimit-Limit 3, RateLimit-Remaining 2, RateLimit-Reset 3, tenant headers-inc",
			Play: func(ctx context.Context, s *Stack) (string, error) {
				r, err := s.Get(ctx, pathOrders, s.Token("headers-inc"))
				if err != nil {
					return "", err
				}
				h := r.Header
				return fmt.Sprintf("%d, RateLimit-Limit %s, RateLimit-Remaining %s, RateLimit-Reset %s, tenant %s", r.Status,
					h.Get("RateLimit-Limit"), h.Get("RateLimit-Remaining"), h.Get("RateLimit-Reset"), tenants(r)), nil
			},
		},
		{
			Name:     "the fourth request is too many; Retry-After holds: one second before it still 429, at it 200",
			Expected: "3 × 200, 1 × 429 RATE_LIMITED, Retry-After 3, one second before: 429 RATE_LIMITED, at it: 200",
			Play: func(ctx context.Context, s *Stack) (string, error) {
				return s.retryAfterHolds(ctx, pathOrders, "acme")
			},
		},
		{
			Name:     "two tenants apart: one has used up its limit, the other has not",
			Expected: "hungry: 3 × 200, 1 × 429 RATE_LIMITED; calm: 1 × 200",
			Play: func(ctx context.Context, s *Stack) (string, error) {
				return s.apart(ctx, pathOrders, "hungry", "calm")
			},
		},
		{
			Name:     "a limit shared by all: four requests of whoever comes first; what it denies costs a tenant nothing of its own",
			Expected: "north: 2 × 200; south: 2 × 200, 1 × 429 RATE_LIMITED; north: 1 × 429 RATE_LIMITED by reports.read:everyone",
			Play:     shared,
		},
		{
			Name:     "the same through the ratelimit filter: Retry-After holds",
			Expected: "3 × 200, 1 × 429 RATE_LIMITED, Retry-After 3, one second before: 429 RATE_LIMITED, at it: 200",
			Play: func(ctx context.Context, s *Stack) (string, error) {
				return s.retryAfterHolds(ctx, pathSearch, "globex")
			},
		},
		{
			Name:     "the same through the ratelimit filter: tenants apart, and Envoy's headers",
			Expected: "hungry-searcher: 3 × 200, 1 × 429 RATE_LIMITED; calm-searcher: 1 × 200; X-RateLimit-Remaining 2, 0; X-Envoy-Ratelimited true",
			Play: func(ctx context.Context, s *Stack) (string, error) {
				got, err := s.apart(ctx, pathSearch, "hungry-searcher", "calm-searcher")
				if err != nil {
					return "", err
				}
				allowed, err := s.Get(ctx, pathSearch, s.Token("header-searcher"))
				if err != nil {
					return "", err
				}
				denied, err := s.Get(ctx, pathSearch, s.Token("hungry-searcher"))
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%s; X-RateLimit-Remaining %s, %s; X-Envoy-Ratelimited %s", got,
					allowed.Header.Get("X-RateLimit-Remaining"), denied.Header.Get("X-RateLimit-Remaining"),
					denied.Header.Get("X-Envoy-Ratelimited")), nil
			},
		},
		{
			Name:     "a spoofed tenant header has no effect, on the limit or on the upstream, through either filter",
			Expected: "/v1/orders: 3 × 200, 1 × 429 RATE_LIMITED, tenant mallory; /v1/search: 3 × 200, 1 × 429 RATE_LIMITED, tenant mallory",
			Play:     spoofed,
		},
		{
			Name:     "?q=a%ffb, which is no UTF-8, is limited as everything else",
			Expected: "3 × 200, 2 × 429 RATE_LIMITED",
			Play: func(ctx context.Context, s *Stack) (string, error) {
				answers, err := s.times(ctx, capacity+2, pathSearch+"?q=a%ffb", s.Token("latin"))
				return tally(answers), err
			},
		},
	}, outage()...)
}

// outage is what happens while the store is dead, and after.
func outage() []Step {
	return []Step{
		{
			Name:     "Redis is killed; fail-open admits no more than its emergency cap",
			Expected: "3 × 200, 7 × 429 EMERGENCY_LOCAL_LIMIT",
			Outage:   true,
			Play: func(ctx context.Context, s *Stack) (string, error) {
				s.Store.Kill()
				answers, err := s.times(ctx, 10, "/v1/catalog", s.Token("acme"))
				return tally(answers), err
			},
		},
		{
			Name:     "fail-open through the ratelimit filter keeps to its cap too, of which the searches before took their part",
			Expected: "at most 3 of 10 admitted, the others 429 EMERGENCY_LOCAL_LIMIT",
			Outage:   true,
			Holds:    capped,
			Play: func(ctx context.Context, s *Stack) (string, error) {
				answers, err := s.times(ctx, 10, pathSearch, s.Token("acme"))
				return tally(answers), err
			},
		},
		{
			Name:     "fail-closed answers 503, and through the ratelimit filter 429 with the reason",
			Expected: "ext_authz 503 unavailable, ratelimit 429 unavailable",
			Outage:   true,
			Play: func(ctx context.Context, s *Stack) (string, error) {
				authz, err := s.Get(ctx, "/v1/payments", s.Token("acme"))
				if err != nil {
					return "", err
				}
				rls, err := s.Get(ctx, "/v1/exports", s.Token("acme"))
				if err != nil {
					return "", err
				}
				for _, r := range []*Response{authz, rls} {
					if reason := r.Reason(); reason != "FAIL_CLOSED" && reason != "CIRCUIT_OPEN" {
						return fmt.Sprintf("%d with the reason %q", r.Status, reason), nil
					}
				}
				return fmt.Sprintf("ext_authz %d %s, ratelimit %d %s", authz.Status, authz.Code(), rls.Status, rls.Code()), nil
			},
		},
		{
			Name:     "a missing token is still 401",
			Expected: "401 unauthenticated",
			Outage:   true,
			Play: func(ctx context.Context, s *Stack) (string, error) {
				r, err := s.Get(ctx, "/v1/catalog", "")
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%d %s", r.Status, r.Code()), nil
			},
		},
		{
			Name:     "Redis is back: fail-closed answers again, and limits are exact again",
			Expected: "/v1/payments 200, /v1/exports 200; phoenix: 3 × 200, 1 × 429 RATE_LIMITED",
			Outage:   true,
			Play:     recovered,
		},
	}
}

// tenants returns the tenant header that the upstream saw, all its values.
func tenants(r *Response) string { return strings.Join(r.Seen().Header["X-Sentinel-Tenant"], " | ") }

func forged(ctx context.Context, s *Stack) (string, error) {
	hour := time.Now().Add(time.Hour)
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{
		"sub": "alice", "tenant": "acme", "exp": hour.Unix(),
	}).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		return "", err
	}
	var got []string
	for _, token := range []string{
		signed("acme", hour, []byte("another secret of thirty-two bytes")),
		unsigned,
		signed("acme", time.Now().Add(-time.Hour), s.secret),
		s.Token("acme") + ",Bearer " + s.Token("acme"), // as Envoy joins two Authorization headers
	} {
		r, err := s.Get(ctx, pathOrders, token)
		if err != nil {
			return "", err
		}
		got = append(got, fmt.Sprintf("%d %s", r.Status, r.Code()))
	}
	return strings.Join(got, ", "), nil
}

// retryAfterHolds uses up a tenant's bucket and then asks one second before the wait that it was told is over, and when
// it is. A machine that stalls may ask the former too late to tell; then it is tried with another tenant.
func (s *Stack) retryAfterHolds(ctx context.Context, path, tenant string) (string, error) {
	for attempt := 1; ; attempt++ {
		token := s.Token(tenant + strconv.Itoa(attempt))
		answers, err := s.times(ctx, capacity+1, path, token)
		if err != nil {
			return "", err
		}
		denied := answers[capacity]
		wait := time.Duration(denied.RetryAfter()) * time.Second
		if denied.Status != http.StatusTooManyRequests || wait < 2*time.Second || wait > time.Minute {
			return fmt.Sprintf("%s, Retry-After %q", tally(answers), denied.Header.Get("Retry-After")), nil
		}
		if err := sleepUntil(ctx, denied.Sent.Add(wait-time.Second)); err != nil {
			return "", err
		}
		early, err := s.Get(ctx, path, token)
		if err != nil {
			return "", err
		}
		// The first request was answered after it was sent, so until a period after that no token can have come.
		if early.Came.After(answers[0].Sent.Add(period)) && attempt < 5 {
			continue
		}
		if err := sleepUntil(ctx, denied.Came.Add(wait)); err != nil {
			return "", err
		}
		late, err := s.Get(ctx, path, token)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s, Retry-After %d, one second before: %v, at it: %v", tally(answers), denied.RetryAfter(), early, late), nil
	}
}

func sleepUntil(ctx context.Context, t time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(t)):
		return nil
	}
}

func (s *Stack) apart(ctx context.Context, path, hungry, calm string) (string, error) {
	a, err := s.times(ctx, capacity+1, path, s.Token(hungry))
	if err != nil {
		return "", err
	}
	b, err := s.times(ctx, 1, path, s.Token(calm))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s; %s: %s", hungry, tally(a), calm, tally(b)), nil
}

func shared(ctx context.Context, s *Stack) (string, error) {
	north, south := s.Token("north"), s.Token("south")
	first, err := s.times(ctx, 2, "/v1/reports", north)
	if err != nil {
		return "", err
	}
	second, err := s.times(ctx, 3, "/v1/reports", south)
	if err != nil {
		return "", err
	}
	third, err := s.times(ctx, 1, "/v1/reports", north)
	if err != nil {
		return "", err
	}
	by := "?"
	if _, after, ok := strings.Cut(third[0].Body, `"policy":"`); ok {
		by, _, _ = strings.Cut(after, `"`)
	}
	return fmt.Sprintf("north: %s; south: %s; north: %s by %s", tally(first), tally(second), tally(third), by), nil
}

func spoofed(ctx context.Context, s *Stack) (string, error) {
	var parts []string
	for _, path := range []string{pathOrders, pathSearch} {
		var answers []*Response
		for i := range capacity + 1 {
			// Another victim each time: whoever believed the header would never deny.
			victim := "victim-" + strconv.Itoa(i)
			r, err := s.Get(ctx, path, s.Token("mallory"), "x-sentinel-tenant", victim, "X-SENTINEL-TENANT", victim)
			if err != nil {
				return "", err
			}
			answers = append(answers, r)
		}
		parts = append(parts, fmt.Sprintf("%s: %s, tenant %s", path, tally(answers), tenants(answers[0])))
	}
	return strings.Join(parts, "; "), nil
}

// capped says whether of ten requests no more were admitted than the cap, and the others refused for it.
func capped(got string) bool {
	for admitted := range emergencyCap + 1 {
		want := fmt.Sprintf("%d × 200, %d × 429 EMERGENCY_LOCAL_LIMIT", admitted, 10-admitted)
		if got == strings.TrimPrefix(want, "0 × 200, ") {
			return true
		}
	}
	return false
}

func recovered(ctx context.Context, s *Stack) (string, error) {
	if err := s.Store.Restart(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var parts []string
	for _, path := range []string{"/v1/payments", "/v1/exports"} {
		// The breaker tries the store again when its quarantine is over.
		for {
			r, err := s.Get(ctx, path, s.Token("acme"))
			if err != nil {
				return "", errors.Join(errors.New(path+" does not answer"), err)
			}
			if r.Status == http.StatusOK {
				parts = append(parts, path+" 200")
				break
			}
			if err := sleepUntil(ctx, time.Now().Add(50*time.Millisecond)); err != nil {
				return fmt.Sprintf("%s still %v", path, r), nil
			}
		}
	}
	answers, err := s.times(ctx, capacity+1, pathOrders, s.Token("phoenix"))
	if err != nil {
		return "", err
	}
	return strings.Join(parts, ", ") + "; phoenix: " + tally(answers), nil
}
