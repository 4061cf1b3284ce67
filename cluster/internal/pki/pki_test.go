package pki

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/faulttest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var wants = faulttest.Wants

func newCA(t testing.TB, cluster string) *CA {
	t.Helper()
	return must(OpenCA(filepath.Join(t.TempDir(), "ca"), cluster, nil))
}

func newNode(t testing.TB, ca *CA, id string, epoch uint64) *tls.Certificate {
	t.Helper()
	key := must(NewKey())
	return must(Assemble(must(ca.IssueNode(must(NewCSR(key)), id, epoch)), key, ca.Pin(), Node))
}

func TestCAIsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "head")
	const n = 16
	pins := make([]Pin, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { pins[i] = must(OpenCA(dir, "c1", nil)).Pin() })
	}
	wg.Wait()
	for _, p := range pins {
		if p != pins[0] {
			t.Fatal("two heads made two authorities")
		}
	}
	list := must(os.ReadDir(dir))
	if len(list) != 1 || list[0].Name() != fileCA {
		t.Fatalf("left in the folder: %v", list)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, fileCA): 0o600} {
		if got := must(os.Stat(path)).Mode().Perm(); got != mode {
			t.Errorf("%s has mode %o, want %o", path, got, mode)
		}
	}
}

func TestLoadCA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "head")
	_, err := LoadCA(dir, "c1", Pin{}, nil)
	wants(t, err, fault.NotFound, "it is not here", dir)
	if _, err := os.Lstat(dir); err == nil {
		t.Error("it made the folder")
	}
	ca := must(OpenCA(dir, "c1", nil))
	if got := must(LoadCA(dir, "c1", ca.Pin(), nil)); got.Pin() != ca.Pin() {
		t.Error("another")
	}
	_, err = LoadCA(dir, "c1", newCA(t, "c1").Pin(), nil)
	wants(t, err, fault.Invalid, "not the one that cluster c1 has")
	b := must(json.Marshal(map[string]Pin{"pin": ca.Pin()}))
	var back map[string]Pin
	if err := json.Unmarshal(b, &back); err != nil || back["pin"] != ca.Pin() {
		t.Errorf("%s: %v", b, err)
	}
	wants(t, new(Pin).UnmarshalText([]byte("x")), fault.Invalid, "no pin")
}

func TestCAIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "head")
	path := filepath.Join(dir, fileCA)
	must(OpenCA(dir, "c1", nil))
	whole := must(os.ReadFile(path))

	_, err := OpenCA(dir, "c2", nil)
	wants(t, err, fault.Invalid, "penstock c1", "c2")
	_, err = OpenCA(dir, "C 1", nil)
	wants(t, err, fault.Invalid, "no id of a cluster")

	os.Chmod(path, 0o640)
	_, err = OpenCA(dir, "c1", nil)
	wants(t, err, fault.Denied, "0640", "chmod 600")
	os.Chmod(path, 0o600)
	os.Chmod(dir, 0o755)
	_, err = OpenCA(dir, "c1", nil)
	wants(t, err, fault.Denied, "0755", "chmod 700")
	os.Chmod(dir, 0o700)

	for n := 0; n < len(whole)-30; n += 29 {
		os.WriteFile(path, whole[:n], 0o600)
		if _, err := OpenCA(dir, "c1", nil); fault.CodeOf(err) != fault.Corrupt {
			t.Fatalf("the first %d bytes of the file: %v", n, err)
		}
	}
	other := must(marshal([][]byte{newCA(t, "c1").Certificate().Raw}, must(NewKey())))
	os.WriteFile(path, other, 0o600)
	_, err = OpenCA(dir, "c1", nil)
	wants(t, err, fault.Corrupt, "the key is not the certificate's")
	os.Remove(path)
	os.Symlink("elsewhere", path)
	_, err = OpenCA(dir, "c1", nil)
	wants(t, err, fault.Denied, "not a regular file")
}

