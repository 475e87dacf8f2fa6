// Package dropin holds the scenarios that were observed on envoyproxy/ratelimit. Its tests play them against the engine and
// its gRPC service, over every kind of store.
package dropin

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Scenario is one entry of scenarios.yaml: requests, one after the other, and their answers.
type Scenario struct {
	Name    string
	Profile []string // environments of the service that it is for; none: the default one
	Steps   []Step
}

// Step is one request.
type Step struct {
	Domain      string
	Hits        uint32
	Descriptors [][][2]string `yaml:"d"` // of each, keys and values; $U is a word of the run's own
	OwnHits     []*uint64     `yaml:"dh"`
	Limits      [][2]string   `yaml:"lim"` // requests per unit, and the unit
	Repeat      int           // how often it is made; 0: once
	Want        Want          // of each
}

// Want is an answer, or the error that is the answer.
type Want struct {
	GRPC    string `yaml:"grpc"`
	Message string `yaml:"msg"`
	Overall string
	Status  []WantStatus      `yaml:"st"`
	Headers map[string]string `yaml:"hdr"`
}

// WantStatus is one descriptor's part of an answer.
type WantStatus struct {
	Code      string
	PerUnit   *uint32 `yaml:"rpu"`
	Unit      string
	Remaining string `yaml:"rem"` // any: whatever it is
	Name      string
}

// Folder returns the folder beside the project that holds scenarios.yaml and config, the files that they are about. Without
// it the test is skipped, or fails where CI=true.
func Folder(t testing.TB) string {
	t.Helper()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "..", "shared", "conformance")
	if _, err := os.Stat(dir); err != nil {
		testserver.SkipUnlessCI(t, "no scenarios beside the project: %v", err)
	}
	return dir
}

// Scenarios returns those of a profile, of which there must be some.
func Scenarios(t testing.TB, profile string) []Scenario {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Folder(t), "scenarios.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []Scenario
	if err := yaml.Load(text, &all); err != nil {
		t.Fatal(err)
	}
	of := slices.DeleteFunc(all, func(s Scenario) bool {
		if len(s.Profile) == 0 {
			return profile != "default"
		}
		return !slices.Contains(s.Profile, profile)
	})
	if len(of) == 0 {
		t.Fatalf("no scenario of the profile %s", profile)
	}
	return of
}

// Request returns the request, with a word in place of $U.
func (s *Step) Request(unique string) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: s.Domain, HitsAddend: s.Hits}
	for i, entries := range s.Descriptors {
		d := new(ratelimitv3.RateLimitDescriptor)
		for _, e := range entries {
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: e[0], Value: strings.ReplaceAll(e[1], "$U", unique)})
		}
		if i < len(s.OwnHits) && s.OwnHits[i] != nil {
			d.HitsAddend = wrapperspb.UInt64(*s.OwnHits[i])
		}
		if i < len(s.Limits) && s.Limits[i][1] != "" {
			perUnit, _ := strconv.ParseUint(s.Limits[i][0], 10, 32)
			d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: uint32(perUnit), Unit: typev3.RateLimitUnit(typev3.RateLimitUnit_value[s.Limits[i][1]]),
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}
