package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Holder has the certificate that a process shows, which is replaced while it runs.
type Holder struct {
	cert    atomic.Pointer[tls.Certificate]
	now     func() time.Time
	renewal sync.Mutex    // of one at a time: an older certificate takes no newer one's place
	at      chan struct{} // has room for one: renew at once
	changed atomic.Pointer[func()]
}

// NewHolder begins with a certificate whose Leaf is set. now is the clock; nil is time.Now.
func NewHolder(c *tls.Certificate, now func() time.Time) *Holder {
	h := &Holder{now: orNow(now), at: make(chan struct{}, 1)}
	h.cert.Store(c)
	return h
}

// Certificate is the one that handshakes show now.
func (h *Holder) Certificate() *tls.Certificate { return h.cert.Load() }

// Issuer is the authority of that one, and Believed are those that its holder believes.
func (h *Holder) Issuer() Pin     { return Issuer(h.cert.Load()) }
func (h *Holder) Believed() []Pin { return Believed(h.cert.Load()) }

// Set replaces it; connections that are there stay.
func (h *Holder) Set(c *tls.Certificate) {
	h.cert.Store(c)
	if f := h.changed.Load(); f != nil {
		(*f)()
	}
}

// OnSet has f called after each Set.
func (h *Holder) OnSet(f func()) { h.changed.Store(&f) }

// Hurry has Keep renew it now, whenever it is due.
func (h *Holder) Hurry() {
	select {
	case h.at <- struct{}{}:
	default:
	}
}

// Renew replaces it by what renew gives, which may come with an error.
func (h *Holder) Renew(ctx context.Context, renew func(context.Context) (*tls.Certificate, error)) error {
	h.renewal.Lock()
	defer h.renewal.Unlock()
	c, err := renew(ctx)
	if c != nil {
		h.Set(c)
	}
	return err
}

// Due is when the certificate is to be renewed: after two thirds of its life.
func (h *Holder) Due() time.Time {
	leaf := h.cert.Load().Leaf
	return leaf.NotAfter.Add(-(leaf.NotAfter.Sub(leaf.NotBefore) - Early) / 3)
}

const (
	lookEvery  = 10 * time.Minute // clocks are set, machines sleep: timers alone would be late
	firstRetry = 15 * time.Second
)

// Keep renews the certificate whenever it is due, and at Hurry, until ctx ends. What fails is logged and tried again, after 15 seconds at first and 10 minutes at most; a certificate that comes with an error, as it
// could not be stored, is used until then.
func (h *Holder) Keep(ctx context.Context, renew func(context.Context) (*tls.Certificate, error), log *slog.Logger) {
	retry, again := firstRetry, false
	for {
		wait := min(h.Due().Sub(h.now()), lookEvery)
		if wait <= 0 || again {
			err := h.Renew(ctx, renew)
			again = err != nil
			switch {
			case err == nil:
				retry = firstRetry
				if wait = min(h.Due().Sub(h.now()), lookEvery); wait > 0 {
					log.Info("certificate renewed", "ends", h.cert.Load().Leaf.NotAfter)
					break
				}
				err = fault.New(fault.Internal, "the new certificate is due for renewal already")
				fallthrough
			default:
				if ctx.Err() != nil {
					return
				}
				log.Warn("the certificate could not be renewed; it is tried again", "error", err, "in", retry, "ends", h.cert.Load().Leaf.NotAfter)
				wait, retry = retry, min(2*retry, lookEvery)
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-h.at:
			t.Stop()
			again = true
		case <-t.C:
		}
	}
}

// ServerTLS is the head's side: TLS 1.3, the holder's certificate; clients show a certificate of a
// node of this cluster, of an authority that is believed when they do, or none.
func ServerTLS(h *Holder, ca *CA) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Time: h.now, NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return h.cert.Load(), nil },
		ClientAuth:     tls.VerifyClientCertIfGiven, ClientCAs: ca.is.Load().roots(),
		SessionTicketsDisabled: true, // every connection shows its certificate
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			id, err := PeerNode(s)
			if err == nil && id.Cluster != ca.cluster {
				err = fault.New(fault.Denied, "the certificate is of cluster %s", id.Cluster)
			}
			return err
		},
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := c.Clone()
		now.ClientCAs = ca.is.Load().roots()
		return now, nil
	}
	return c
}

// PeerNode is the node at the other side of a connection that a server accepted.
func PeerNode(s tls.ConnectionState) (Identity, error) {
	if len(s.VerifiedChains) == 0 {
		return Identity{}, fault.New(fault.Denied, "the caller shows no certificate of this cluster")
	}
	id, err := IdentityOf(s.PeerCertificates[0])
	if err == nil && id.Role != Node {
		err = fault.New(fault.Denied, "the certificate is not a node's")
	}
	if err != nil {
		return Identity{}, err
	}
	return id, nil
}

// ClientTLS is the side of whoever calls the head: the other side must be the head of the cluster
// of pin, by its certificate's role and its authority's hash, or that of the authority that vouches
// for it. Host names are not compared: a head is known by many, and no certificate of this
// authority with that role is anybody else's. h is the certificate to show; nil: none. pin is asked
// in each handshake. now is the clock; nil is time.Now.
func ClientTLS(h *Holder, pin func() Pin, now func() time.Time) *tls.Config {
	now = orNow(now)
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Time: now, NextProtos: []string{"h2"},
		// Only what crypto/tls would check by itself, with the system's roots and the host name, is off. VerifyConnection runs in every handshake before anything is sent.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return verifyHead(s.PeerCertificates, pin(), now()) },
	}
	if h != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return h.cert.Load(), nil }
	}
	return c
}

