package containers

import (
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
	"google.golang.org/grpc"
)

const emergencyCapacity = 5

var withRedis = map[string]string{
	"sentinel.yaml": `
policies: [policies.yaml]
redis: {url: "redis://redis:6379", budget: 100ms}
breaker: {quarantine: 1s}
jwt: {keys: [{alg: HS256, secret_file: secret}]}
`,
	"policies.yaml": `
domain: shop
endpoints:
  open:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 5, refill: 0}
    limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]
  closed:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]
  once:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
`,
	"secret": "a secret that signs nothing in this test\n",
}

// What a container's Redis can do to us: freeze, come back, die, and start again at another address without its memory.
// sentinel-rls answers inside the deadline all the while.
func TestRedisFrozenKilledAndRestarted(t *testing.T) {
	t.Parallel()
	docker := engine(t)
	net, err := network.New(t.Context())
	testcontainers.CleanupNetwork(t, net)
	if err != nil {
		t.Fatal(err)
	}
	redis := run(t, imageRedis(),
		network.WithNetwork([]string{"redis"}, net),
		testcontainers.WithCmd("redis-server", "--save", "", "--maxmemory-policy", "noeviction", "--protected-mode", "no"),
		testcontainers.WithWaitStrategy(wait.ForLog("Ready to accept connections").WithStartupTimeout(startTimeout)))
	sentinel := start(t,
		network.WithNetwork(nil, net), mount(write(t, withRedis), "/etc/sentinel-rls"),
		testcontainers.WithCmd("serve", "--config", "/etc/sentinel-rls/sentinel.yaml"))
	conn := dial(t, endpoint(t, sentinel, portGRPC))
	recovered := func() bool { return ask(t, conn, "shop", "closed", "acme").allowed }

	eventually(t, "Redis decides", recovered)
	if first, second := ask(t, conn, "shop", "once", "acme"), ask(t, conn, "shop", "once", "acme"); !first.allowed || second.allowed {
		t.Fatalf("a bucket of one: %+v, then %+v", first, second)
	}

	if _, err := docker.ContainerPause(t.Context(), redis.GetContainerID(), client.ContainerPauseOptions{}); err != nil {
		t.Fatal(err)
	}
	admitted := outage(t, "frozen", conn)
	if _, err := docker.ContainerUnpause(t.Context(), redis.GetContainerID(), client.ContainerUnpauseOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("thawed: Redis decides again after %.2f s", eventually(t, "Redis decides again", recovered).Seconds())
	if a := ask(t, conn, "shop", "once", "acme"); a.allowed {
		t.Error("thawed: the bucket of one is full again")
	}

	if _, err := docker.ContainerKill(t.Context(), redis.GetContainerID(), client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	admitted += outage(t, "killed", conn)
	if admitted > emergencyCapacity {
		t.Errorf("both outages admitted %d under an emergency cap of %d that does not refill", admitted, emergencyCapacity)
	}
	if admitted == 0 {
		t.Error("both outages admitted nobody: the emergency cap was not used")
	}
	if _, err := docker.ContainerStart(t.Context(), redis.GetContainerID(), client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("restarted: Redis decides again after %.2f s", eventually(t, "Redis decides again", recovered).Seconds())
	if a := ask(t, conn, "shop", "once", "acme"); !a.allowed {
		t.Errorf("restarted: %+v of a bucket that Redis has forgotten", a)
	}
}

// outage asks while Redis cannot answer, and returns how many of the fail-open calls were admitted. It waits for the first
// refusal: a pipeline that was on its way may still succeed.
func outage(t *testing.T, name string, conn *grpc.ClientConn) (admitted int) {
	t.Helper()
	eventually(t, name+": fail_closed refuses", func() bool { return !ask(t, conn, "shop", "closed", "acme").allowed })
	var longest time.Duration
	for range 20 {
		closed, open := ask(t, conn, "shop", "closed", "acme"), ask(t, conn, "shop", "open", "acme")
		if closed.allowed || closed.reason != "FAIL_CLOSED" && closed.reason != "CIRCUIT_OPEN" {
			t.Errorf("%s: fail_closed answered %+v", name, closed)
		}
		switch {
		case open.allowed:
			admitted++
		case open.reason != "EMERGENCY_LOCAL_LIMIT":
			t.Errorf("%s: fail_open answered %+v", name, open)
		}
		longest = max(longest, closed.took, open.took)
	}
	t.Logf("%s: 40 calls answered, the slowest after %.0f ms; fail_open admitted %d of 20", name, longest.Seconds()*1000, admitted)
	return admitted
}
