package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// diffCommand is `sentinel-rls diff`.
type diffCommand struct {
	Args struct {
		Old string `positional-arg-name:"old" description:"The policies that are served now: a file or a directory of them."`
		New string `positional-arg-name:"new" description:"The policies that are to take their place."`
	} `positional-args:"yes" required:"yes"`
	Allow  []string `long:"allow" value-name:"WHAT" description:"What may change without exit code 4: loosen, tighten or all, each also with a bound, as loosen=20%; added, removed. Repeatable."`
	Config string   `long:"config" value-name:"FILE" description:"The process configuration, for how policy files are read."`
	JSON   bool     `long:"json" description:"Print JSON."`

	allowed allowance
}

// Validate reads --allow.
func (c *diffCommand) Validate() error {
	for _, what := range c.Allow {
		if err := c.allowed.add(what); err != nil {
			return err
		}
	}
	return nil
}

// allowance is what may change.
type allowance struct {
	loosen, tighten descriptors.Share
	added, removed  bool
}

func (a *allowance) add(what string) error {
	name, value, measured := strings.Cut(what, "=")
	share := descriptors.Unbounded
	if measured {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		if err != nil || percent < 0 || math.IsInf(percent, 0) || math.IsNaN(percent) {
			return fmt.Errorf("--allow: %q is no percentage; write loosen=20%%", value)
		}
		share = descriptors.Share(percent / 100)
	}
	switch {
	case name == "loosen":
		a.loosen = max(a.loosen, share)
	case name == "tighten":
		a.tighten = max(a.tighten, share)
	case name == "all":
		*a = allowance{max(a.loosen, share), max(a.tighten, share), true, true}
	case name == "added" && !measured:
		a.added = true
	case name == "removed" && !measured:
		a.removed = true
	default:
		return fmt.Errorf("--allow: %q is unknown; expected loosen, tighten, all, added or removed", name)
	}
	return nil
}

func (a *allowance) covers(c descriptors.Change) bool {
	switch {
	case a.added && strings.HasSuffix(c.What, " added"), a.removed && strings.HasSuffix(c.What, " removed"):
		return true
	}
	return c.Loosens <= a.loosen && c.Tightens <= a.tighten
}

// comparison is what `diff` says; its JSON is for tools.
type comparison struct {
	Old      string               `json:"old"` // hash
	New      string               `json:"new"`
	Changes  []descriptors.Change `json:"changes"`
	Exceeded int                  `json:"exceeded"` // changes beyond --allow
	Reload   []string             `json:"reload,omitempty"`
}

// Run compares.
func (c *diffCommand) Run(env *environment) error {
	cfg, _, err := config.Load(c.Config, env.variables)
	if err != nil {
		return invalidError{err}
	}
	_, prev, oldErr := readPolicies([]string{c.Args.Old}, policyOptions(cfg))
	_, next, newErr := readPolicies([]string{c.Args.New}, policyOptions(cfg))
	if err := errors.Join(oldErr, newErr); err != nil {
		return invalidError{err}
	}
	found := comparison{Old: prev.Hash(), New: next.Hash(), Changes: descriptors.Diff(prev, next)}
	if found.Changes == nil {
		found.Changes = []descriptors.Change{}
	}
	for _, change := range found.Changes {
		if !c.allowed.covers(change) {
			found.Exceeded++
		}
	}
	reload := next.CheckReload(prev)
	if reload != nil {
		found.Reload = strings.Split(reload.Error(), "\n")
	}
	if c.JSON {
		err = writeJSON(env.stdout, found)
	} else {
		err = c.print(env, found)
	}
	switch {
	case err != nil:
		return err
	case reload != nil:
		return invalidError{fmt.Errorf("a running process would refuse %s:\n%w", c.Args.New, reload)}
	case found.Exceeded > 0:
		return findingError{fmt.Errorf("%d of %d changes loosen or tighten more than --allow says", found.Exceeded, len(found.Changes))}
	}
	return nil
}

func (c *diffCommand) print(env *environment, found comparison) error {
	p := &printer{w: env.stdout}
	for _, change := range found.Changes {
		mark := " "
		if !c.allowed.covers(change) {
			mark = "!"
		}
		p.line(0, "%s %s", mark, change)
	}
	if len(found.Changes) == 0 {
		p.line(0, "no difference to anyone")
	}
	return p.err
}
