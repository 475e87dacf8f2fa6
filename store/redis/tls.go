package redis

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles name how servers are verified, and how they verify this process.
type TLSFiles struct {
	CA         string // a file of PEM certificates that the servers' are signed with; empty: the system's
	Cert, Key  string // files with this process's certificate and key, for servers that ask for one; both or none
	ServerName string // the name in the servers' certificates; empty: the host that is connected to
}

// Config reads the files. Certificate and key are read again for each connection, so that they can be renewed without a
// restart; the certificate authorities are not. The error names the file.
func (f TLSFiles) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("redis store: the certificate authorities cannot be read: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("redis store: %s holds no certificate in PEM", f.CA)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("redis store: a client certificate needs both its file and that of its key")
	}
	if f.Cert != "" {
		if _, err := f.keyPair(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.keyPair() }
	}
	return c, nil
}

func (f TLSFiles) keyPair() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("redis store: the client certificate of %s and %s cannot be used: %w", f.Cert, f.Key, err)
	}
	return &pair, nil
}
