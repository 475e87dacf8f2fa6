package main

import (
	"errors"
	"fmt"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// validateCommand is `sentinel-rls validate`.
type validateCommand struct {
	Args struct {
		Paths []string `positional-arg-name:"path" description:"Policy files, or directories of them."`
	} `positional-args:"yes"`
	Config string `long:"config" value-name:"FILE" description:"Also check this process configuration, with the environment, and that policies fit it. Its own policies are read when no PATH is given."`
}

// Validate refuses a command line that asks for nothing.
func (c *validateCommand) Validate() error {
	if len(c.Args.Paths) == 0 && c.Config == "" {
		return errors.New("expected a PATH or --config FILE")
	}
	return nil
}

// Run prints what the policies hold, or every problem in them.
func (c *validateCommand) Run(env *environment) error {
	if c.Config == "" {
		_, set, err := readPolicies(c.Args.Paths, descriptors.Options{})
		if err != nil {
			return invalidError{err}
		}
		return summarize(env, set)
	}
	s, err := load(c.Config, env.variables, overrides(override("PATH", "policies", c.Args.Paths...)))
	if err != nil {
		return err
	}
	for _, w := range s.warnings {
		fmt.Fprintln(env.stderr, "sentinel-rls: warning: "+w.String())
	}
	return summarize(env, s.policies)
}

// summarize prints one paragraph per file and OK, and what the files probably mean otherwise than they say.
func summarize(env *environment, set *descriptors.Set) error {
	for _, w := range set.Warnings() {
		fmt.Fprintln(env.stderr, "sentinel-rls: warning: "+w.Error())
	}
	for _, file := range set.Summary() {
		if _, err := fmt.Fprintln(env.stdout, file); err != nil {
			return err
		}
	}
	last := set.Hash()
	if len(set.Policies()) == 0 && len(set.DropIns()) == 0 {
		last = "no policies: nothing is limited"
	}
	_, err := fmt.Fprintln(env.stdout, "OK", last)
	return err
}
