package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// explainCommand is `sentinel-rls explain`.
type explainCommand struct {
	Args struct {
		Entries []string `positional-arg-name:"entry" description:"KEY=VALUE, an entry of a descriptor; a + between them begins the next descriptor. KEY=@FILE reads the value from a file."`
	} `positional-args:"yes"`

	sources
	caller
	Header []string `long:"header" value-name:"NAME=VALUE" description:"With --endpoint: a request header that may say where the client is, client_address.header or x-forwarded-for; repeatable."`
	Peer   string   `long:"peer" value-name:"IP" description:"With --endpoint: the connection's peer as Envoy reports it."`

	Domain string `long:"domain" value-name:"NAME" description:"What the rate limit filter asks: the domain, with the entries."`
	Hits   uint64 `long:"hits" value-name:"N" base:"10" description:"The request's hits_addend; 0 means 1."`
	Peek   bool   `long:"peek" description:"Also look at the buckets in Redis, and say what would be answered now."`
	JSON   bool   `long:"json" description:"Print JSON."`
}

// caller are the flags that say who asks ext_authz about which endpoint.
type caller struct {
	Endpoint   string `long:"endpoint" value-name:"ID" description:"What ext_authz asks: the endpoint id of the route."`
	Tenant     string `long:"tenant" value-name:"NAME" unquote:"false" description:"With --endpoint: the tenant that asks."`
	User       string `long:"user" value-name:"NAME" unquote:"false" description:"With --tenant: its user."`
	Address    string `long:"address" value-name:"IP" description:"With --endpoint: the client's address."`
	TokenFile  string `long:"token-file" value-name:"FILE" description:"With --endpoint: a file with the bearer token of who asks; - is standard input."`
	CookieFile string `long:"cookie-file" value-name:"FILE" description:"With --endpoint: a file with the anonymous cookie's value of who asks; - is standard input."`
}

// Validate refuses a command line that asks for nothing, or for two things.
func (c *explainCommand) Validate() error {
	switch {
	case c.Domain == "" && c.Endpoint == "":
		return errors.New("expected --domain NAME with entries, or --endpoint ID")
	case c.Domain != "" && c.Endpoint != "":
		return errors.New("--domain and --endpoint are two questions: ask one")
	case c.Domain != "" && (c.caller != caller{}):
		return errors.New("--tenant, --user, --address, --token-file and --cookie-file go with --endpoint: with --domain they are entries")
	case c.Domain != "" && len(c.Args.Entries) == 0:
		return errors.New("expected KEY=VALUE entries after --domain")
	case c.Endpoint != "" && (len(c.Args.Entries) > 0 || c.Hits > 0):
		return errors.New("entries and --hits go with --domain")
	case c.Domain != "" && c.located():
		return errors.New("--header and --peer go with --endpoint: with --domain the address is an entry")
	case c.Address != "" && c.located():
		return errors.New("--address is where the client is: leave out --header and --peer")
	case c.TokenFile == "-" && c.CookieFile == "-":
		return errors.New("standard input holds one secret only")
	}
	return c.caller.check()
}

func (c caller) check() error {
	switch {
	case c.TokenFile != "" && (c.Tenant != "" || c.User != ""):
		return errors.New("the token says who asks: leave out --tenant and --user")
	case c.User != "" && c.Tenant == "":
		return errors.New("--user needs --tenant")
	}
	return nil
}

// Run explains.
func (c *explainCommand) Run(env *environment) error {
	cfg, set, err := c.load(env)
	if err != nil {
		return err
	}
	q := question{cfg: cfg, set: set, notes: new(notes)}
	if q.verifier, err = callers(env.ctx, cfg, c.TokenFile != "" || c.hasToken(cfg)); err != nil {
		return err
	}
	if c.Domain != "" {
		err = q.ofDescriptors(c)
	} else {
		err = q.ofEndpoint(c, env.stdin)
	}
	if err != nil {
		return err
	}
	var away error
	if c.Peek && len(q.report.Asks) > 0 {
		if away = withRedis(env, cfg, q.peek); away != nil && exitCode(away) != exitFailure {
			return away
		}
	}
	q.report.Notes = q.notes.list()
	if c.JSON {
		err = writeJSON(env.stdout, q.report)
	} else {
		err = q.report.print(env.stdout)
	}
	return errors.Join(err, away)
}

