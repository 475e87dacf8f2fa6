package testserver

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestCluster: a killed master's replica takes over.
func TestCluster(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c := StartCluster(t, kind, QuickFailover())
			if !strings.HasPrefix(c.URL(), "redis+cluster://127.0.0.1:") || strings.Count(c.URL(), ",") != 5 {
				t.Errorf("URL %q", c.URL())
			}
			c.Masters[0].Kill()
			client := c.Replicas[0].Client()
			defer client.Close()
			err := eventually(t.Context(), "the replica", func() error {
				return client.Set(t.Context(), "{06S}", "a key of the first slot", 0).Err()
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSentinelSet: a killed master's replica takes over, and the sentinels say so.
func TestSentinelSet(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := StartSentinelSet(t, kind)
			if !strings.HasSuffix(s.URL(), "/"+MasterName) || strings.Count(s.URL(), ",") != 2 {
				t.Errorf("URL %q", s.URL())
			}
			s.Master.Kill()
			sentinel := redis.NewSentinelClient(s.Sentinels[0].clientOptions())
			defer sentinel.Close()
			err := eventually(t.Context(), "the sentinel", func() error {
				addr, err := sentinel.GetMasterAddrByName(t.Context(), MasterName).Result()
				if err == nil && strings.Join(addr, ":") != s.Replica.Addr() {
					err = errors.New("it names the old master")
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certs, err := MakeCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := Start(t, Redis, WithTLS(certs), WithPassword("secret"))
	if !strings.HasPrefix(s.URL(), "rediss://:secret@") {
		t.Errorf("URL %q", s.URL())
	}
	client := s.Client()
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}
