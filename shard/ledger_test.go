package shard_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// ledgerOf reads an epoch and returns the ledger's bytes.
func ledgerOf(t testing.TB, ds *dataset.Dataset, o *dataset.ShardOptions) (*shard.Ledger, []byte) {
	t.Helper()
	its := open(t, ds, 1, o)
	digests(t, its, 1000)
	var b bytes.Buffer
	n, err := its[0].Ledger().WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatal(n, err)
	}
	return its[0].Ledger(), b.Bytes()
}

// What is written is read again; what is cut or damaged is refused.
func TestLedger(t *testing.T) {
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0")
	was, good := ledgerOf(t, ds, jobOptions(7))
	l, err := shard.ReadLedger(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if l.Windows() != was.Windows() || l.Windows() == 0 {
		t.Errorf("%d windows of %d", l.Windows(), was.Windows())
	}
	sum := int64(0)
	for lane := range 4 {
		for w := range int64(30) {
			a, ok := was.Samples(0, 0, 0, lane, w)
			b, ok2 := l.Samples(0, 0, 0, lane, w)
			if a != b || ok != ok2 {
				t.Errorf("window %d of lane %d: %d, %v; was %d, %v", w, lane, b, ok2, a, ok)
			}
			sum += b
		}
	}
	if sum != 140 {
		t.Errorf("%d samples in all windows, want 140", sum)
	}
	if per := (len(good) - 200) / l.Windows(); per > 8 {
		t.Errorf("%d bytes per window", per)
	}
	for i := range good {
		if _, err := shard.ReadLedger(bytes.NewReader(good[:i])); fault.CodeOf(err) != fault.Corrupt {
			t.Fatalf("the first %d bytes: %v", i, err)
		}
	}
	if _, err := shard.ReadLedger(bytes.NewReader(append(good[:len(good):len(good)], 0))); fault.CodeOf(err) != fault.Corrupt {
		t.Errorf("a byte too many: %v", err)
	}
	if _, err := shard.ReadLedger(io.MultiReader(strings.NewReader("penstock/ledger/3\n"), bytes.NewReader(good[18:]))); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("another version: %v", err)
	}
}