// located reports whether the client's address is to be found out as for a request.
func (c *explainCommand) located() bool { return len(c.Header) > 0 || c.Peer != "" }

// hasToken reports whether one of the entries is a token that is verified.
func (c *explainCommand) hasToken(cfg config.Config) bool {
	return slices.ContainsFunc(c.Args.Entries, func(e string) bool { return strings.HasPrefix(e, cfg.Names.Entries.Authorization+"=") })
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// question is one request that an operator asks about.
type question struct {
	cfg      config.Config
	set      *descriptors.Set
	verifier *identity.Resolver
	notes    *notes
	who      identity.Identity // of a Check
	ask      func(context.Context, *rls.Engine) (rls.Result, error)
	asks     []rls.Ask
	report   report
}

// ofDescriptors explains what the rate limit filter asks.
func (q *question) ofDescriptors(c *explainCommand) error {
	request := rls.Request{Domain: c.Domain, Hits: c.Hits}
	shown, err := q.readDescriptors(&request, c.Args.Entries)
	if err != nil {
		return err
	}
	engine, err := questioner(q.cfg, q.set, nothing{}, q.verifier, q.notes)
	if err != nil {
		return err
	}
	x, err := engine.Explain(request)
	if err != nil {
		return usageError{err}
	}
	q.ask = func(ctx context.Context, e *rls.Engine) (rls.Result, error) { return e.Decide(ctx, request) }
	q.tell(rls.ServiceRateLimit, x)
	for i := range q.report.Asks {
		q.report.Asks[i].Entries = shown[i]
	}
	return nil
}

// readDescriptors reads entries into r and returns how each descriptor is shown.
func (q *question) readDescriptors(r *rls.Request, entries []string) (shown []string, err error) {
	r.Descriptors, shown = []rls.Descriptor{{}}, []string{""}
	for _, entry := range entries {
		if entry == "+" {
			r.Descriptors, shown = append(r.Descriptors, rls.Descriptor{}), append(shown, "")
			continue
		}
		key, value, ok := strings.Cut(entry, "=")
		if !ok || key == "" {
			return nil, usageError{fmt.Errorf("%q is no KEY=VALUE", entry)}
		}
		if name, fromFile := strings.CutPrefix(value, "@"); fromFile {
			if value, err = readSecret(nil, name); err != nil {
				return nil, err
			}
		}
		last := len(shown) - 1
		r.Descriptors[last].Entries = append(r.Descriptors[last].Entries, rls.Entry{Key: key, Value: value})
		value = q.inspect(key, value)
		shown[last] = strings.TrimSpace(shown[last] + " " + key + "=" + value)
	}
	for i, s := range shown {
		if s == "" {
			return nil, usageError{fmt.Errorf("descriptor %d has no entries", i+1)}
		}
	}
	return shown, nil
}

// inspect notes an entry that names nobody, and returns its value as it is shown.
func (q *question) inspect(key, value string) string {
	names := &q.cfg.Names.Entries
	switch {
	case key == names.Cookie:
		if _, ok := q.verifier.Cookie(value); !ok {
			q.notes.add("the cookie is not valid: limits with scope cookie do not apply")
		}
		return "[redacted]"
	case key == names.Authorization:
		return "[redacted]"
	case slices.Contains(names.Address, key):
		if _, ok := q.verifier.Address(value); !ok {
			q.notes.add(key + " is no address: limits with scope client_ip use the bucket {unknown}")
		}
	}
	return value
}

// ofEndpoint explains what ext_authz asks.
func (q *question) ofEndpoint(c *explainCommand, stdin io.Reader) error {
	if err := q.identify(c.caller, stdin); err != nil {
		return err
	}
	if c.located() {
		if err := q.locate(c); err != nil {
			return err
		}
	}
	engine, err := questioner(q.cfg, q.set, nothing{}, known{q.verifier, q.who}, q.notes)
	if err != nil {
		return err
	}
	q.ask = func(ctx context.Context, e *rls.Engine) (rls.Result, error) {
		return e.Check(ctx, rls.CheckRequest{EndpointID: c.Endpoint}).Result, nil
	}
	if q.report.Refusal != "" {
		q.report.Service = rls.ServiceAuthz
		return nil
	}
	q.tell(rls.ServiceAuthz, engine.ExplainCheck(c.Endpoint, descriptors.Subject{
		Tenant: q.who.Tenant, User: q.who.Subject, Cookie: q.who.Cookie, ClientIP: q.who.Address,
	}, q.who.Scopes))
	return nil
}

// identify finds out who asks, as far as the flags say.
func (q *question) identify(c caller, stdin io.Reader) error {
	if c.Address != "" {
		key, ok := q.verifier.Address(c.Address)
		if !ok {
			return usageError{fmt.Errorf("--address: %q is no address, as 203.0.113.7 or 2001:db8::7", c.Address)}
		}
		q.who.Address = key
	}
	policy, ok := q.set.Endpoint(c.Endpoint)
	switch {
	case ok && policy.Identity == descriptors.Anonymous:
		return q.identifyAnonymous(c, stdin)
	case c.CookieFile != "":
		return usageError{errors.New("--cookie-file: the endpoint knows its callers by token")}
	case c.TokenFile != "":
		return q.identifyToken(c, stdin)
	case c.Tenant == "":
		return usageError{errors.New("the endpoint knows its callers by token: add --tenant NAME or --token-file FILE")}
	}
	q.who.Tenant, q.who.Subject = c.Tenant, c.User
	if ok && len(policy.RequiredScopes) > 0 {
		q.who.Scopes = policy.RequiredScopes
		q.notes.add("taken as given that the token has the scopes " + strings.Join(policy.RequiredScopes, " "))
	}
	return nil
}

// locate finds out where the client is, as for a request with those headers from that peer.
func (q *question) locate(c *explainCommand) error {
	var credentials identity.Credentials
	if c.Peer != "" {
		var err error
		if credentials.Peer, err = netip.ParseAddr(c.Peer); err != nil {
			return usageError{fmt.Errorf("--peer: %q is no address, as 203.0.113.7 or 2001:db8::7", c.Peer)}
		}
	}
	for _, h := range c.Header {
		name, value, ok := strings.Cut(h, "=")
		switch name = strings.ToLower(name); {
		case ok && name == q.cfg.ClientAddress.Header:
			credentials.ClientAddress = append(credentials.ClientAddress, value)
		case ok && name == "x-forwarded-for":
			credentials.ForwardedFor = append(credentials.ForwardedFor, value)
		default:
			return usageError{fmt.Errorf("--header: expected %s=VALUE or x-forwarded-for=VALUE; tokens and cookies come from files",
				q.cfg.ClientAddress.Header)}
		}
	}
	step, key := q.verifier.ExplainAddress(credentials)
	q.report.Identity = append(q.report.Identity, tell([]identity.Step{step})...)
	q.who.Address = key
	return nil
}

func (q *question) identifyToken(c caller, stdin io.Reader) error {
	token, err := readSecret(stdin, c.TokenFile)
	if err != nil {
		return err
	}
	steps, id, err := q.verifier.ExplainTenant(identity.Credentials{Authorization: []string{"Bearer " + strings.TrimPrefix(token, "Bearer ")}})
	q.report.Identity = tell(withoutAddress(steps))
	if err != nil {
		q.report.Refusal = rls.Unauthenticated
		if errors.Is(err, identity.ErrBusy) {
			q.report.Refusal = rls.IdentityUnavailable
		}
		return nil
	}
	id.Address = q.who.Address
	q.who = id
	return nil
}

func (q *question) identifyAnonymous(c caller, stdin io.Reader) error {
	if c.TokenFile != "" || c.Tenant != "" {
		return usageError{errors.New("the endpoint is anonymous: it reads no token; use --cookie-file and --address")}
	}
	if c.CookieFile == "" {
		return nil
	}
	cookie, err := readSecret(stdin, c.CookieFile)
	if err != nil {
		return err
	}
	name := q.cfg.Anonymous.CookieName
	steps, id := q.verifier.ExplainAnonymous(identity.Credentials{Cookies: []string{name + "=" + strings.TrimPrefix(cookie, name+"=")}})
	q.report.Identity = tell(withoutAddress(steps))
	q.who.Cookie = id.Cookie
	return nil
}

// withoutAddress leaves out the last step, the address of a request: locate has it, where there is one.
func withoutAddress(steps []identity.Step) []identity.Step {
	if last := len(steps) - 1; steps[last].Name == "address" {
		return steps[:last]
	}
	return steps
}

func tell(steps []identity.Step) (told []reportStep) {
	for _, s := range steps {
		told = append(told, reportStep{s.Name, s.OK, s.Detail})
	}
	return told
}

// tell fills the report from an explanation.
func (q *question) tell(service rls.Service, x rls.Explanation) {
	q.asks = x.Asks
	r := &q.report
	r.Service, r.Domain, r.Known, r.DropIn, r.Refusal = service, x.Domain, x.Known, x.DropIn, x.Refusal
	for _, a := range x.Asks {
		r.Asks = append(r.Asks, describeAsk(a))
	}
}

// peek looks at the buckets and foresees the answer.
func (q *question) peek(ctx context.Context, s *redis.Store) error {
	preview := rls.NewPreview(s)
	var who rls.Identifier = q.verifier
	if q.report.Service == rls.ServiceAuthz {
		who = known{q.verifier, q.who}
	}
	engine, err := questioner(q.cfg, q.set, preview, who, new(notes))
	if err != nil {
		return err
	}
	if q.report.Refusal == "" {
		if err := q.foresee(ctx, engine); err != nil {
			return err
		}
	}
	return q.look(ctx, preview)
}

func (q *question) foresee(ctx context.Context, engine *rls.Engine) error {
	result, err := q.ask(ctx, engine)
	if err != nil {
		return err
	}
	if result.Class != "" || result.Source == rls.SourceEmergency {
		return fmt.Errorf("redis.url: Redis does not answer (%s): the explanation is without its buckets", result.Class)
	}
	q.report.Answer = &reportAnswer{Allowed: result.Allowed, Reason: result.Reason, Policy: result.Policy, RetryAfter: millis(result.RetryAfter)}
	return nil
}

// look adds what each bucket holds, also those that no decision asked for.
func (q *question) look(ctx context.Context, preview *rls.Preview) error {
	for i, a := range q.asks {
		for j, l := range a.Limits {
			group := rls.Group{{Key: l.Key, Rule: l.Rule, Op: algorithms.OpPeek, Cost: 1}}
			if err := preview.Decide(ctx, []rls.Group{group})[0].Err; err != nil {
				return fmt.Errorf("redis.url: %w", err)
			}
			sight, _ := preview.Seen(l.Key)
			v := l.Rule.Peek(sight.Before, sight.Now, l.Cost)
			q.report.Asks[i].Limits[j].Bucket = &reportBucket{
				Used: sight.Before.Present, Fits: v.Allowed, Remaining: v.Remaining,
				RetryAfter: millis(v.RetryAfter), FullAfter: millis(v.ResetAfter),
			}
		}
	}
	return nil
}

// millis rounds a wait up to milliseconds; nil: never.
func millis(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	return new(int64((d + time.Millisecond - 1) / time.Millisecond))
}

// known identifies the caller of a question by what the operator said, and everyone else as the resolver does.
type known struct {
	*identity.Resolver
	who identity.Identity
}

// Tenant returns the caller of the question.
func (k known) Tenant(identity.Credentials) (identity.Identity, error) { return k.who, nil }

// Anonymous returns the caller of the question.
func (k known) Anonymous(identity.Credentials) identity.Identity { return k.who }

// nothing is a store that is never asked.
type nothing struct{}

// Decide fails every group.
func (nothing) Decide(_ context.Context, groups []rls.Group) []rls.Answer {
	answers := make([]rls.Answer, len(groups))
	for i := range answers {
		answers[i].Err = rls.ErrUnavailable
	}
	return answers
}

// notes is a Recorder that keeps, for people, what a request holds and the policies do not honour.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.lines, line) {
		n.lines = append(n.lines, line)
	}
}

