package head

import (
	"bytes"
	"crypto/sha256"
	"math"
	"testing"

	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
)

// The pack of a job that waits stays until no job needs it, however many others come, to the next head too.
func TestPackOfAJobThatWaits(t *testing.T) {
	dir := shortDir(t)
	var h *Head
	put := func(i byte) (packs.Hash, error) {
		b := bytes.Repeat([]byte{i}, 1000)
		sum := sha256.Sum256(b)
		hash := packs.Hash(hexOf(sum[:]))
		return hash, h.packs.Put(t.Context(), hash, bytes.NewReader(b), packs.Share{Key: by{}.packs()[0], Most: math.MaxInt64})
	}
	fill := func(from byte) { // more than the head keeps
		t.Helper()
		for i := range byte(3) {
			if _, err := put(from + i); err != nil {
				t.Fatal(err)
			}
		}
	}
	start := func(limit int64) {
		t.Helper()
		var err error
		if h, err = Start(t.Context(), Config{Dir: dir, packs: limit}); err != nil {
			t.Fatal(err)
		}
	}
	start(2500)
	defer func() { h.Stop(0) }()
	a, err := put(1)
	if err != nil {
		t.Fatal(err)
	}
	submit := func(id string, pack packs.Hash) error {
		_, err := controlServer{h: h}.Submit(t.Context(), &pb.Job{Submission: id, Argv: []string{"x"}, Pack: string(pack)})
		return err
	}
	for _, id := range []string{"one", "two", "two"} {
		if err := submit(id, a); err != nil {
			t.Fatal(err)
		}
	}
	stop := func(id string) {
		t.Helper()
		for range 2 {
			if _, err := (controlServer{h: h}).StopJob(t.Context(), &pb.StopJobRequest{Job: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(10)
	if !h.packs.Has(a) {
		t.Error("two jobs wait for it")
	}
	stop("one")
	fill(20)
	if !h.packs.Has(a) {
		t.Error("a job waits for it")
	}
	h.Stop(0)
	start(1500) // removes at once
	if !h.packs.Has(a) {
		t.Error("the next head has not kept it")
	}
	if _, err := put(30); fault.CodeOf(err) != fault.Exhausted {
		t.Errorf("what does not fit beside it: %v", err)
	}
	stop("two")
	b, err := put(30)
	if err != nil || h.packs.Has(a) {
		t.Errorf("nobody needs it: it is there: %v; %v", h.packs.Has(a), err)
	}
	if err := submit("three", a); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("it is not there: %v", err)
	}
	if err := submit("four", b); err != nil {
		t.Error(err)
	}
}
