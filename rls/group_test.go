package rls

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

func TestGroupValidate(t *testing.T) {
	t.Parallel()
	rule, err := algorithms.NewSlidingWindow(10, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	take := func(key string) Take { return Take{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: 1} }
	many := make(Group, 100)
	for i := range many {
		many[i] = take(fmt.Sprint("key ", i))
	}
	twice := append(Group{take("key 57")}, many...)

	for name, tc := range map[string]struct {
		group Group
		want  string // part of the error; empty: valid
	}{
		"empty":                     {want: "a group of 0 takes"},
		"too many":                  {group: make(Group, MaxTakes+1), want: "a group of 1001 takes"},
		"one":                       {group: Group{take("a")}},
		"distinct":                  {group: Group{take("a"), take("b"), take("aa")}},
		"many":                      {group: many},
		"the same key":              {group: Group{take("a"), take("b"), take("a")}, want: "takes 0 and 2"},
		"the same key among many":   {group: twice, want: "takes 0 and 58"},
		"the same key, another op":  {group: Group{take("a"), {Key: "a", Rule: rule, Op: algorithms.OpPeek, Cost: 1}}, want: "takes 0 and 1"},
		"no operation":              {group: Group{{Key: "a", Rule: rule, Cost: 1}}, want: "take 0 of the group has no operation"},
		"an operation that is none": {group: Group{{Key: "a", Rule: rule, Op: 9, Cost: 1}}, want: "has no operation"},
		"no rule":                   {group: Group{take("b"), {Key: "a", Op: algorithms.OpTake, Cost: 1}}, want: "take 1 of the group has no rule"},
		"cost 0":                    {group: Group{{Key: "a", Rule: rule, Op: algorithms.OpPeek}}, want: "cost 0"},
		"negative cost":             {group: Group{{Key: "a", Rule: rule, Op: algorithms.OpRefund, Cost: -1}}, want: "cost -1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.group.Validate()
			if tc.want == "" {
				if err != nil {
					t.Fatalf("got %v, want it valid", err)
				}
				return
			}
			if err == nil || !errors.Is(err, ErrStore) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want ErrStore with %q", err, tc.want)
			}
		})
	}
}