func TestRequests(t *testing.T) {
	ca := newCA(t, "c1")
	csr := func(key crypto.Signer, tmpl x509.CertificateRequest) []byte {
		return must(x509.CreateCertificateRequest(rand.Reader, &tmpl, key))
	}
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	p384 := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	greedy := x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "root"}, DNSNames: []string{"bank.example"}, IPAddresses: []net.IP{{1, 2, 3, 4}}, EmailAddresses: []string{"a@b"},
		URIs:            []*url.URL{must(url.Parse("penstock://c1/head")), must(url.Parse("penstock://c1/node/n1/9"))},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}},
	}
	for _, key := range []crypto.Signer{ed, p384, must(NewKey())} {
		chain, err := ca.IssueNode(csr(key, greedy), "n7", 3)
		if err != nil {
			t.Fatal(err)
		}
		c := must(x509.ParseCertificate(chain[0]))
		if c.IsCA || len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses) != 0 || c.Subject.String() != "" || len(c.URIs) != 1 || c.URIs[0].String() != "penstock://c1/node/n7/3" {
			t.Errorf("the request's names got into the certificate: %v %v %v CA %v", c.Subject, c.DNSNames, c.URIs, c.IsCA)
		}
		if d := c.NotAfter.Sub(c.NotBefore); d != Lifetime+Early {
			t.Errorf("good for %v", d)
		}
		must(Assemble(chain, key, ca.Pin(), Node))
		_, err = Assemble(chain, must(NewKey()), ca.Pin(), Node)
		wants(t, err, fault.Denied, "another key")
		_, err = Assemble(chain, key, newCA(t, "c1").Pin(), Node)
		wants(t, err, fault.Denied, "another authority")
		_, err = Assemble([][]byte{must(newCA(t, "c1").IssueNode(csr(key, greedy), "n7", 3))[0], chain[1]}, key, ca.Pin(), Node)
		wants(t, err, fault.Denied, "not signed by the cluster's authority")
	}
	good := csr(must(NewKey()), x509.CertificateRequest{})
	forged := append([]byte(nil), good...)
	forged[len(forged)-3] ^= 1
	for what, b := range map[string][]byte{
		"RSA": csr(must(rsa.GenerateKey(rand.Reader, 2048)), x509.CertificateRequest{}), "P-521": csr(must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)), x509.CertificateRequest{}),
		"P-224": csr(must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)), x509.CertificateRequest{}), "empty": nil, "short": good[:len(good)/2], "forged": forged, "long": make([]byte, maxCSR+1),
	} {
		if _, err := ca.IssueNode(b, "n7", 1); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := KeyOf(b); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("key of %s: %v", what, err)
		}
	}
	for _, id := range []string{"", "n/7", "N7", "n7/3", "..", strings.Repeat("n", 64)} {
		if _, err := ca.IssueNode(good, id, 1); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("node %q: %v", id, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	for uri, ok := range map[string]bool{
		"penstock://c1/head": true, "penstock://c1/node/n7/0": true, "penstock://c-1/node/n7/18446744073709551615": true,
		"penstock://c1/node/n7": false, "penstock://c1/node/n7/": false, "penstock://c1/node/n7/-1": false, "penstock://c1/node/n7/01": false, "penstock://c1/node//1": false,
		"penstock://c1/node/n7/18446744073709551616": false, "https://c1/head": false, "penstock://c1:1/head": false, "penstock://u@c1/head": false, "penstock://c1/head?x": false,
		"penstock://c1/head#x": false, "penstock:///head": false, "penstock://c1/head/": false, "penstock://c1/Head": false, "penstock://C1/head": false, "penstock://c1/node/n%37/1": false,
		"penstock:c1/head": false, "penstock://c1/node/n7/1/2": false, "penstock://c1//head": false,
	} {
		u := must(url.Parse(uri))
		id, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{u}})
		if (err == nil) != ok {
			t.Errorf("%s: %v %v", uri, id, err)
		}
		if err == nil && id.String() != uri {
			t.Errorf("%s is written as %s", uri, id)
		}
		if _, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{u, u}}); err == nil {
			t.Errorf("%s twice is somebody", uri)
		}
	}
	if _, err := IdentityOf(&x509.Certificate{}); err == nil {
		t.Error("a certificate without a URI is somebody")
	}
}

