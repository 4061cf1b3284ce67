// Package etcdtest is an external store of a cluster, as somebody else would run it.
package etcdtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// Start starts one in this process, which is ready when Start returns, with its records in the folder dir. It is for clients at a socket, or, where that is "", at a port of 127.0.0.1, which its Clients[0] says. With
// certs, a folder as Certify makes it, it is at a port by TLS, for clients with a certificate. Close it.
func Start(ctx context.Context, dir, socket, certs string) (*embed.Etcd, error) {
	cfg, client := embed.NewConfig(), url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	switch {
	case certs != "":
		client.Scheme = "https"
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
		cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = filepath.Join(certs, "cert.pem"), true
	case socket != "":
		client = url.URL{Scheme: "unix", Path: socket}
	}
	cfg.Name, cfg.Dir, cfg.LogLevel, cfg.BcryptCost = "external", dir, "error", 4
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{{Scheme: "unix", Host: "external"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case <-ctx.Done():
		e.Close()
		return nil, ctx.Err()
	}
}

// Certify makes a certificate that is its own CA, for server and client, and its key: cert.pem and key.pem in dir.
func Certify(t testing.TB, dir string) (cert, key string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "store"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	must(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	must(err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	must(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}
