package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/compat"
)

// compatCheck is `sentinel-rls compat check`.
type compatCheck struct {
	Args struct {
		Dir string `positional-arg-name:"dir" description:"The directory with the files; RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY when left out."`
	} `positional-args:"yes"`
}

// Run prints what stays as it is under envoyproxy/ratelimit, what differs, and what to set. It is an error when the
// process would not start, or would refuse the files.
func (c *compatCheck) Run(env *environment) error {
	s, notices, envErr := compat.FromEnvironment(env.variables)
	r := checkReport{w: env.stdout}
	files, set, fileErr := c.readFiles(s)

	r.section("stays the same")
	if fileErr == nil && set != nil {
		for _, d := range set.DropIns() {
			r.line("domain %s: %d limits, answered as before", d.Name(), d.Rules())
		}
		r.line("%d files, hash %s", len(files), set.Hash())
	}
	without := make(map[string]bool)
	for _, n := range notices {
		without[n.Name] = true
	}
	for _, name := range c.honoured(env.variables) {
		if !without[name] && !refusedIn(envErr, name) {
			r.line("%s is honoured", name)
		}
	}

	r.section("differs")
	for _, n := range notices {
		r.line("%s", n)
	}
	if set != nil {
		reportWarnings(&r, set)
	}
	r.line("while the store cannot answer, each process counts the limits itself, instead of an error for every request")
	if set != nil && usesStatsOfValues(set) {
		r.line("detailed_metric and value_to_metric: at most 10000 names of statistics; further values count under their rule's name")
	}
	r.line("docs/drop-in.md lists every difference, with the reason")

	r.section("to set")
	for _, hint := range hints(s, envErr) {
		r.line("%s", hint)
	}
	if err := errors.Join(envErr, fileErr); err != nil {
		return errors.Join(r.err, invalidError{err})
	}
	return r.err
}

// readFiles returns the files and what they mean. No set: the limits come from a control plane, and no directory is named.
func (c *compatCheck) readFiles(s compat.Settings) ([]descriptors.File, *descriptors.Set, error) {
	where := s.Runtime
	if c.Args.Dir != "" {
		where = compat.Runtime{Root: c.Args.Dir, IgnoreDotFiles: s.Runtime.IgnoreDotFiles}
	} else if s.ConfigType == compat.FromXDS {
		return nil, nil, nil
	}
	files, err := where.Read()
	if err != nil {
		return nil, nil, err
	}
	set, err := descriptors.Parse(files, descriptors.Options{DropIn: descriptors.DropInOptions{Only: true, MergeDomains: s.MergeDomains}})
	return files, set, err
}

// honoured returns the variables of that service that are set and mean something here.
func (c *compatCheck) honoured(env []string) (names []string) {
	for _, v := range compat.Variables() {
		if v.Without == "" && slices.ContainsFunc(env, func(pair string) bool {
			name, value, _ := strings.Cut(pair, "=")
			return name == v.Name && value != ""
		}) {
			names = append(names, v.Name)
		}
	}
	return names
}

func refusedIn(err error, name string) bool {
	return err != nil && slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool {
		return strings.HasPrefix(line, name+"=") || strings.HasPrefix(line, name+":")
	})
}

func reportWarnings(r *checkReport, set *descriptors.Set) {
	for _, w := range set.Warnings() {
		r.line("%s", w.Error())
	}
}

func usesStatsOfValues(set *descriptors.Set) bool {
	return slices.ContainsFunc(set.DropInRules(), (*descriptors.DropInRule).NamesValues)
}

// hints returns what an operator should set or prepare.
func hints(s compat.Settings, envErr error) (all []string) {
	switch {
	case s.Memory:
		all = append(all, "BACKEND_TYPE=redis and REDIS_URL, for limits that several processes share")
	case envErr == nil:
		all = append(all, "maxmemory-policy noeviction on the Redis server: with another policy it forgets limits, and the start is refused")
	}
	all = append(all,
		"SENTINEL_REDIS_BUDGET (20ms) below the timeout of Envoy's ratelimit filter, which is 20ms unless set: see docs/envoy.md",
		"terminationGracePeriodSeconds above SENTINEL_SHUTDOWN_DRAIN_DELAY and SENTINEL_SHUTDOWN_GRACE together (25s)")
	if s.ConfigType == compat.FromXDS && s.XDS.NodeID == "default" {
		all = append(all, "CONFIG_GRPC_XDS_NODE_ID, if the control plane serves limits by node")
	}
	return all
}

// checkReport prints lines under headings, and keeps the first error of writing.
type checkReport struct {
	w   io.Writer
	err error
}

func (r *checkReport) section(name string) { r.print(name + ":\n") }

func (r *checkReport) line(format string, args ...any) {
	r.print("  " + fmt.Sprintf(format, args...) + "\n")
}

func (r *checkReport) print(text string) {
	if r.err == nil {
		_, r.err = io.WriteString(r.w, text)
	}
}