// handshake runs both sides, sends a byte each way, and gives the errors of both.
func handshake(server, client *tls.Config) (state tls.ConnectionState, s, c error) {
	a, b := bufferedPipe()
	var wg sync.WaitGroup
	side := func(conn *tls.Conn, err *error) {
		defer conn.NetConn().Close()
		if *err = conn.Handshake(); *err != nil {
			return
		}
		var wrote sync.WaitGroup
		wrote.Go(func() { conn.Write([]byte{1}) })
		_, *err = io.ReadFull(conn, make([]byte, 1))
		wrote.Wait()
	}
	srv := tls.Server(a, server)
	wg.Go(func() { side(srv, &s) })
	wg.Go(func() { side(tls.Client(b, client), &c) })
	wg.Wait()
	return srv.ConnectionState(), s, c
}

// half is one direction of a connection that keeps what was written: with net.Pipe both sides may write and none read.
type half struct {
	mu   sync.Mutex
	cond *sync.Cond
	buf  []byte
	end  bool
}

func newHalf() *half {
	h := &half{}
	h.cond = sync.NewCond(&h.mu)
	return h
}

type end struct {
	net.Conn
	in, out *half
}

func bufferedPipe() (a, b *end) {
	x, y := newHalf(), newHalf()
	return &end{in: x, out: y}, &end{in: y, out: x}
}

func (e *end) Read(b []byte) (int, error) {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	for len(e.in.buf) == 0 && !e.in.end {
		e.in.cond.Wait()
	}
	if len(e.in.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(b, e.in.buf)
	e.in.buf = e.in.buf[n:]
	return n, nil
}

func (e *end) Write(b []byte) (int, error) {
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	if e.out.end {
		return 0, io.ErrClosedPipe
	}
	e.out.buf = append(e.out.buf, b...)
	e.out.cond.Broadcast()
	return len(b), nil
}

func (e *end) Close() error {
	for _, h := range []*half{e.in, e.out} {
		h.mu.Lock()
		h.end = true
		h.cond.Broadcast()
		h.mu.Unlock()
	}
	return nil
}

func (e *end) SetDeadline(time.Time) error      { return nil }
func (e *end) SetReadDeadline(time.Time) error  { return nil }
func (e *end) SetWriteDeadline(time.Time) error { return nil }

// sign makes any certificate that the authority could be made to sign.
func sign(t *testing.T, ca *CA, tmpl x509.Certificate, id Identity) *tls.Certificate {
	t.Helper()
	key := must(NewKey())
	tmpl.SerialNumber = big.NewInt(5)
	if id.Cluster != "" {
		tmpl.URIs = []*url.URL{id.uri()}
	}
	der := must(x509.CreateCertificate(rand.Reader, &tmpl, ca.Certificate(), key.Public(), ca.is.Load().key))
	return &tls.Certificate{Certificate: [][]byte{der, ca.Certificate().Raw}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))}
}

