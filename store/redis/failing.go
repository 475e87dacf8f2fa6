package redis

import (
	"context"
	"errors"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// heard notes what became of the last thing that was sent to the server, and tells when it begins to fail and when it
// answers again. A fault of its configuration is told as such, by Observer.ConfigFault.
func (n *node) heard(err error) {
	n.down.Store(err != nil)
	if _, unfit := errors.AsType[*ConfigFault](err); unfit || errors.Is(err, context.Canceled) { // who asked goes away
		return
	}
	if err == nil {
		n.answered.Store(true)
		if n.failure.Swap(nil) != nil {
			n.Observer.Failing(n.addr, nil)
		}
		return
	}
	err = legible(err)
	if n.failure.Swap(&err) == nil {
		n.Observer.Failing(n.addr, err)
	}
}

// cause returns why the last thing that was sent to the server failed; nil: it did not.
func (n *node) cause() error {
	if err := n.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// failed returns the first error among the outcomes of a batch that was not answered.
func failed(batch []*call) error {
	for _, c := range batch {
		for i := range c.decisions {
			if err := c.decisions[i].err; err != nil {
				return err
			}
		}
	}
	return rls.ErrUnavailable
}

// illegible begins what a server repeats of a command that it does not know, which may be the login.
const illegible = ", with args beginning with"

// maxReason bounds the text of an error that is told, in bytes.
const maxReason = 300

// legible returns an error of the same class that a log may show: one line, and nothing that a server repeats of what it
// was sent.
func legible(err error) error {
	text, _, _ := strings.Cut(err.Error(), illegible)
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > maxReason {
		text = text[:maxReason] + "..."
	}
	if text = strings.ToValidUTF8(text, ""); text == err.Error() {
		return err
	}
	return shortened{text, err}
}

// shortened is an error with another text.
type shortened struct {
	text  string
	error error
}

func (s shortened) Error() string { return s.text }
func (s shortened) Unwrap() error { return s.error }
