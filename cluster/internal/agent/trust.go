package agent

import (
	"crypto"
	"crypto/tls"
	"slices"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
)

// believe takes what the head says of its authorities: certificates of the node and its processes
// that are of others, or believe others, are renewed at once.
func (a *agent) believe(x *pb.Believed) {
	var pins []pki.Pin
	for _, b := range x.GetPins() {
		if len(b) != len(pki.Pin{}) || len(pins) == 2 {
			a.Log.Warn("what the head says of its authorities is none")
			return
		}
		pins = append(pins, pki.Pin(b))
	}
	a.mu.Lock()
	a.trust = pins
	a.mu.Unlock()
	for _, h := range a.holders() {
		a.look(h)
	}
	a.certified()
}

// holders have the certificates of the node and its processes.
func (a *agent) holders() (hs []*pki.Holder) {
	if a.Holder != nil {
		hs = append(hs, a.Holder)
	}
	a.mu.Lock()
	ps := a.all()
	a.mu.Unlock()
	for _, p := range ps {
		p.mu.Lock()
		m := p.member
		p.mu.Unlock()
		if m == nil {
			continue
		}
		m.mu.Lock()
		if m.holder != nil {
			hs = append(hs, m.holder)
		}
		m.mu.Unlock()
	}
	return hs
}

// look has a certificate renewed that does not go with what the head has said last.
func (a *agent) look(h *pki.Holder) {
	if !a.current(h.Certificate()) {
		h.Hurry()
	}
}

// current says that a certificate goes with what the head has said last: it is of the authority
// that issues, and believes those that are believed.
func (a *agent) current(c *tls.Certificate) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.trust) == 0 || slices.Equal(pki.Believed(c), a.trust)
}

// certified tells the head of which authorities the certificates here are.
func (a *agent) certified() {
	x := &pb.Certified{}
	seen := map[pki.Pin]bool{}
	for _, h := range a.holders() {
		if pin := h.Issuer(); !seen[pin] {
			seen[pin] = true
			x.Issuers = append(x.Issuers, pin[:])
		}
	}
	a.say(&pb.FromAgent{Say: &pb.FromAgent_Certified{Certified: x}})
}

// assemble makes a certificate of the head's answer for a process, which is of an authority that
// the head has said, as it does in each session.
func (a *agent) assemble(chain [][]byte, key crypto.Signer) (c *tls.Certificate, err error) {
	a.mu.Lock()
	pins := slices.Clone(a.trust)
	a.mu.Unlock()
	err = fault.New(fault.Denied, "the head has not said which its authority is")
	for _, pin := range pins {
		if c, err = pki.Assemble(chain, key, pin, pki.Member); err == nil {
			break
		}
	}
	return c, err
}