func TestWhoIsBelieved(t *testing.T) {
	ca, other := newCA(t, "c1"), newCA(t, "c1")
	now := time.Now()
	valid := x509.Certificate{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	as := func(tmpl x509.Certificate, usage ...x509.ExtKeyUsage) x509.Certificate {
		tmpl.ExtKeyUsage = usage
		return tmpl
	}
	node := Identity{Cluster: "c1", Role: Node, Node: "n7", Epoch: 1}
	head := Identity{Cluster: "c1", Role: Head}
	client, serve := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	past, future := valid, valid
	past.NotAfter = now.Add(-time.Minute)
	future.NotBefore = now.Add(time.Minute)
	good := NewHolder(must(ca.IssueHead("localhost:1")), nil)

	t.Run("clients", func(t *testing.T) {
		for what, c := range map[string]struct {
			cert *tls.Certificate
			ok   bool
		}{
			"nothing":                         {nil, true},
			"node":                            {newNode(t, ca, "n7", 4), true},
			"node of another authority":       {newNode(t, other, "n7", 4), false},
			"ended":                           {sign(t, ca, as(past, client), node), false},
			"not yet good":                    {sign(t, ca, as(future, client), node), false},
			"head":                            {must(ca.IssueHead("localhost")), false},
			"head for clients":                {sign(t, ca, as(valid, client), head), false},
			"node for servers":                {sign(t, ca, as(valid, serve), node), false},
			"nobody":                          {sign(t, ca, as(valid, client), Identity{}), false},
			"another cluster":                 {sign(t, ca, as(valid, client), Identity{Cluster: "c2", Role: Node, Node: "n7"}), false},
			"another's, with our root in tow": {&tls.Certificate{Certificate: [][]byte{newNode(t, other, "n7", 1).Certificate[0], ca.Certificate().Raw}, PrivateKey: must(NewKey())}, false},
			"ours, without its key":           {&tls.Certificate{Certificate: newNode(t, ca, "n7", 1).Certificate, PrivateKey: must(NewKey())}, false},
			"the authority's own certificate": {&tls.Certificate{Certificate: [][]byte{ca.Certificate().Raw}, PrivateKey: ca.is.Load().key}, false},
			"signed by a node":                {signedByNode(t, ca, node), false},
		} {
			var h *Holder
			if c.cert != nil {
				h = NewHolder(c.cert, nil)
			}
			state, s, e := handshake(ServerTLS(good, ca), ClientTLS(h, ca.Pin, nil))
			if ok := s == nil && e == nil; ok != c.ok {
				t.Errorf("%s: server %v, client %v", what, s, e)
			}
			if !c.ok && s == nil {
				t.Errorf("%s: the server saw nothing wrong; client: %v", what, e)
			}
			if c.ok && state.Version != tls.VersionTLS13 {
				t.Errorf("%s: TLS %x", what, state.Version)
			}
			if id, err := PeerNode(state); what == "node" && (err != nil || id.Node != "n7" || id.Epoch != 4 || id.Cluster != "c1") {
				t.Errorf("the node is %+v, %v", id, err)
			} else if what == "nothing" && err == nil {
				t.Errorf("nothing is %v", id)
			}
		}
	})
	t.Run("servers", func(t *testing.T) {
		mixed := func(leaf *tls.Certificate) *tls.Certificate { // the true authority's certificate is no secret
			return &tls.Certificate{Certificate: [][]byte{leaf.Certificate[0], ca.Certificate().Raw}, PrivateKey: leaf.PrivateKey}
		}
		for what, c := range map[string]struct {
			cert *tls.Certificate
			text string
		}{
			"head":                                {must(ca.IssueHead("elsewhere")), ""},
			"head of another authority":           {must(other.IssueHead("localhost")), "authority's hash differs"},
			"another's head with our root in tow": {mixed(must(other.IssueHead("localhost"))), "not good"},
			"our root first":                      {&tls.Certificate{Certificate: [][]byte{ca.Certificate().Raw, must(other.IssueHead()).Certificate[0]}, PrivateKey: must(NewKey())}, ""},
			"a node that serves":                  {newNode(t, ca, "n7", 1), "not good"},
			"node with a head's usage":            {sign(t, ca, as(valid, serve), node), "not a head"},
			"nobody with a head's usage":          {sign(t, ca, as(valid, serve), Identity{}), "names nobody"},
			"without the authority's certificate": {&tls.Certificate{Certificate: must(ca.IssueHead()).Certificate[:1], PrivateKey: must(ca.IssueHead()).PrivateKey}, ""},
			"ended":                               {sign(t, ca, as(past, serve), head), "ahead of the head's"},
			"not yet good":                        {sign(t, ca, as(future, serve), head), "this machine's clock is at least 11m behind the head's"},
			"signed by a node":                    {signedByNode(t, ca, head), "not good"},
			"the authority itself":                {&tls.Certificate{Certificate: [][]byte{ca.Certificate().Raw, ca.Certificate().Raw}, PrivateKey: ca.is.Load().key}, ""},
		} {
			// The server takes anybody: only the client's judgement counts.
			server := &tls.Config{Certificates: []tls.Certificate{*c.cert}, MinVersion: tls.VersionTLS13}
			_, _, e := handshake(server, ClientTLS(nil, ca.Pin, nil))
			if ok := e == nil; ok != (what == "head") {
				t.Errorf("%s: %v", what, e)
			} else if e != nil && !strings.Contains(e.Error(), c.text) {
				t.Errorf("%s: the error does not say %q: %v", what, c.text, e)
			}
			if what == "head of another authority" && (!errors.Is(e, ErrPin) || fault.CodeOf(e) != fault.Denied) {
				t.Errorf("not ErrPin: %v", e)
			}
		}
	})
	t.Run("older TLS", func(t *testing.T) {
		old := ClientTLS(nil, ca.Pin, nil)
		old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if _, s, _ := handshake(ServerTLS(good, ca), old); s == nil {
			t.Error("the server speaks TLS 1.2")
		}
		if _, _, c := handshake(&tls.Config{Certificates: []tls.Certificate{*good.Certificate()}, MaxVersion: tls.VersionTLS12}, ClientTLS(nil, ca.Pin, nil)); c == nil {
			t.Error("the client speaks TLS 1.2")
		}
	})
	t.Run("every handshake in full", func(t *testing.T) {
		c := ClientTLS(nil, ca.Pin, nil)
		c.ClientSessionCache, c.ServerName = tls.NewLRUClientSessionCache(4), "head"
		server := ServerTLS(good, ca)
		for range 2 {
			if state, _, e := handshake(server, c); e != nil || state.DidResume {
				t.Errorf("%v, resumed %v", e, state.DidResume)
			}
		}
	})
}

// signedByNode is a certificate that a node made with its own key.
func signedByNode(t *testing.T, ca *CA, id Identity) *tls.Certificate {
	n := newNode(t, ca, "n9", 1)
	key := must(NewKey())
	der := must(x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(9), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{id.uri()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, n.Leaf, key.Public(), n.PrivateKey))
	return &tls.Certificate{Certificate: append([][]byte{der}, n.Certificate...), PrivateKey: key}
}

func TestHeadNames(t *testing.T) {
	c := must(newCA(t, "c1").IssueHead("0.0.0.0:7777", "[::]:1", ":1", "", "head.example:7777", "10.0.0.1", "[fd00::1]:2", "plain")).Leaf
	if got := strings.Join(c.DNSNames, " "); got != "head.example plain" {
		t.Errorf("names %q", got)
	}
	if len(c.IPAddresses) != 2 || !c.IPAddresses[0].Equal(net.IPv4(10, 0, 0, 1)) || !c.IPAddresses[1].Equal(net.ParseIP("fd00::1")) {
		t.Errorf("addresses %v", c.IPAddresses)
	}
	_, err := newCA(t, "c1").IssueHead("bad name\x00é")
	wants(t, err, fault.Invalid)
}

// Certificates of both sides are replaced for three days while connections are made and one stays.
func TestRenewal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca := must(OpenCA(filepath.Join(dir, "ca"), "c1", nil))
		ctx, cancel := context.WithCancel(t.Context())
		quiet := slog.New(slog.DiscardHandler)
		head := NewHolder(must(ca.IssueHead("h")), nil)
		node := NewHolder(newNode(t, ca, "n7", 1), nil)
		var renewed, failed int
		var wg sync.WaitGroup
		wg.Go(func() {
			head.Keep(ctx, func(context.Context) (*tls.Certificate, error) { return ca.IssueHead("h") }, quiet)
		})
		wg.Go(func() {
			node.Keep(ctx, func(context.Context) (*tls.Certificate, error) {
				if failed < 12 { // the head is away for a while, at the first renewal
					failed++
					return nil, fault.New(fault.Unavailable, "away")
				}
				renewed++
				return newNode(t, ca, "n7", uint64(1+renewed)), nil
			}, quiet)
		})
		server, client := ServerTLS(head, ca), ClientTLS(node, ca.Pin, nil)
		first := *head.Certificate()
		for range 72 {
			time.Sleep(time.Hour)
			if _, s, c := handshake(server, client); s != nil || c != nil {
				t.Fatalf("at %v: server %v, client %v", time.Now(), s, c)
			}
			for _, h := range []*Holder{head, node} {
				if left := time.Until(h.Certificate().Leaf.NotAfter); left < 6*time.Hour {
					t.Fatalf("only %v left of a certificate", left)
				}
			}
		}
		if renewed != 4 || failed != 12 {
			t.Errorf("renewed %d times after %d failures", renewed, failed)
		}
		old := server.Clone()
		old.GetConfigForClient = nil
		old.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &first, nil }
		_, _, c := handshake(old, client)
		wants(t, c, fault.Denied, "clock is at least 48h0m ahead")
		cancel()
		wg.Wait()
	})
}

