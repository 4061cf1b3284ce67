package records

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/penstock-data/penstock/internal/etcdtest"
	"github.com/penstock-data/penstock/internal/fault"
)

func TestAddress(t *testing.T) {
	for store, byTLS := range map[string]bool{"etcd://a:1, 10.0.0.1:2379,[::1]:3": false, "etcds://a:1,10.0.0.1:2379,[::1]:3": true} {
		got, secure, err := Address(store)
		if want := []string{"a:1", "10.0.0.1:2379", "[::1]:3"}; err != nil || !slices.Equal(got, want) || secure != byTLS {
			t.Fatalf("%q, %v, %v", got, secure, err)
		}
	}
	for _, s := range []string{"", "etcd://", "a:1", "http://a:1", "https://a:1", "etcd://a", "etcd://a:1,", "etcd://:1", "etcds://a:1/x", "etcd://u:secret@a:1", "https://u:secret@a:1"} {
		_, _, err := Address(s)
		wantCode(t, err, fault.Invalid)
		has(t, err, "etcd://host:port,host:port")
		if strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
}

func TestSecure(t *testing.T) {
	cfg, err := secure([]string{"a:1"}, &tls.Config{}, false)
	if err != nil || cfg.MinVersion != tls.VersionTLS12 {
		t.Fatal(cfg, err)
	}
	for _, e := range []string{"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:///x"} {
		if cfg, err := secure([]string{e}, nil, false); err != nil || cfg != nil {
			t.Fatal(e, cfg, err)
		}
	}
	if _, err := secure([]string{"127.0.0.1:1", "10.0.0.1:2379"}, nil, false); err == nil {
		t.Fatal("plain to another machine")
	} else {
		wantCode(t, err, fault.Invalid)
		has(t, err, "the store at 10.0.0.1:2379 is on another machine", "etcds://", "--store-insecure")
	}
	if cfg, err := secure([]string{"10.0.0.1:2379"}, nil, true); err != nil || cfg != nil {
		t.Fatal(cfg, err)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := etcdtest.Certify(t, dir)
	for _, x := range []struct{ ca, cert, key, want string }{
		{"", cert, "", "give both files, or none"},
		{"", "", key, "give both files, or none"},
		{filepath.Join(dir, "none"), "", "", "the CA of the store"},
		{key, "", "", "no certificate (PEM) in " + key},
		{cert, key, cert, "every user here may use it (mode 0644): chmod o= it"},
		{cert, key, key, "the client certificate for the store"},
		{cert, cert, filepath.Join(dir, "none"), "a secret of the store"},
	} {
		if err := os.Chmod(cert, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := TLSFiles(x.ca, x.cert, x.key)
		has(t, err, x.want)
	}
	cfg, err := TLSFiles(cert, cert, key)
	if err != nil {
		t.Fatal(err)
	}
	first, err := cfg.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	etcdtest.Certify(t, dir) // another one is put there
	second, err := cfg.GetClientCertificate(nil)
	if err != nil || slices.Equal(first.Certificate[0], second.Certificate[0]) {
		t.Fatal("the first certificate is used on", err)
	}
}

// User and password, and certificates, of an external etcd.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := etcdtest.Certify(t, dir)
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert.Leaf)
	c := start(t, "etcd", "RECORDS_DIR="+t.TempDir(), "RECORDS_TLS="+dir)
	opts := Options{Endpoints: []string{c.line(t)}, TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}, Timeout: 2 * time.Second}
	s := open(t, opts)
	ctx := within(t)
	if _, err := s.Next(ctx, "n"); err != nil {
		t.Fatal(err)
	}
	refused := func(o Options, texts ...string) {
		t.Helper()
		o.Timeout = 500 * time.Millisecond
		_, err := Open(ctx, o)
		wantCode(t, err, fault.Unavailable)
		has(t, err, append(texts, o.Endpoints[0])...)
	}
	at := opts.Endpoints
	refused(Options{Endpoints: at, TLS: &tls.Config{RootCAs: pool}}, "refuses the connection", "--store-cert")
	refused(Options{Endpoints: at, TLS: &tls.Config{RootCAs: x509.NewCertPool(), Certificates: opts.TLS.Certificates}}, "of another CA", "--store-ca")
	refused(Options{Endpoints: []string{strings.Replace(at[0], "127.0.0.1", "localhost", 1)}, TLS: opts.TLS}, "for another name")
	refused(Options{Endpoints: at}, "speaks TLS: write etcds://")
	refused(Options{Endpoints: at, Username: "root", Password: "x"}, "speaks TLS: write etcds://") // it asks for a token first
	_, plain := onPort(t)
	refused(Options{Endpoints: []string{plain}, TLS: opts.TLS}, "does not speak TLS", "write etcd://")
	refused(Options{Endpoints: []string{"127.0.0.1:1"}, TLS: opts.TLS}, "is not there", "connection refused")
	if s := open(t, Options{Endpoints: []string{plain}, Username: "root", Password: "x"}); s == nil { // it has no users: it does not mind
		t.Fatal()
	}

	for _, f := range []func() error{
		func() error { _, err := s.client.RoleAdd(ctx, "root"); return err },
		func() error { _, err := s.client.UserAdd(ctx, "root", "secret"); return err },
		func() error { _, err := s.client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := s.client.UserAdd(ctx, "nobody", "none"); return err },
		func() error { _, err := s.client.UserAdd(ctx, "head", "of a"); return err },
		func() error { _, err := s.client.RoleAdd(ctx, "a"); return err },
		func() error {
			_, err := s.client.RoleGrantPermission(ctx, "a", "/a/", clientv3.GetPrefixRangeEnd("/a/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := s.client.UserGrantRole(ctx, "head", "a"); return err },
		func() error { _, err := s.client.AuthEnable(ctx); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = Open(ctx, opts) // the certificate names no user
	wantCode(t, err, fault.Denied)
	has(t, err, "check user, password and client certificate")
	opts.Username, opts.Password = "root", "wrong"
	_, err = Open(ctx, opts)
	wantCode(t, err, fault.Denied)
	opts.Username, opts.Password = "nobody", "none"
	_, err = Open(ctx, opts)
	wantCode(t, err, fault.Denied)
	opts.Username, opts.Password = "root", "secret"
	s = open(t, opts)
	if n, err := s.Next(ctx, "n"); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	opts.Username, opts.Password, opts.Prefix = "head", "of a", "/a/"
	s = open(t, opts)
	for _, f := range []func(*testing.T, *Store){testTxn, testSequence, testList, testWatch, testLease} { // a user needs nothing outside of the prefix
		f(t, s)
	}
	opts.Prefix = "/b/"
	_, err = Open(ctx, opts)
	wantCode(t, err, fault.Denied)
	has(t, err, "read and write below /b/")
}
