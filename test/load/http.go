package load

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/grpc"
)

// HTTP is a client of a server behind Envoy, with a connection for each caller. Safe for concurrent use.
type HTTP struct{ client http.Client }

// NewHTTP returns a client for so many callers.
func NewHTTP(callers int) *HTTP {
	return &HTTP{http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}}
}

// Close closes the connections that are not in use.
func (h *HTTP) Close() { h.client.CloseIdleConnections() }

// Get returns an Ask that is a GET of url with a header, whose value is drawn evenly from values, which is not empty. 200 is
// yes, 429 no. The connection that it is given is not used.
func (h *HTTP) Get(url, header string, values []string) Ask {
	return func(ctx context.Context, _ *grpc.ClientConn, i uint64) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return false, err
		}
		request.Header.Set(header, values[scatter(i)%uint64(len(values))])
		answer, err := h.client.Do(request)
		if err != nil {
			return false, err
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return false, err
		}
		switch answer.StatusCode {
		case http.StatusOK:
			return true, nil
		case http.StatusTooManyRequests:
			return false, nil
		}
		return false, fmt.Errorf("GET %s: %s", url, answer.Status)
	}
}
