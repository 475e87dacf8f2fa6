package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificates name files of a private certificate authority, of a server's certificate for loopback that it signed, and
// of a client's.
type Certificates struct {
	CA                    string
	Cert, Key             string
	ClientCert, ClientKey string
}

// MakeCertificates makes an authority and both certificates in a directory. They are valid for a day.
func MakeCertificates(dir string) (c Certificates, err error) {
	c = Certificates{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "server.pem"), Key: filepath.Join(dir, "server.key"),
		ClientCert: filepath.Join(dir, "client.pem"), ClientKey: filepath.Join(dir, "client.key"),
	}
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := sign(authority, authority, nil, c.CA, "")
	if err != nil {
		return c, err
	}
	_, err = sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, authority, caKey, c.Cert, c.Key)
	if err != nil {
		return c, err
	}
	_, err = sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority, caKey, c.ClientCert, c.ClientKey)
	return c, err
}

// sign writes a certificate and its new key; without a parent's key it signs itself.
func sign(cert, parent *x509.Certificate, parentKey *ecdsa.PrivateKey, certFile, keyFile string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if parentKey == nil {
		parentKey = key
	}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, err
	}
	errs := []error{writePEM(certFile, "CERTIFICATE", der)}
	if keyFile != "" {
		text, err := x509.MarshalECPrivateKey(key)
		errs = append(errs, err, writePEM(keyFile, "EC PRIVATE KEY", text))
	}
	return key, errors.Join(errs...)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// Client returns how a client with the client's certificate connects.
func (c Certificates) Client() (*tls.Config, error) {
	text, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	if !config.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", c.CA)
	}
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	config.Certificates = []tls.Certificate{pair}
	return config, err
}