func (n *notes) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

// Endpoint returns a recorder that notes refused costs.
func (n *notes) Endpoint(id string) rls.EndpointRecorder { return endpointNotes{n, id} }

// Ignored notes parts that a native domain does not honour.
func (n *notes) Ignored(what rls.Ignored, count int) {
	n.add(fmt.Sprintf("ignored: %d x %s", count, map[rls.Ignored]string{
		rls.IgnoredEntry: "an entry with a key of no meaning", rls.IgnoredOverride: "a limit of the request's own",
		rls.IgnoredRefund: "negative hits at a limit without refunds", rls.IgnoredEmpty: "a descriptor without entries",
	}[what]))
}

// RequestRefused notes a bound that the request exceeds.
func (n *notes) RequestRefused(bound rls.Bound) {
	n.add("refused: beyond the bound on " + string(bound) + " (bounds in the process configuration)")
}

// UnknownEndpoint notes that no policy answers for the endpoint.
func (n *notes) UnknownEndpoint(rls.Service) {
	n.add("no policy has the endpoint id, and the domain has no endpoint default (unknown_endpoint decides)")
}

// UnknownDomain notes that no policy answers for the domain.
func (n *notes) UnknownDomain(rls.Service) {
	n.add("no policy file names the domain (unknown_domain decides)")
}

