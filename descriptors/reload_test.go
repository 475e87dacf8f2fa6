package descriptors_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckReload(t *testing.T) {
	t.Parallel()
	const policy = "domain: shop\nendpoints:\n  a:\n    policy_version: 1\n    fail_mode: fail_closed\n    limits:\n"
	const (
		bucketItem = "      - {algorithm: token_bucket, capacity: 10, refill: 1/s}\n"
		windowItem = "      - {algorithm: sliding_window, limit: 10, window: 1m}\n"
		acme       = "    tenants:\n      acme:\n        limits:\n"
	)
	indent := func(item string) string { return "    " + item }
	change := func(text, from, to string) string {
		changed := strings.Replace(text, from, to, 1)
		if changed == text {
			t.Fatalf("%q is not in %s", from, text)
		}
		return changed
	}
	refused := func(place, old string) []string {
		return []string{"new.yaml:" + place + " limit without name has another algorithm or window than the active policies (old.yaml:" + old +
			"); raise policy_version above 1, which starts fresh buckets, or keep algorithm and window"}
	}
	for _, c := range []struct {
		name, old, next string
		want            []string
	}{
		{"nothing changed", policy + bucketItem, policy + bucketItem, nil},
		{"other numbers", policy + bucketItem, change(policy+bucketItem, "capacity: 10, refill: 1/s", "capacity: 5, refill: 0"), nil},
		{"another limit", policy + windowItem, change(policy+windowItem, "limit: 10", "limit: 99"), nil},
		{"another algorithm", policy + bucketItem, policy + windowItem, refused("7: endpoints.a.limits: the tenant", "7")},
		{"another window", policy + windowItem, change(policy+windowItem, "1m", "2m"), refused("7: endpoints.a.limits: the tenant", "7")},
		{"the same window otherwise written", policy + windowItem, change(policy+windowItem, "1m", "60s"), nil},
		{"a raised version", policy + bucketItem, change(policy+windowItem, "version: 1", "version: 2"), nil},
		{"another endpoint", policy + bucketItem, change(policy+windowItem, "a:", "b:"), nil},
		{"another scope", policy + bucketItem, change(policy+windowItem, "{", "{scope: user, "), nil},
		{"another name", policy + bucketItem, change(policy+windowItem, "{", "{name: x, "), nil},
		{"moved below another", policy + bucketItem, policy + "      - {name: x, algorithm: sliding_window, limit: 1, window: 1m}\n" + bucketItem, nil},
		{"moved to another tenant's", policy + bucketItem, change(policy+bucketItem, "shop", "bank"), nil},
		{"a limit less", policy + bucketItem + change(windowItem, "{", "{name: x, "), policy + bucketItem, nil},
		{"limits no more", policy + bucketItem, change(policy, "limits:\n", "limits: unlimited\n"), nil},

		{"a tenant's own algorithm", policy + bucketItem + acme + indent(bucketItem), policy + bucketItem + acme + indent(windowItem), refused("11: endpoints.a.tenants.acme.limits: the tenant", "11")},
		{"a tenant gets another algorithm", policy + bucketItem, policy + bucketItem + acme + indent(windowItem), refused("11: endpoints.a.tenants.acme.limits: the tenant", "7")},
		{"a tenant loses another algorithm", policy + bucketItem + acme + indent(windowItem), policy + bucketItem, refused("7: endpoints.a.limits: the tenant", "11")},
		{"a tenant shares the policy's change once", policy + bucketItem + "    tenants: {acme: {mode: shadow}, zeta: {mode: shadow}}\n", policy + windowItem + "    tenants: {acme: {mode: shadow}}\n", refused("7: endpoints.a.limits: the tenant", "7")},
		{"two changes", policy + bucketItem + change(bucketItem, "{", "{name: x, scope: global, "), policy + windowItem + change(windowItem, "{", "{name: x, scope: global, "), append(
			refused("7: endpoints.a.limits: the tenant", "7"),
			strings.Replace(refused("8: endpoints.a.limits: the global", "8")[0], "limit without name", `limit "x"`, 1))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := parseFiles(t, file("new.yaml", c.next)).CheckReload(parseFiles(t, file("old.yaml", c.old)))
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	if err := parse(t, good).CheckReload(nil); err != nil {
		t.Errorf("the first set: %v", err)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	set := parseFiles(t, file("shop.yaml", shop), file("more.yaml", good))
	var got []string
	for _, f := range set.Summary() {
		got = append(got, f.String())
	}
	want := []string{
		"shop.yaml: domain shop, 4 endpoints, 7 limits\n" +
			"  orders.create: at most 50 + 25/s x T per process in an outage of length T\n" +
			`  orders.create, tenant "42": at most 7 per process in an outage of length T`,
		"more.yaml: domain shop, 1 endpoint, 0 limits",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}
