package cluster

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pki"
)

// said is a log that tells of a line.
type said struct {
	text string
	c    chan struct{}
}

func (w said) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.text) {
		select {
		case w.c <- struct{}{}:
		default:
		}
	}
	return len(b), nil
}

// A node whose certificate is due gets another one as it runs, for a new key; what it runs goes on, and its next connection shows the new one.
func TestRenewed(t *testing.T) {
	c := newCluster(t)
	cfg := c.node("a", Resources{CPUs: 2})
	path := filepath.Join(cfg.Dir, "node.pem")
	must(t, c.join("a", Resources{CPUs: 2}).Close())
	// Its first certificate, as it is 20 hours later.
	first, err := pki.Load(path, pki.Node)
	must(t, err)
	ca, err := tls.LoadX509KeyPair(filepath.Join(c.cfg.Dir, "ca", "ca.pem"), filepath.Join(c.cfg.Dir, "ca", "ca.pem"))
	must(t, err)
	old := *first.Leaf
	old.SerialNumber, old.NotBefore, old.NotAfter = big.NewInt(20), old.NotBefore.Add(-20*time.Hour), old.NotAfter.Add(-20*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, &old, ca.Leaf, first.PrivateKey.(crypto.Signer).Public(), ca.PrivateKey)
	must(t, err)
	must(t, pki.Save(path, &tls.Certificate{Certificate: [][]byte{der, ca.Certificate[0]}, PrivateKey: first.PrivateKey}))

	renewed := said{"certificate renewed", make(chan struct{}, 1)}
	cfg.Log = slog.New(slog.NewTextHandler(renewed, nil))
	n, err := Join(c.ctx(), c.addr, "", cfg)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	id := c.submit(sh("echo began; while [ ! -e " + filepath.Join(c.dir, "go") + " ]; do sleep 0.02; done"))
	select {
	case <-renewed.c:
	case <-c.ctx().Done():
		t.Fatal("its certificate is not renewed")
	}
	now, err := pki.Load(path, pki.Node)
	must(t, err)
	was, err := pki.IdentityOf(&old)
	must(t, err)
	is, err := pki.IdentityOf(now.Leaf)
	must(t, err)
	if now.Leaf.Equal(first.Leaf) || now.Leaf.SerialNumber.Cmp(old.SerialNumber) == 0 || now.Leaf.NotAfter.Sub(old.NotAfter) < 19*time.Hour || is.Node != "n1" || is.Cluster != was.Cluster || first.Leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(now.Leaf.PublicKey) {
		t.Errorf("from %v, until %v, to %v, until %v", was, old.NotAfter, is, now.Leaf.NotAfter)
	}
	c.until(id, func(s *JobStatus) bool { return s.State == "running" })

	// Another in the head's place sees what the node shows when it dials again.
	c.stop()
	authority, err := pki.LoadCA(filepath.Join(c.cfg.Dir, "ca"), is.Cluster, pki.PinOfDER(ca.Certificate[0]), nil)
	must(t, err)
	own, err := authority.IssueHead(c.addr)
	must(t, err)
	l, err := net.Listen("tcp", c.addr)
	must(t, err)
	defer l.Close()
	must(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(30*time.Second)))
	var shown *x509.Certificate
	for shown == nil {
		raw, err := l.Accept()
		must(t, err)
		conn := tls.Server(raw, pki.ServerTLS(pki.NewHolder(own, nil), authority))
		if err := conn.HandshakeContext(c.ctx()); err == nil { // it may have given up
			shown = conn.ConnectionState().PeerCertificates[0]
		}
		conn.Close()
	}
	if !shown.Equal(now.Leaf) {
		t.Errorf("it shows certificate %v, of %v", shown.SerialNumber, shown.NotBefore)
	}
	l.Close()
	c.start()
	must(t, os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o644))
	c.finished(id, 1)
	c.finished(c.submit(sh("true")), 1)
}