// With a ledger any step is found; one of another plan or seed is refused.
func TestStateFromLedger(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0")
	_, b := ledgerOf(t, ds, jobOptions(7))
	want := digests(t, open(t, ds, 1, jobOptions(7)), 100)
	counting := func(text string) { t.Errorf("counts though there is a ledger: %s", text) }
	for step := range want {
		l, err := shard.ReadLedger(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		s, err := ds.StateAt(t.Context(), 1, jobOptions(7), shard.At{Step: int64(step), Ledger: l, Counting: counting})
		if err != nil {
			t.Fatal(err)
		}
		o := jobOptions(7)
		o.State = &s
		if got := digests(t, open(t, ds, 1, o), 1); len(got) != 1 || got[0] != want[step] {
			t.Errorf("step %d is another one", step)
		}
	}
	// A ledger of other epochs (of the one after its own it may know a part: that is read ahead): the
	// epoch is counted, once, and what it was given for is said.
	l, err := shard.ReadLedger(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	other := jobOptions(7)
	other.Epoch = 5
	for range 2 {
		was := said
		s, err := ds.StateAt(t.Context(), 1, other, shard.At{Epoch: 5, Step: 2, Ledger: l, Counting: func(text string) { said += text }})
		if err != nil || s.Epoch != 5 || s.Step != 2 {
			t.Fatalf("%+v %v", s, err)
		}
		if was != "" && said != was || !strings.Contains(said, "(the ledger given is of epoch 0") {
			t.Errorf("said %q", said)
		}
	}
	_, err = ds.StateAt(t.Context(), 1, jobOptions(8), shard.At{Step: 1, Ledger: l})
	wantError(t, err, fault.Invalid, "seed 7")
	_, err = ds.Filter("id > 3").StateAt(t.Context(), 1, jobOptions(7), shard.At{Step: 1, Ledger: l})
	wantError(t, err, fault.Invalid, "another plan")
	for _, shuffle := range []shard.Shuffle{{Lanes: 3, WindowRows: 8}, {Lanes: 4, WindowRows: 9}, {}} { // of other windows, so other numbers
		o := jobOptions(7)
		o.Shuffle = &shuffle
		_, err = ds.StateAt(t.Context(), 1, o, shard.At{Step: 1, Ledger: l})
		wantError(t, err, fault.Invalid, "4 lanes and windows of 8")
	}
	_, err = ds.StateAt(t.Context(), 1, jobOptions(7), shard.At{Step: 99, Ledger: l})
	wantError(t, err, fault.Invalid, "no step 99")
	_, err = ds.StateAt(t.Context(), 1, jobOptions(7), shard.At{Step: -1})
	wantError(t, err, fault.Invalid, "count from 0")
}

// The ledger of a job that is restored to a state with other lanes and windows is of these: what it knew
// before would be of others.
func TestLedgerOfRestored(t *testing.T) {
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0")
	was := open(t, ds, 1, jobOptions(7))[0]
	next(t, was)
	s := was.State()
	free := jobOptions(7)
	free.Shuffle = nil
	for name, it := range map[string]*shard.Iterator{"from the start": func() *shard.Iterator {
		o := *free
		o.State = &s
		return open(t, ds, 1, &o)[0]
	}(), "later": func() *shard.Iterator {
		it := open(t, ds, 1, free)[0]
		next(t, it)
		if err := it.Restore(s); err != nil {
			t.Fatal(err)
		}
		return it
	}()} {
		want := it.Step()
		digests(t, []*shard.Iterator{it}, 100)
		var b bytes.Buffer
		if _, err := it.Ledger().WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		l, err := shard.ReadLedger(&b)
		if err != nil {
			t.Fatal(err)
		}
		o := *free
		o.State = &s
		counting := func(text string) { t.Errorf("%s: counts though there is a ledger: %s", name, text) }
		if at, err := ds.StateAt(t.Context(), 1, &o, shard.At{Step: want + 3, Ledger: l, Counting: counting}); err != nil || at.Step != want+3 {
			t.Errorf("%s: %+v, %v", name, at, err)
		}
		_, err = ds.StateAt(t.Context(), 1, free, shard.At{Step: 1, Ledger: l})
		wantError(t, err, fault.Invalid, "4 lanes and windows of 8")
	}
}

// A job that goes on with the ledger of the one before knows the whole epoch; without, what was read since.
func TestLedgerGoesOn(t *testing.T) {
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0")
	whole, _ := ledgerOf(t, ds, jobOptions(7))
	was := open(t, ds, 1, jobOptions(7))[0]
	var state shard.State
	var known *shard.Ledger
	for range 8 {
		next(t, was)
		state = was.State()
		var b bytes.Buffer
		_, err := was.Ledger().WriteTo(&b)
		if err == nil {
			known, err = shard.ReadLedger(&b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	missing := func(l *shard.Ledger) (n int) {
		o := jobOptions(7)
		o.State, o.Ledger = &state, l
		it := open(t, ds, 1, o)[0]
		digests(t, []*shard.Iterator{it}, 1000)
		for lane := range 4 {
			for w := range int64(30) {
				want, ok := whole.Samples(0, 0, 0, lane, w)
				got, ok2 := it.Ledger().Samples(0, 0, 0, lane, w)
				if ok && !ok2 {
					n++
				} else if got != want || ok != ok2 {
					t.Errorf("window %d of lane %d: %d, %v; want %d, %v", w, lane, got, ok2, want, ok)
				}
			}
		}
		return n
	}
	if n := missing(known); n > 0 {
		t.Errorf("with the ledger %d windows are not known", n)
	}
	if missing(nil) == 0 {
		t.Error("the test does not test: nothing is missing without the ledger")
	}
	o := jobOptions(8)
	o.Ledger = known
	_, err := ds.Shards(t.Context(), 1, o)
	wantError(t, err, fault.Invalid, "seed 7")
}

// A ledger whose sum is right, and which says what no job writes, is no ledger.
func TestForgedLedger(t *testing.T) {
	forge := func(lanes ...uint64) []byte {
		b := append([]byte("penstock/ledger/2\n"), 0, 0, 7, 1, 2, 8) // plan, data, seed; one source of 2 lanes, windows of 8
		for _, v := range lanes {
			b = binary.AppendUvarint(b, v)
		}
		sum := sha256.Sum256(b)
		return append(b, sum[:]...)
	}
	if _, err := shard.ReadLedger(bytes.NewReader(forge(1, 0, 0, 0, 1, 0, 1, 4))); err != nil {
		t.Fatal(err)
	}
	for _, b := range map[string][]byte{
		"another source": forge(1, 0, 0, 1, 1, 0, 1, 4),
		"another lane":   forge(1, 0, 0, 0, 2, 0, 1, 4),
		"a lane twice":   forge(2, 0, 0, 0, 1, 0, 1, 4, 0, 0, 0, 1, 0, 1, 4),
		"no window":      forge(1, 0, 0, 0, 1, 0, 0),
		"many windows":   forge(1, 0, 0, 0, 1, 0, 1<<40, 4),
		"an epoch":       forge(1, 1<<63, 0, 0, 1, 0, 1, 4),
	} {
		_, err := shard.ReadLedger(bytes.NewReader(b))
		wantError(t, err, fault.Corrupt, "damaged")
	}
}

// A ledger that names windows far from those that the job reads takes no memory for what is
// between.
func TestForgedLedgerFarAway(t *testing.T) {
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0")
	want, good := ledgerOf(t, ds, jobOptions(7))
	rest := good[len("penstock/ledger/2\n"):]
	skip := func() (v uint64) {
		v, n := binary.Uvarint(rest)
		rest = rest[n:]
		return v
	}
	for range 2 { // plan, data
		rest = rest[skip():]
	}
	for range 1 + 3 { // seed, one source of lanes and windows
		skip()
	}
	head := good[:len(good)-len(rest)]
	for _, first := range []uint64{1 << 12, 1<<24 - 1, 1 << 61} {
		b := binary.AppendUvarint(slices.Clone(head), 4)
		for lane := range uint64(4) {
			for _, v := range []uint64{0, 0, 0, lane, first, 1, 4} {
				b = binary.AppendUvarint(b, v)
			}
		}
		sum := sha256.Sum256(b)
		l, err := shard.ReadLedger(bytes.NewReader(append(b, sum[:]...)))
		if err != nil {
			t.Fatal(err)
		}
		o := jobOptions(7)
		o.Ledger = l
		its := open(t, ds, 1, o)
		digests(t, its, 1000)
		var out bytes.Buffer
		if _, err := its[0].Ledger().WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		if out.Len() > len(good)+4*1024 { // the next epoch may have begun
			t.Errorf("first %d: %d bytes, want about %d", first, out.Len(), len(good))
		}
		for lane := range 4 {
			for w := range int64(20) {
				n, ok := its[0].Ledger().Samples(0, 0, 0, lane, w)
				if m, have := want.Samples(0, 0, 0, lane, w); n != m || ok != have {
					t.Errorf("first %d: window %d of lane %d: %d, %v; want %d, %v", first, w, lane, n, ok, m, have)
				}
			}
		}
	}
}

func FuzzReadLedger(f *testing.F) {
	_, good := ledgerOf(f, dataset.Read(cells{0, []int{9, 7, 12}}).Filter("id % 3 != 0"), jobOptions(7))
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte("penstock/ledger/2\n\x00\x00\x07\x01\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x3f\x02\x03\x04"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := shard.ReadLedger(bytes.NewReader(b))
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Corrupt && c != fault.Unsupported {
				t.Fatal(err)
			}
			return
		}
		var out bytes.Buffer
		if _, err := l.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		again, err := shard.ReadLedger(&out)
		if err != nil || again.Windows() != l.Windows() {
			t.Fatalf("written again: %v", err)
		}
	})
}
