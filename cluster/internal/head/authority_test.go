package head

import (
	"bytes"
	"crypto/rand"
	"slices"
	"testing"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
)

// believes checks the next thing that is said: whom to believe.
func (p *peer) believes(pins ...pki.Pin) {
	p.t.Helper()
	var got []pki.Pin
	for _, b := range p.hear().GetBelieved().GetPins() {
		got = append(got, pki.Pin(b))
	}
	if !slices.Equal(got, pins) {
		p.t.Fatalf("node %s is to believe %v, want %v", p.id, got, pins)
	}
}

// says tells the head of which authorities the node's certificates are, and waits until that is
// heard.
func (p *peer) says(pins ...[]byte) {
	p.t.Helper()
	p.say(&pb.FromAgent{Say: &pb.FromAgent_Certified{Certified: &pb.Certified{Issuers: pins}}})
	p.silent()
}

// What a node says of its certificates counts for itself alone, and odd words for nothing. It goes
// on record once.
func TestCertified(t *testing.T) {
	h := startHead(t, t.TempDir())
	one, two := attach(t, h, ""), attach(t, h, "")
	a := h.Pin()
	if _, err := (controlServer{h}).RotateAuthority(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	b := h.Pin()
	one.believes(b, a)
	two.believes(b, a)
	behind := func(want ...string) {
		t.Helper()
		var got []string
		if err := h.do(t.Context(), func() error { got = h.behind(); return nil }); err != nil || !slices.Equal(got, want) {
			t.Errorf("behind are %v (%v), want %v", got, err, want)
		}
	}
	var other pki.Pin
	rand.Read(other[:])
	behind(one.id, two.id)
	for what, pins := range map[string][][]byte{"the one before": {a[:]}, "another": {other[:]}, "both": {b[:], a[:]}, "no pin": {b[:5]}, "an empty one": {nil}, "many": {b[:], b[:], b[:]}, "long": {bytes.Repeat(b[:], 1000)}} {
		one.says(pins...)
		behind(one.id, two.id)
		_ = what
	}
	revision := func() (r int64) {
		_ = h.do(t.Context(), func() error { r = h.nodes[one.id].Revision; return nil })
		return r
	}
	was := revision()
	one.says(b[:])
	moved := revision()
	for range 3 { // back and forth is not written
		one.says(a[:])
		behind(one.id, two.id)
		one.says(b[:])
		behind(two.id)
	}
	if moved == was || revision() != moved {
		t.Errorf("written at %d, %d, %d", was, moved, revision())
	}
	_, err := (controlServer{h}).FinishAuthority(t.Context(), &pb.FinishAuthorityRequest{})
	if fault.CodeOf(err) != fault.Invalid {
		t.Error(err)
	}
	two.says() // it has none
	if _, err := (controlServer{h}).FinishAuthority(t.Context(), &pb.FinishAuthorityRequest{}); err != nil {
		t.Fatal(err)
	}
	one.believes(b)
	two.believes(b)
}
