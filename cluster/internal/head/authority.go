package head

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// How an authority stands, of pb.Authority.
const (
	issues   = "issues"
	ends     = "ends"     // the one before, until penstock ca finish
	replaced = "replaced" // believed no more; tokens name it
)

// standing says how the authority of a pin stands.
func (h *Head) standing(pin pki.Pin) string {
	switch slices.Index(h.ca.Pins(), pin) {
	case 0:
		return issues
	case 1:
		return ends
	}
	return replaced
}

// believed is what nodes are to know of the authorities.
func (h *Head) believed() *pb.FromHead {
	x := &pb.Believed{}
	for _, pin := range h.ca.Pins() {
		x.Pins = append(x.Pins, pin[:])
	}
	return &pb.FromHead{Say: &pb.FromHead_Believed{Believed: x}}
}

// certified: a node says of which authorities its certificates are. It goes on record when all are
// of the one that issues: once after each rotation. Part of the loop.
func (h *Head) certified(s *session, x *pb.Certified) error {
	pins := h.ca.Pins()
	s.issuers, s.said = nil, true
	for _, b := range x.GetIssuers() {
		if len(b) != len(pki.Pin{}) || !slices.Contains(pins, pki.Pin(b)) || len(s.issuers) == len(pins) {
			s.said = false
			return nil // it says more when it has heard whom to believe
		}
		s.issuers = append(s.issuers, pki.Pin(b))
	}
	h.change()
	n := h.nodes[s.node]
	if h.sessions[s.node] != s || n.Value.Local || n.Value.Authority == pins[0] || !s.moved(pins[0]) {
		return nil
	}
	r := *n
	r.Value.Authority = pins[0]
	r, err := write(h, h.t.nodes, r)
	if err == nil {
		h.nodes[s.node] = &r
	}
	return err
}

// moved says that a node has no certificates but those of an authority.
func (s *session) moved(to pki.Pin) bool {
	return s.said && !slices.ContainsFunc(s.issuers, func(p pki.Pin) bool { return p != to })
}

// behind are the nodes that have, or may have, a certificate of the authority that is being
// replaced: as they say, and until they say so as the record has it. Of a node that is away that
// counts until its certificate has ended.
func (h *Head) behind() (ids []string) {
	pins := h.ca.Pins()
	if len(pins) < 2 {
		return nil
	}
	for _, id := range sortedIDs(h.nodes) {
		n, s := h.nodes[id].Value, h.sessions[id]
		if s != nil && !s.moved(pins[0]) && (s.said || n.Authority != pins[0]) ||
			s == nil && n.Authority == pins[1] && n.State != core.Left && time.Since(n.Seen) <= pki.Lifetime {
			ids = append(ids, id)
		}
	}
	return ids
}

// authorities is what penstock ca status shows. Part of the loop.
func (h *Head) authorities() *pb.AuthorityList {
	x := &pb.AuthorityList{}
	by := map[pki.Pin]*pb.Authority{}
	for _, c := range h.ca.Believed() {
		pin := pki.PinOf(c)
		by[pin] = &pb.Authority{Pin: pin.String(), State: h.standing(pin), BeginsUnixNanos: nanos(c.NotBefore.Add(pki.Early)), EndsUnixNanos: nanos(c.NotAfter)}
		x.Authorities = append(x.Authorities, by[pin])
	}
	late := h.behind()
	for _, id := range sortedIDs(h.nodes) {
		pins := []pki.Pin{h.nodes[id].Value.Authority}
		if s := h.sessions[id]; s != nil && s.said {
			pins = s.issuers
		}
		for _, pin := range pins {
			if a := by[pin]; a != nil && (slices.Contains(late, id) || h.nodes[id].Value.there()) {
				a.Nodes = append(a.Nodes, id)
			}
		}
	}
	now := time.Now()
	for _, t := range h.tokens.list() {
		v := t.Value
		if v.Revoked || v.UsedBy != "" || !v.Ends.IsZero() && now.After(v.Ends) {
			continue
		}
		a := by[v.Names]
		if a == nil {
			a = &pb.Authority{Pin: v.Names.String(), State: replaced}
			by[v.Names] = a
			x.Authorities = append(x.Authorities, a)
		}
		a.Tokens = append(a.Tokens, t.ID)
	}
	return x
}

// Authorities says how they stand.
func (c controlServer) Authorities(ctx context.Context, _ *pb.Empty) (x *pb.AuthorityList, err error) {
	err = c.h.do(ctx, func() error { x = c.h.authorities(); return nil })
	return x, err
}

// RotateAuthority begins to replace the authority.
func (c controlServer) RotateAuthority(ctx context.Context, _ *pb.Empty) (x *pb.AuthorityList, err error) {
	h := c.h
	err = h.do(ctx, func() error {
		if len(h.ca.Pins()) == 1 { // else it is refused
			if err := h.audit(ctx, "rotate-authority", what{Kind: "cluster", ID: h.id}, nil); err != nil {
				return err
			}
		}
		if err := h.ca.Rotate(); err != nil {
			return err
		}
		h.log.Info(fmt.Sprintf("%v has the cluster's authority replaced: two are believed from now on", rpc.PeerOf(ctx)), "new", h.ca.Pin())
		r := h.cluster
		r.Value.Pin = h.ca.Pin()
		r, err := write(h, h.t.cluster, r)
		if err != nil {
			return err
		}
		h.cluster = r
		if err := h.changedAuthority(); err != nil {
			return err
		}
		x = h.authorities()
		if err := h.ca.Destroy(); err != nil {
			return fault.New(fault.CodeOf(err), "the authority is being replaced, and the key of the one before is not gone: %w", err)
		}
		return nil
	})
	return x, err
}

// FinishAuthority ends that, and says how it stood before.
func (c controlServer) FinishAuthority(ctx context.Context, q *pb.FinishAuthorityRequest) (x *pb.AuthorityList, err error) {
	h := c.h
	err = h.do(ctx, func() error {
		x = h.authorities()
		late := h.behind()
		if len(late) > 0 && !q.GetForce() {
			return fault.New(fault.Invalid, "%s: they could not come back, and would have to join again; wait for them (penstock ca status), take those whose machines are gone out of the cluster (penstock stop NODE), or give --force", h.late(late))
		}
		if len(h.ca.Pins()) == 2 { // else it is refused
			if err := h.audit(ctx, "finish-authority", what{Kind: "cluster", ID: h.id, Detail: strings.Join(late, " ")}, nil); err != nil {
				return err
			}
		}
		if err := h.ca.Finish(); err != nil {
			return err
		}
		h.log.Info(fmt.Sprintf("%v has ended the replacing of the cluster's authority: one is believed", rpc.PeerOf(ctx)), "left_behind", late)
		return h.changedAuthority()
	})
	return x, err
}

// late says which nodes are behind, for people.
func (h *Head) late(ids []string) string {
	var each []string
	for _, id := range ids {
		n := h.nodes[id].Value
		each = append(each, fmt.Sprintf("%s (%s, %s)", id, n.Inventory.GetName(), n.State))
	}
	return "certificates of the authority before are still on " + strings.Join(each, ", ")
}

// changedAuthority has everybody act by who is believed now. Part of the loop.
func (h *Head) changedAuthority() error {
	if err := h.cert.Renew(h.ctx, h.issue); err != nil {
		return err
	}
	for id := range h.sessions {
		h.tell(id, h.believed())
	}
	h.srv.Cut()
	return nil
}
