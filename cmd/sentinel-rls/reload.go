package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// policiesStale is the code of /readyz while the files cannot be used and the last good set is served.
const policiesStale = "policies_stale"

// maxProblems bounds what the log and /policies tell of one set of bad files; validate tells all.
const maxProblems = 20

// livePolicies keeps the active policy set in step with the files. All or nothing: a set replaces the active one when
// every file of it is good, it fits the configuration and may follow the active one. Otherwise the active one stays, and
// log, metrics, /readyz and /policies say so until the files are good again. Only one goroutine at a time may change it;
// any may ask what is shown.
type livePolicies struct {
	cfg        config.Config
	dropIn     descriptors.DropInOptions
	mayBeEmpty bool // no files mean no limits; false: they are a mistake
	engine     *rls.Engine
	recorder   *telemetry.Recorder
	log        *slog.Logger
	outcome    func(error) // told what became of each set that was applied; nil: nobody is

	active *descriptors.Set
	set    atomic.Pointer[descriptors.Set] // active, for others; nil: none yet
	shown  atomic.Pointer[admin.Policies]
}

// use makes a set that was checked the active one. The error names a policy whose emergency cap no rule can hold.
func (l *livePolicies) use(set *descriptors.Set) error {
	if err := l.engine.Use(set); err != nil {
		return err
	}
	shown := describe(set, time.Now())
	l.recorder.PoliciesLoaded(telemetry.Policies{Hash: shown.Hash, Loaded: shown.Loaded, Endpoints: labels(set)})
	l.active = set
	l.set.Store(set)
	l.shown.Store(shown)
	return nil
}

// degraded returns the code for /readyz, if any.
func (l *livePolicies) degraded() []string {
	if shown := l.shown.Load(); shown != nil && shown.Stale {
		return []string{policiesStale}
	}
	return nil
}

// apply takes what was read of the files, or why nothing could be read.
func (l *livePolicies) apply(files []descriptors.File, err error) { _ = l.load(files, err) }

// load is apply, and returns why the set was refused.
func (l *livePolicies) load(files []descriptors.File, err error) error {
	if err == nil {
		err = l.replace(files)
	}
	if err != nil {
		l.refuse(err)
	}
	if l.outcome != nil {
		l.outcome(err)
	}
	return err
}

// replace makes the set of files the active one, unless it is that already.
func (l *livePolicies) replace(files []descriptors.File) error {
	set, err := l.check(files)
	if err != nil {
		return err
	}
	if l.set.Load() != nil && set.SameFiles(l.active) {
		l.unchanged()
		return nil
	}
	if err := l.use(set); err != nil {
		return err
	}
	l.recorder.PoliciesReloaded()
	warnOfPolicies(l.log, set)
	shown := l.shown.Load()
	l.log.Info("policies loaded", "hash", shown.Hash, "files", len(shown.Files), "endpoints", len(shown.Endpoints))
	return nil
}

// check returns the set of files, when it may follow the active one.
func (l *livePolicies) check(files []descriptors.File) (*descriptors.Set, error) {
	opts := policyOptions(l.cfg)
	opts.DropIn = l.dropIn
	if len(files) == 0 && l.mayBeEmpty {
		return new(descriptors.Set), nil
	}
	set, err := descriptors.Parse(files, opts)
	if err != nil {
		return nil, err
	}
	if err := fit(l.cfg, set); err != nil {
		return nil, err
	}
	return set, set.CheckReload(l.active)
}

// unchanged notes that the files hold what is active.
func (l *livePolicies) unchanged() {
	l.recorder.PoliciesUnchanged()
	shown := *l.shown.Load()
	shown.Stale, shown.Problems = false, nil
	l.shown.Store(&shown)
	l.log.Info("policies unchanged", "hash", shown.Hash)
}

// refuse keeps the active set and says why.
func (l *livePolicies) refuse(err error) {
	l.recorder.PoliciesRefused()
	problems := strings.Split(err.Error(), "\n")
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems], fmt.Sprintf("%d more: see sentinel-rls validate", more))
	}
	shown := *l.shown.Load()
	shown.Stale, shown.Problems = true, problems
	l.shown.Store(&shown)
	for _, problem := range problems {
		l.log.Error("policies refused: the last good ones stay active", "problem", problem, "active_hash", shown.Hash)
	}
}

// watch applies every change of the files that the configuration names, and on a hangup what is there, until ctx is done.
func (l *livePolicies) watch(ctx context.Context, applied []descriptors.File, hangups <-chan os.Signal) error {
	if len(l.cfg.Policies) == 0 {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-hangups:
				l.log.Info("nothing to reload: no policy files are configured")
			}
		}
	}
	w := policyfile.Watcher{Paths: l.cfg.Policies, Now: hangups, Applied: applied, Apply: l.apply}
	return w.Run(ctx)
}

// warnOfPolicies logs what the set's files probably mean otherwise than they say.
func warnOfPolicies(log *slog.Logger, set *descriptors.Set) {
	for _, w := range set.Warnings() {
		log.Warn("odd policy", "problem", w.Error())
	}
}

// labels returns the endpoint ids that decisions of the set are recorded under.
func labels(set *descriptors.Set) (ids []string) {
	for _, p := range set.Policies() {
		if p.Tenant == "" {
			ids = append(ids, p.Endpoint)
		}
	}
	for _, d := range set.DropIns() {
		ids = append(ids, rls.DropInEndpoint(d.Name()))
	}
	return ids
}