// A machine that slept, or whose clock was set: the next look sees it.
func TestRenewalAfterAJump(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var jump time.Duration
		now := func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(jump) }
		ca := must(OpenCA(filepath.Join(dir, "ca"), "c1", now))
		h := NewHolder(must(ca.IssueHead()), now)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			h.Keep(ctx, func(context.Context) (*tls.Certificate, error) { return ca.IssueHead() }, slog.New(slog.DiscardHandler))
		})
		synctest.Wait()
		mu.Lock()
		jump = 20 * time.Hour
		mu.Unlock()
		time.Sleep(lookEvery + time.Second)
		if d := h.Certificate().Leaf.NotAfter.Sub(now()); d < 23*time.Hour {
			t.Errorf("%v left", d)
		}
		cancel()
		wg.Wait()
	})
}

func TestClock(t *testing.T) {
	now := time.Now()
	for d, text := range map[time.Duration]string{
		12 * time.Minute: "this machine's clock is 12m behind the head's", -3*time.Hour - 5*time.Minute: "this machine's clock is 3h5m ahead of the head's",
		0: "", MaxSkew: "", -MaxSkew: "", 10 * time.Minute: "10m behind",
	} {
		err := CheckClock(now, now.Add(d), "the head's")
		if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v", d, err)
		}
	}
	if got := round(40 * time.Second); got != "40s" {
		t.Error(got)
	}
}