// ErrPin is in the error of a handshake with another cluster's head, or with none at all.
var ErrPin = errors.New("it is not the head of the cluster that the token or certificate here is of (the authority's hash differs)")

// ErrReplaced is in the error of a handshake with a head that says that its authority came after
// the one that was expected, which is believed no more.
var ErrReplaced = errors.New("the cluster has replaced its authority (penstock ca), and the token or certificate here is of the one before, or an earlier one: make a new token on the head's machine (penstock token create); a node joins again with one")

func verifyHead(chain []*x509.Certificate, pin Pin, now time.Time) error {
	if len(chain) == 0 {
		return fault.New(fault.Denied, "the other side shows no certificate")
	}
	leaf, others := chain[0], chain[1:]
	is := func(c *x509.Certificate) bool { return PinOf(c) == pin }
	i := slices.IndexFunc(others, is)
	switch {
	case i >= 0:
	case slices.ContainsFunc(others, func(c *x509.Certificate) bool { return Replaces(c, pin) }):
		return fault.New(fault.Denied, "%w", ErrReplaced) // what it says is not proved, and nothing follows from it
	default:
		return fault.New(fault.Denied, "%w", ErrPin)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: pool(others[i : i+1]), Intermediates: pool(others), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if inv, ok := errors.AsType[x509.CertificateInvalidError](err); ok && inv.Reason == x509.Expired {
		switch {
		case now.Before(leaf.NotBefore):
			return fault.New(fault.Denied, "this machine's clock is at least %s behind the head's (it says %s): set it, for example by NTP",
				round(leaf.NotBefore.Add(Early).Sub(now)), now.UTC().Format(time.RFC3339))
		case now.After(leaf.NotAfter):
			return fault.New(fault.Denied, "this machine's clock is at least %s ahead of the head's (it says %s), or the head has not renewed its certificate: set the clock, for example by NTP",
				round(now.Sub(leaf.NotAfter)), now.UTC().Format(time.RFC3339))
		}
	}
	if err != nil {
		return fault.New(fault.Denied, "the head's certificate is not good: %w", err)
	}
	id, err := IdentityOf(leaf)
	if err != nil {
		return err
	}
	if id.Role != Head {
		return fault.New(fault.Denied, "the other side is not a head")
	}
	return nil
}

// MaxSkew is how far clocks may be apart: beyond it a certificate made by one may not be good yet on the other.
const MaxSkew = Early - time.Minute

// CheckClock compares this machine's clock with the other side's, named by whose ("the head's"); beyond [MaxSkew] the error says which is behind and by how much.
func CheckClock(here, there time.Time, whose string) error {
	switch d := there.Sub(here); {
	case d > MaxSkew:
		return fault.New(fault.Invalid, "this machine's clock is %s behind %s: set it, for example by NTP", round(d), whose)
	case d < -MaxSkew:
		return fault.New(fault.Invalid, "this machine's clock is %s ahead of %s: set it, for example by NTP", round(-d), whose)
	}
	return nil
}

// round gives "12m", "3h5m", "40s".
func round(d time.Duration) string {
	if d = d.Round(time.Second); d < time.Minute {
		return d.String()
	}
	d = d.Round(time.Minute)
	if h := d / time.Hour; h > 0 {
		return fmt.Sprintf("%dh%dm", h, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dm", d/time.Minute)
}

// MemberTLS is either side of a connection between processes of one attempt of a job: both show
// certificates as members of the same attempt as h, of the authorities that h's holder believes, or
// of one that such an authority vouches for. peer is the number that the other side must have;
// below 0: any. h's certificate is the one of this process.
func MemberTLS(h *Holder, peer int) (*tls.Config, error) {
	c, err := parseChain(h.cert.Load().Certificate)
	if err != nil {
		return nil, err
	}
	self, err := IdentityOf(c.leaf)
	if err != nil {
		return nil, err
	}
	if self.Role != Member {
		return nil, fault.New(fault.Denied, "the certificate of this process is not of a member of the cluster")
	}
	roots := pool(c.roots())
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Time: h.now, NextProtos: []string{memberProtocol}, SessionTicketsDisabled: true,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return h.cert.Load(), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return h.cert.Load(), nil },
		ClientAuth:           tls.RequireAnyClientCert,
		// As in ClientTLS: VerifyConnection runs in every handshake, on both sides, and does all that is left out here, but for host names, which members have none of.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != memberProtocol {
				return fault.New(fault.Denied, "the other side does not speak %s", memberProtocol)
			}
			id, err := verifyMember(s.PeerCertificates, roots, h.now(), s.DidResume)
			if err != nil {
				return err
			}
			if id.Cluster != self.Cluster || id.Job != self.Job || id.Attempt != self.Attempt || peer >= 0 && id.Member != peer {
				return fault.New(fault.Denied, "the other side is %s, and not of this attempt of the job", id)
			}
			return nil
		},
	}, nil
}

// memberProtocol is what members speak, by ALPN.
const memberProtocol = "penstock-gang/1"

func verifyMember(chain []*x509.Certificate, roots *x509.CertPool, now time.Time, resumed bool) (Identity, error) {
	if len(chain) == 0 || resumed {
		return Identity{}, fault.New(fault.Denied, "the other side shows no certificate")
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: pool(chain[1:]), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return Identity{}, fault.New(fault.Denied, "the certificate of the other side is not good: %w", err)
	}
	id, err := IdentityOf(chain[0])
	if err == nil && id.Role != Member {
		err = fault.New(fault.Denied, "the other side is %s, and no process of a job", id)
	}
	return id, err
}
