package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
)

// topCommand is `sentinel-rls top`.
type topCommand struct {
	Config  string        `long:"config" value-name:"FILE" description:"The process configuration that the server was started with; its admin.token_file is used."`
	Admin   *string       `long:"admin" value-name:"ADDR" description:"Where the server's metrics are served (admin.address)."`
	Timeout time.Duration `long:"timeout" value-name:"DURATION" default:"5s" description:"How long the answer may take."`
	JSON    bool          `long:"json" description:"Print JSON."`
}

// Run asks the server's /policies and prints who was denied most.
func (c *topCommand) Run(env *environment) error {
	cfg, _, err := config.Load(c.Config, env.variables, overrides(override("--admin", "admin.address", given(c.Admin)...))...)
	if err != nil {
		return invalidError{err}
	}
	ctx, cancel := context.WithTimeout(env.ctx, c.Timeout)
	defer cancel()
	shown, err := askPolicies(ctx, dialable(cfg.Admin.Address), cfg.Admin.Token.Reveal())
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(env.stdout, shown)
	}
	return printTop(env.stdout, shown)
}

// maxAnswerBytes bounds what is read of an answer of the admin server.
const maxAnswerBytes = 16 << 20

func askPolicies(ctx context.Context, address, token string) (shown admin.Policies, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/policies", http.NoBody)
	if err != nil {
		return shown, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// No proxy of the environment stands before an admin server, and it would see the token.
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return shown, fmt.Errorf("%s: %w (is sentinel-rls running there? --admin names another address)", address, err)
	}
	defer answer.Body.Close()
	body := io.LimitReader(answer.Body, maxAnswerBytes)
	if answer.StatusCode != http.StatusOK {
		var refusal struct{ Error string }
		_ = json.NewDecoder(body).Decode(&refusal) // whatever else it may be is not for a terminal
		return shown, fmt.Errorf("%s: %s: %.200q", address, answer.Status, refusal.Error)
	}
	if err := json.NewDecoder(body).Decode(&shown); err != nil || shown.Denied == nil {
		return shown, fmt.Errorf("%s: not the admin server of sentinel-rls (--admin names another address)", address)
	}
	return shown, nil
}

func printTop(w io.Writer, shown admin.Policies) error {
	d := shown.Denied
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	stale := ""
	if shown.Stale {
		stale = ", STALE: the files cannot be used"
	}
	fmt.Fprintf(t, "policies %s, loaded %s%s\n", shown.Hash, shown.Loaded.Format(time.RFC3339), stale)
	fmt.Fprintf(t, "%d denials since %s; counts are exact to %d\n", d.Denials, d.Since.Format(time.RFC3339), d.Error)
	table(t, "caller at endpoint", d.Pairs)
	table(t, "caller", d.Callers)
	table(t, "endpoint", d.Endpoints)
	return t.Flush()
}

func table(t *tabwriter.Writer, title string, counts []telemetry.DeniedCount) {
	if len(counts) == 0 {
		return
	}
	fmt.Fprintf(t, "\n%s\tdenied\n", title)
	for _, c := range counts {
		name := c.IdentityHash
		if name == "" {
			name = c.EndpointID
		} else if c.EndpointID != "" {
			name += " " + c.EndpointID
		}
		times := fmt.Sprint(c.AtLeast)
		if c.AtMost > c.AtLeast {
			times = fmt.Sprintf("%d to %d", c.AtLeast, c.AtMost)
		}
		fmt.Fprintf(t, "%s\t%s\n", name, times)
	}
}
