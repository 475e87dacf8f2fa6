package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// What bounds the body of /json, as gRPC's messages are: two bytes of it can take half a kilobyte once they are read.
const (
	maxJSONBytes   = 4 << 20
	maxJSONObjects = 1 << 16
)

// Answerer answers questions that came by another way than gRPC, as envoy.Server does.
type Answerer interface {
	ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error)
}

// Handler returns the routes of the HTTP port: /healthcheck and /json.
func Handler(answerer Answerer, healthy func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if !healthy() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
	mux.HandleFunc("POST /json", func(w http.ResponseWriter, r *http.Request) { answerJSON(w, r, answerer) })
	return mux
}

// answerJSON answers one question in protobuf's JSON: 200, 429 when over limit, and 400 with the error's text on any error.
func answerJSON(w http.ResponseWriter, r *http.Request, answerer Answerer) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			err = fmt.Errorf("the body holds more than %d bytes", maxJSONBytes)
		}
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if bytes.Count(body, []byte("{")) > maxJSONObjects {
		http.Error(w, fmt.Sprintf("the body holds more than %d objects", maxJSONObjects), http.StatusBadRequest)
		return
	}
	var question rlsv3.RateLimitRequest
	if err := protojson.Unmarshal(body, &question); err != nil {
		http.Error(w, "not a RateLimitRequest: "+strings.ToValidUTF8(err.Error(), "\uFFFD"), http.StatusBadRequest)
		return
	}
	answer, err := answerer.ShouldRateLimit(r.Context(), &question)
	if err != nil {
		http.Error(w, status.Convert(err).Message(), http.StatusBadRequest)
		return
	}
	text, err := protojson.Marshal(answer)
	if err != nil {
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch answer.GetOverallCode() {
	case rlsv3.RateLimitResponse_OK:
	case rlsv3.RateLimitResponse_OVER_LIMIT:
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = w.Write(text)
}

// DebugHandler returns the routes of the debug port: a list of them, /rlconfig, /stats, and whatever others answers.
// set returns the active limits; nil: none yet.
func DebugHandler(set func() *descriptors.Set, stats *Stats, others http.Handler, more ...string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		routes := append([]string{
			"/rlconfig: the limits in use", "/stats: statistics", "/debug/pprof/: profiles, from this machine",
			"/metrics, /healthz, /readyz, /policies: see docs/cli.md",
		}, more...)
		_, _ = io.WriteString(w, strings.Join(routes, "\n")+"\n")
	})
	mux.HandleFunc("GET /rlconfig", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if s := set(); s != nil {
			_ = writeLimits(w, s)
		}
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_ = stats.Write(w)
	})
	mux.Handle("/", others)
	return mux
}

// writeLimits writes a line for each limit, in the order of the files.
func writeLimits(w io.Writer, set *descriptors.Set) error {
	for _, r := range set.DropInRules() {
		for _, l := range r.Limits {
			unit := strings.ToUpper(l.Unit.String())
			if unit == "" {
				unit = "UNKNOWN"
			}
			_, err := fmt.Fprintf(w, "%s.%s: unit=%s requests_per_unit=%d, shadow_mode: %t\n",
				r.Domain, strings.Join(r.Levels, "."), unit, l.PerUnit, r.Shadow)
			if err != nil {
				return err
			}
		}
	}
	return nil
}