func TestSaveAndLoad(t *testing.T) {
	ca := newCA(t, "c1")
	dir := filepath.Join(t.TempDir(), "node")
	os.Mkdir(dir, 0o700)
	path := filepath.Join(dir, "node.pem")
	_, err := Load(path, Node)
	wants(t, err, fault.NotFound)
	for epoch := range uint64(3) { // in place of what is there
		n := newNode(t, ca, "n7", epoch)
		if err := Save(path, n); err != nil {
			t.Fatal(err)
		}
		got := must(Load(path, Node))
		if id := must(IdentityOf(got.Leaf)); id.Epoch != epoch || must(os.Stat(path)).Mode().Perm() != 0o600 {
			t.Errorf("loaded %v", id)
		}
		if _, s, c := handshake(ServerTLS(NewHolder(must(ca.IssueHead()), nil), ca), ClientTLS(NewHolder(got, nil), ca.Pin, nil)); s != nil || c != nil {
			t.Error(s, c)
		}
	}
	if list := must(os.ReadDir(dir)); len(list) != 1 {
		t.Errorf("left: %v", list)
	}
	whole := must(os.ReadFile(path))
	for n := 0; n < len(whole)-30; n += 41 {
		os.WriteFile(path, whole[:n], 0o600)
		_, err := Load(path, Node)
		wants(t, err, fault.Corrupt)
	}
	os.Chmod(dir, 0o750)
	_, err = Load(path, Node)
	wants(t, err, fault.Denied, "chmod 700")
	wants(t, Save(path, newNode(t, ca, "n7", 1)), fault.Denied, "chmod 700")
}

// TestKeepUnstored: a certificate that could not be stored is used, and another one is asked for until one is stored.
func TestKeepUnstored(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca := must(OpenCA(filepath.Join(dir, "ca"), "c1", nil))
		h := NewHolder(newNode(t, ca, "n7", 1), nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		asked := 0
		wg.Go(func() {
			h.Keep(ctx, func(context.Context) (*tls.Certificate, error) {
				asked++
				c := newNode(t, ca, "n7", uint64(1+asked))
				if asked <= 3 {
					return c, fault.New(fault.Exhausted, "no space left")
				}
				return c, nil
			}, slog.New(slog.DiscardHandler))
		})
		time.Sleep(time.Until(h.Due()) + lookEvery)
		synctest.Wait()
		if left := time.Until(h.Certificate().Leaf.NotAfter); asked != 4 || left < 23*time.Hour {
			t.Errorf("asked %d times, %v left", asked, left)
		}
		cancel()
		wg.Wait()
	})
}