// Unauthenticated notes a token in a descriptor that is refused.
func (n *notes) Unauthenticated(r rls.Refused) {
	n.add("the token of a descriptor is refused: " + r.Check)
}

// StoreFailure is not for people who ask.
func (n *notes) StoreFailure(rls.Class) {}

// Healed is not for people who ask.
func (n *notes) Healed(int) {}

// ClockBehind is not for people who ask.
func (n *notes) ClockBehind() {}

// DenyCacheHit is not for people who ask.
func (n *notes) DenyCacheHit() {}

// Denied is not for people who ask.
func (n *notes) Denied(rls.Denial) {}

type endpointNotes struct {
	notes *notes
	id    string
}

// Decision is not for people who ask.
func (endpointNotes) Decision(rls.Reason, time.Duration) {}

// EmergencyAdmission is not for people who ask.
func (endpointNotes) EmergencyAdmission() {}

// EmergencySpent is not for people who ask.
func (endpointNotes) EmergencySpent(int64) {}

// ShadowDenial is not for people who ask.
func (endpointNotes) ShadowDenial() {}

// CostRefused notes a cost above max_cost.
func (e endpointNotes) CostRefused() {
	e.notes.add("refused: " + e.id + " is asked for more than a limit's max_cost")
}

// EmergencyBound is not for people who ask.
func (endpointNotes) EmergencyBound(float64, float64) {}

var _ rls.Recorder = (*notes)(nil)
