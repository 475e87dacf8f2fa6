//go:build !nodev

package main

import (
	"io"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A command line becomes the fields of its command, as it was typed.
func TestCommandLineIsRead(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	for _, c := range []struct {
		args []string
		want target
	}{
		{[]string{"serve"}, &serveCommand{}},
		{[]string{"serve", "--grpc", ":1", "--admin=:2", "--redis="}, &serveCommand{GRPC: text(":1"), Admin: text(":2"), Redis: text("")}},
		{[]string{"serve", "--policies", "a,b", "--policies=c"}, &serveCommand{Policies: []string{"a,b", "c"}}},
		{[]string{"serve", "--config", "a", "--config", "b"}, &serveCommand{Config: "b"}},
		{[]string{"compat"}, &compatServe{}},
		{[]string{"compat", "serve"}, &compatServe{}},
		{[]string{"compat", "check"}, &compatCheck{}},
		{[]string{"top"}, &topCommand{Timeout: 5 * time.Second}},
		{[]string{"top", "--timeout", "1m", "--json"}, &topCommand{Timeout: time.Minute, JSON: true}},
		{
			[]string{"dev", "token", "--config", "f", "--tenant", `"acme"`, "--scope", "a", "--scope", "b"},
			&tokenCommand{Config: "f", Tenant: `"acme"`, Scope: []string{"a", "b"}, TTL: time.Hour},
		},
		{
			[]string{"reset", "--endpoint", "login", "--cookie-file", "-", "--dry-run"},
			&resetCommand{Endpoint: "login", CookieFile: "-", DryRun: true},
		},
		{
			[]string{"explain", "--endpoint=login", "--header", "X-Real-IP=192.0.2.1", "--redis", "redis://h"},
			&explainCommand{caller: caller{Endpoint: "login"}, Header: []string{"X-Real-IP=192.0.2.1"}, sources: sources{Redis: text("redis://h")}},
		},
	} {
		got, err := newCommandLine(io.Discard).parse(c.args)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		all := cmp.Exporter(func(reflect.Type) bool { return true })
		if diff := cmp.Diff(c.want, got, all); diff != "" {
			t.Errorf("%q is read as (-want +got):\n%s", c.args, diff)
		}
	}
	got, err := newCommandLine(io.Discard).parse([]string{"explain", "--hits", "010", "--domain", "d", "a=1", "+", "--", "--b=2"})
	if err != nil {
		t.Fatal(err)
	}
	e := got.(*explainCommand)
	if want := []string{"a=1", "+", "--b=2"}; !slices.Equal(e.Args.Entries, want) || e.Hits != 10 {
		t.Errorf("entries %q and %d hits, want %q and 10", e.Args.Entries, e.Hits, want)
	}
}

// Every command that can be named says in --help what its page says.
func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	pages, err := os.ReadDir("help")
	if err != nil {
		t.Fatal(err)
	}
	leaves := leafCommands(newCommandLine(io.Discard).Command, "")
	if len(leaves) != len(pages)-1 { // admin.md is of the manual only
		t.Errorf("%d commands and %d pages of help", len(leaves), len(pages)-1)
	}
}
