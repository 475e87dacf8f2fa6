package compat

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// reread is how long files are taken for unchanged.
const reread = time.Second

// certificates are the files of one TLS side. They are read again for new connections, at most once a second, so that a
// certificate can be replaced without a restart; while the files cannot be used, the last good ones are. Safe for
// concurrent use.
type certificates struct {
	cfg TLS

	mu     sync.Mutex // guards what follows
	looked time.Time
	texts  [3][]byte
	loaded material
}

// material is what the files held.
type material struct {
	own []tls.Certificate // none or one
	ca  *x509.CertPool    // nil: the system's
}

func newCertificates(cfg TLS) (*certificates, error) {
	c := &certificates{cfg: cfg}
	texts, err := c.read()
	if err != nil {
		return nil, err
	}
	if c.loaded, err = cfg.parse(texts); err != nil {
		return nil, err
	}
	c.texts, c.looked = texts, time.Now()
	return c, nil
}

func (c *certificates) read() (texts [3][]byte, err error) {
	for i, name := range [...]string{c.cfg.Cert, c.cfg.Key, c.cfg.CA} {
		if name == "" {
			continue
		}
		text, readErr := os.ReadFile(name)
		texts[i], err = text, errors.Join(err, readErr)
	}
	return texts, err
}

func (cfg TLS) parse(texts [3][]byte) (m material, err error) {
	if cfg.Cert != "" || cfg.Key != "" {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		if err != nil {
			return m, fmt.Errorf("%s, %s: %w", cfg.Cert, cfg.Key, err)
		}
		m.own = []tls.Certificate{pair}
	}
	if cfg.CA != "" {
		if m.ca = x509.NewCertPool(); !m.ca.AppendCertsFromPEM(texts[2]) {
			return m, fmt.Errorf("%s: holds no PEM certificate", cfg.CA)
		}
	}
	return m, nil
}

// current returns what the files hold now, or held when they were last good.
func (c *certificates) current() material {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < reread {
		return c.loaded
	}
	c.looked = time.Now()
	texts, err := c.read()
	if err != nil || slices.EqualFunc(texts[:], c.texts[:], bytes.Equal) {
		return c.loaded
	}
	if m, err := c.cfg.parse(texts); err == nil { // else a file that is only half of the new pair
		c.loaded, c.texts = m, texts
	}
	return c.loaded
}

// Server returns the configuration of a gRPC server.
func (cfg TLS) Server() (*tls.Config, error) {
	files, err := newCertificates(cfg)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := files.current()
			one := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: now.own, NextProtos: []string{"h2"}}
			if cfg.CA != "" {
				one.ClientAuth, one.ClientCAs = tls.RequireAndVerifyClientCert, now.ca
			}
			if cfg.SAN != "" {
				one.VerifyConnection = func(s tls.ConnectionState) error { return named(s.PeerCertificates[0], cfg.SAN) }
			}
			return one, nil
		},
	}, nil
}

// Client returns the configuration of a client of the server at host.
func (cfg TLS) Client(host string) (*tls.Config, error) {
	files, err := newCertificates(cfg)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: host,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if own := files.current().own; len(own) > 0 {
				return &own[0], nil
			}
			return new(tls.Certificate), nil
		},
		// Verified below: only there the certificates of now are known, and the name that is wanted.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			rest := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				rest.AddCert(c)
			}
			leaf := s.PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: files.current().ca, Intermediates: rest}); err != nil {
				return err
			}
			if cfg.AnyHost {
				return nil
			}
			return named(leaf, cmp.Or(cfg.SAN, host))
		},
	}, nil
}

// named reports a certificate that does not have the name: as host, address or URI.
func named(c *x509.Certificate, name string) error {
	for _, u := range c.URIs {
		if u.String() == name {
			return nil
		}
	}
	return c.VerifyHostname(name)
}
