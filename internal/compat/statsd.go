package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	statsdTimeout = 2 * time.Second // to connect, and to write
	packetBytes   = 1400            // of a UDP packet: it passes without being cut
)

// Statsd sends what changed to a statsd server after each interval. What cannot be sent is sent with the next: a server
// that is away costs no counts.
type Statsd struct {
	stats      *Stats
	cfg        StatsSettings
	mogrifiers []mogrifier
	log        *slog.Logger

	conn   net.Conn
	failed bool // and logged
}

// NewStatsd returns a sender; Run runs it. lookUp returns environment variables, for mogrifiers.
func NewStatsd(stats *Stats, s Settings, log *slog.Logger) (*Statsd, error) {
	d := &Statsd{stats: stats, cfg: s.Stats, log: log}
	if !s.Stats.Dog {
		return d, nil
	}
	d.cfg.Protocol = "udp"
	var problems []error
	for _, name := range s.Stats.Mogrifiers {
		m, err := newMogrifier(name, s.lookUp)
		problems = append(problems, err)
		d.mogrifiers = append(d.mogrifiers, m)
	}
	return d, errors.Join(problems...)
}

// Run sends until ctx is done, and then what is left.
func (d *Statsd) Run(ctx context.Context) error {
	ticker := time.NewTicker(d.cfg.Flush)
	defer ticker.Stop()
	defer func() {
		if d.conn != nil {
			_ = d.conn.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			d.flush(context.WithoutCancel(ctx))
			return nil
		case <-ticker.C:
			d.flush(ctx)
		}
	}
}

// flush sends what changed, and says once that it cannot.
func (d *Statsd) flush(ctx context.Context) {
	err := d.send(ctx)
	switch {
	case err != nil && !d.failed:
		d.log.Info("statistics cannot be sent: they are when the server is there", "error", err.Error(), "set", "STATSD_HOST, STATSD_PORT or USE_STATSD=false")
	case err == nil && d.failed:
		d.log.Info("statistics are sent again")
	}
	d.failed = err != nil
}

func (d *Statsd) send(ctx context.Context) error {
	if err := d.connect(ctx); err != nil {
		return err
	}
	var packet bytes.Buffer
	var pending []func() // what a packet that was sent makes true
	write := func() error {
		if packet.Len() == 0 {
			return nil
		}
		if err := d.write(packet.Bytes()); err != nil {
			return err
		}
		for _, sent := range pending {
			sent()
		}
		packet.Reset()
		pending = pending[:0]
		return nil
	}
	add := func(line string, sent func()) error {
		if packet.Len()+len(line) > packetBytes {
			if err := write(); err != nil {
				return err
			}
		}
		packet.WriteString(line)
		pending = append(pending, sent)
		return nil
	}
	for _, m := range d.stats.samples() {
		line, sent := d.line(&m)
		if line == "" {
			continue
		}
		if err := add(line, sent); err != nil {
			return err
		}
	}
	times, all := d.stats.takeTimings()
	for _, took := range times {
		if err := add(d.timing(took, len(times), all), func() {}); err != nil {
			return err
		}
	}
	return write()
}

// line returns what is to be sent of a statistic; empty: nothing.
func (d *Statsd) line(m *sample) (line string, sent func()) {
	name, tags := d.names(m)
	if m.gauge {
		return fmt.Sprintf("%s:%d|g%s\n", name, m.value, tags), func() {}
	}
	delta := uint64(m.value) - m.counter.sent
	if delta == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s:%d|c%s\n", name, delta, tags), func() { m.counter.sent += delta }
}

func (d *Statsd) timing(took time.Duration, kept, all int) string {
	m := sample{name: []string{"ratelimit_server", "ShouldRateLimit", "response_time"}}
	name, tags := d.names(&m)
	rate := ""
	if kept < all {
		rate = "|@" + strconv.FormatFloat(float64(kept)/float64(all), 'f', 4, 64)
	}
	return fmt.Sprintf("%s:%.3f|ms%s%s\n", name, float64(took)/float64(time.Millisecond), rate, tags)
}

// names returns the name of a statistic on the wire, and its tags, which DogStatsD has beside it.
func (d *Statsd) names(m *sample) (name, tags string) {
	if !d.cfg.Dog {
		return d.stats.taggedName(m), ""
	}
	name = m.statsd()
	var all []string
	for i := range d.mogrifiers {
		if mogrified, more, ok := d.mogrifiers[i].apply(name); ok {
			name, all = mogrified, more
			break
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.stats.tags)) {
		all = append(all, wireName(key)+":"+wireName(d.stats.tags[key]))
	}
	if len(all) == 0 {
		return name, ""
	}
	return name, "|#" + strings.Join(all, ",")
}

func (d *Statsd) connect(ctx context.Context) error {
	if d.conn != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statsdTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, d.cfg.Protocol, net.JoinHostPort(d.cfg.Host, strconv.Itoa(d.cfg.Port)))
	if err != nil {
		return err
	}
	d.conn = conn
	return nil
}

// write sends one packet. A connection that fails is given up: the server may have gone away or been replaced.
func (d *Statsd) write(packet []byte) error {
	if d.cfg.Protocol == "tcp" && d.gone() {
		return errors.New("the server closed the connection")
	}
	_ = d.conn.SetWriteDeadline(time.Now().Add(statsdTimeout))
	_, err := d.conn.Write(packet)
	if err != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
	return err
}

// gone finds that a server has closed its side, which writing would not tell at once: what was written would be lost.
func (d *Statsd) gone() bool {
	_ = d.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := d.conn.Read(make([]byte, 1))
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		return false
	}
	_ = d.conn.Close()
	d.conn = nil
	return true
}

// mogrifier turns parts of a DogStatsD name into tags.
type mogrifier struct {
	pattern *regexp.Regexp
	name    string
	tags    []string
}

// newMogrifier reads DOG_STATSD_MOGRIFIER_<name>_PATTERN, _NAME and _TAGS.
func newMogrifier(name string, lookUp func(string) string) (m mogrifier, err error) {
	prefix := "DOG_STATSD_MOGRIFIER_" + name + "_"
	pattern := lookUp(prefix + "PATTERN")
	if pattern == "" || lookUp(prefix+"NAME") == "" {
		return m, fmt.Errorf("USE_DOG_STATSD_MOGRIFIERS: %s: set %sPATTERN and %sNAME", name, prefix, prefix)
	}
	if m.pattern, err = regexp.Compile(pattern); err != nil {
		return m, fmt.Errorf("%sPATTERN: %w", prefix, err)
	}
	m.name = braced(lookUp(prefix + "NAME"))
	if tags := lookUp(prefix + "TAGS"); tags != "" {
		for tag := range strings.SplitSeq(tags, ",") {
			m.tags = append(m.tags, braced(strings.TrimSpace(tag)))
		}
	}
	return m, nil
}

func (m *mogrifier) apply(name string) (mogrified string, tags []string, ok bool) {
	at := m.pattern.FindStringSubmatchIndex(name)
	if at == nil {
		return "", nil, false
	}
	for _, tag := range m.tags {
		tags = append(tags, string(m.pattern.ExpandString(nil, tag, name, at)))
	}
	return string(m.pattern.ExpandString(nil, m.name, name, at)), tags, true
}
