package story

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Token returns a token that the stack accepts, for a user of a tenant, valid for a day.
func (s *Stack) Token(tenant string) string {
	return signed(tenant, time.Now().Add(24*time.Hour), s.secret)
}

func signed(tenant string, expires time.Time, secret []byte) string {
	claims := jwt.MapClaims{"sub": "alice", "tenant": tenant, "exp": expires.Unix()}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		panic(err) // HMAC over text cannot fail
	}
	return token
}

// Response is an answer that Envoy gave.
type Response struct {
	Status int
	Header http.Header
	Body   string
	Sent   time.Time // when the request was sent
	Came   time.Time // when its answer was complete
}

// Get asks for a path through Envoy. header has name and value in turns; a token, where not empty, goes into Authorization.
func (s *Stack) Get(ctx context.Context, path, token string, header ...string) (*Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		return nil, err
	}
	// As it is: a client may send what a URL parser would mend.
	req.URL.Opaque = "//" + req.URL.Host + path
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	r := &Response{Sent: time.Now()}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	r.Status, r.Header, r.Body, r.Came = resp.StatusCode, resp.Header, string(body), time.Now()
	return r, nil
}

// RetryAfter returns the Retry-After header in seconds; 0 without one.
func (r *Response) RetryAfter() int {
	n, _ := strconv.Atoi(r.Header.Get("Retry-After"))
	return n
}

// Reason returns why sentinel-rls refused; empty when it did not.
func (r *Response) Reason() string { return r.Header.Get("X-Sentinel-Reason") }

// Code returns the code of the error document; empty without one.
func (r *Response) Code() string {
	var document struct {
		Schema string
		Error  struct{ Code string }
	}
	if json.Unmarshal([]byte(r.Body), &document) != nil || document.Schema != "sentinel.error/1" {
		return ""
	}
	return document.Error.Code
}

// Seen returns what the upstream saw of the request; the zero Seen when it never came there.
func (r *Response) Seen() Seen {
	var seen Seen
	_ = json.Unmarshal([]byte(r.Body), &seen)
	return seen
}

// String returns the status and, of a refusal, its reason.
func (r *Response) String() string {
	if reason := r.Reason(); reason != "" {
		return fmt.Sprintf("%d %s", r.Status, reason)
	}
	return strconv.Itoa(r.Status)
}

// fetch asks an operator's interface, on a connection of its own.
func fetch(ctx context.Context, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// tally renders answers in order, equal neighbours together: "3 × 200, 1 × 429 RATE_LIMITED".
func tally(answers []*Response) string {
	var parts []string
	for i := 0; i < len(answers); {
		j := i
		for j < len(answers) && answers[j].String() == answers[i].String() {
			j++
		}
		parts = append(parts, fmt.Sprintf("%d × %s", j-i, answers[i]))
		i = j
	}
	return strings.Join(parts, ", ")
}

// times asks n times, one after the other.
func (s *Stack) times(ctx context.Context, n int, path, token string) ([]*Response, error) {
	answers := make([]*Response, n)
	for i := range answers {
		var err error
		if answers[i], err = s.Get(ctx, path, token); err != nil {
			return nil, err
		}
	}
	return answers, nil
}
