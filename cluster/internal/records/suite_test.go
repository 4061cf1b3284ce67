package records

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/penstock-data/penstock/internal/fault"
)

// What is true of every store.
func TestStore(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { suite(t, open(t, Options{Dir: t.TempDir()})) })
	t.Run("external", func(t *testing.T) {
		_, endpoint := external(t, t.TempDir())
		suite(t, open(t, Options{Endpoints: []string{endpoint}}))
	})
}

func suite(t *testing.T, s *Store) {
	for _, test := range []struct {
		name string
		f    func(*testing.T, *Store)
	}{
		{"CompareAndSwap", testCompareAndSwap}, {"Race", testRace}, {"Txn", testTxn}, {"Sequence", testSequence}, {"List", testList},
		{"Limits", testLimits}, {"Watch", testWatch}, {"Compaction", testCompaction}, {"Lease", testLease}, {"Damaged", testDamagedRecord},
	} {
		t.Run(test.name, func(t *testing.T) { test.f(t, s) })
	}
}

func wantCode(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if err == nil || fault.CodeOf(err) != code {
		t.Fatalf("error %v (%v), want %v", err, fault.CodeOf(err), code)
	}
}

func wantConflict(t *testing.T, err error, want Conflict) {
	t.Helper()
	wantCode(t, err, fault.Exists)
	if c, ok := errors.AsType[*Conflict](err); !ok || *c != want {
		t.Fatalf("conflict %+v, want %+v", c, want)
	}
}

func testCompareAndSwap(t *testing.T, s *Store) {
	ctx, things := within(t), In[thing](s, "cas")
	_, err := things.Get(ctx, "a")
	wantCode(t, err, fault.NotFound)

	first, err := things.Put(ctx, Record[thing]{ID: "a", Value: thing{"x", 1}})
	if err != nil || first.Revision == 0 {
		t.Fatal(first, err)
	}
	_, err = things.Put(ctx, Record[thing]{ID: "a", Value: thing{"y", 1}})
	wantConflict(t, err, Conflict{"cas", "a", 0, first.Revision})
	has(t, err, "cas/a is there already")

	second := first
	second.Value.N = 2
	if second, err = things.Put(ctx, second); err != nil || second.Revision <= first.Revision {
		t.Fatal(second, err)
	}
	_, err = things.Put(ctx, first)
	wantConflict(t, err, Conflict{"cas", "a", first.Revision, second.Revision})
	has(t, err, "changed by another writer")
	wantConflict(t, things.Delete(ctx, "a", first.Revision), Conflict{"cas", "a", first.Revision, second.Revision})
	if got, err := things.Get(ctx, "a"); err != nil || got != second {
		t.Fatalf("got %+v, %v, want %+v", got, err, second)
	}

	if err := things.Delete(ctx, "a", second.Revision); err != nil {
		t.Fatal(err)
	}
	wantConflict(t, things.Delete(ctx, "a", second.Revision), Conflict{"cas", "a", second.Revision, 0})
	_, err = things.Put(ctx, second)
	wantConflict(t, err, Conflict{"cas", "a", second.Revision, 0})
	has(t, err, "was deleted by another writer")
}

// oneWins: one of those that wanted the same has it, and the others hear that it is taken.
func oneWins(t *testing.T, errs []error) {
	t.Helper()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			wantCode(t, err, fault.Exists)
		}
	}
	if won != 1 {
		t.Fatalf("%d of %d have it: %v", won, len(errs), errs)
	}
}

// Of 32 that create the same record, one does, and all others hear so; with equal values too.
func testRace(t *testing.T, s *Store) {
	ctx, things := within(t), In[thing](s, "race")
	for round := range 5 {
		id := fmt.Sprint(round)
		errs := make([]error, 32)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = things.Put(ctx, Record[thing]{ID: id, Value: thing{"same", 0}}) })
		}
		wg.Wait()
		oneWins(t, errs)
	}
}

func testTxn(t *testing.T, s *Store) {
	ctx, tokens, nodes := within(t), In[thing](s, "txntokens"), In[thing](s, "txnnodes")
	token, err := tokens.Put(ctx, Record[thing]{ID: "t", Value: thing{Name: "fresh"}})
	if err != nil {
		t.Fatal(err)
	}
	used := token
	used.Value.Name = "used"
	join := func(node string) error {
		_, err := s.Txn(ctx, tokens.PutOp(used), nodes.PutOp(Record[thing]{ID: node}))
		return err
	}
	if err := join("n1"); err != nil {
		t.Fatal(err)
	}
	now, err := tokens.Get(ctx, "t")
	if err != nil || now.Value.Name != "used" {
		t.Fatal(now, err)
	}
	node, err := nodes.Get(ctx, "n1")
	if err != nil || node.Revision != now.Revision {
		t.Fatal(node, err)
	}
	wantConflict(t, join("n2"), Conflict{"txntokens", "t", token.Revision, now.Revision})
	_, err = nodes.Get(ctx, "n2")
	wantCode(t, err, fault.NotFound) // nothing of it was done

	_, err = s.Txn(ctx, tokens.CheckOp("t", token.Revision), nodes.DeleteOp("n1", node.Revision))
	wantCode(t, err, fault.Exists)
	_, err = s.Txn(ctx, tokens.CheckOp("t", now.Revision), nodes.CheckOp("n2", 0), nodes.DeleteOp("n1", node.Revision))
	if err != nil {
		t.Fatal(err)
	}
	_, err = nodes.Get(ctx, "n1")
	wantCode(t, err, fault.NotFound)
	if _, err = s.Txn(ctx, tokens.CheckOp("t", now.Revision)); err != nil {
		t.Fatal(err)
	}

	_, err = s.Txn(ctx)
	wantCode(t, err, fault.Invalid)
	_, err = s.Txn(ctx, nodes.CheckOp("x", 0), nodes.PutOp(Record[thing]{ID: "x"}))
	wantCode(t, err, fault.Invalid)
	has(t, err, "txnnodes/x twice")
}

func testSequence(t *testing.T, s *Store) {
	ctx := within(t)
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		got []int64
	)
	for range 32 {
		wg.Go(func() {
			for range 3 {
				n, err := s.Next(ctx, "node")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				got = append(got, n)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(got)
	for i, n := range got {
		if n != int64(i+1) {
			t.Fatalf("numbers %v", got)
		}
	}
	if len(got) != 96 {
		t.Fatalf("%d numbers", len(got))
	}
}

func testList(t *testing.T, s *Store) {
	ctx, things := within(t), In[thing](s, "list")
	want := map[string]int{}
	for i := range 25 {
		id := fmt.Sprintf("%02d", i)
		if _, err := things.Put(ctx, Record[thing]{ID: id, Value: thing{N: i}}); err != nil {
			t.Fatal(err)
		}
		want[id] = i
	}
	if _, err := In[thing](s, "list2").Put(ctx, Record[thing]{ID: "other"}); err != nil { // a table whose name begins so
		t.Fatal(err)
	}
	got, pages := map[string]int{}, 0
	for at := (Cursor{}); ; {
		page, next, err := things.List(ctx, at, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			got[r.ID] = r.Value.N
		}
		if pages++; pages == 1 { // all pages are of the same moment
			r, err := things.Get(ctx, "20")
			if err != nil {
				t.Fatal(err)
			}
			if err := things.Delete(ctx, "20", r.Revision); err != nil {
				t.Fatal(err)
			}
			if _, err := things.Put(ctx, Record[thing]{ID: "205"}); err != nil {
				t.Fatal(err)
			}
		}
		if at = next; at.After == "" {
			break
		}
	}
	if pages != 3 || !maps.Equal(got, want) {
		t.Fatalf("%d pages: %v", pages, got)
	}
	page, next, err := In[thing](s, "nothing").List(ctx, Cursor{}, 10)
	if err != nil || len(page) != 0 || next.After != "" || next.Revision == 0 {
		t.Fatal(page, next, err)
	}
	_, _, err = things.List(ctx, Cursor{}, 0)
	wantCode(t, err, fault.Invalid)
}

func testLimits(t *testing.T, s *Store) {
	ctx, texts := within(t), In[string](s, "limits")
	r, err := texts.Put(ctx, Record[string]{ID: "full", Value: strings.Repeat("x", MaxRecord-2)})
	if err != nil {
		t.Fatal(err)
	}
	r.Value += "x"
	_, err = texts.Put(ctx, r)
	wantCode(t, err, fault.Invalid)
	has(t, err, "limits/full has 65537 bytes", "65536")
	var ops []Op
	for i := range 15 { // several of full size fit into a transaction
		ops = append(ops, texts.PutOp(Record[string]{ID: fmt.Sprint(i), Value: r.Value[3:]}))
	}
	if _, err := s.Txn(ctx, ops...); err != nil {
		t.Fatal(err)
	}
	ops = append(ops, ops[0], ops[1])
	ops[15].id, ops[16].id = "15", "16"
	_, err = s.Txn(ctx, ops...)
	wantCode(t, err, fault.Invalid)
	ops = nil
	for i := range MaxOps + 1 {
		ops = append(ops, texts.CheckOp(fmt.Sprint("x", i), 0))
	}
	if _, err := s.Txn(ctx, ops[:MaxOps]...); err != nil {
		t.Fatal(err)
	}
	_, err = s.Txn(ctx, ops...)
	wantCode(t, err, fault.Invalid)

	for _, id := range []string{"", "a\x00b", "a\nb", "\xff", strings.Repeat("x", maxID+1)} {
		_, err := texts.Get(ctx, id)
		wantCode(t, err, fault.Invalid)
		_, err = texts.Put(ctx, Record[string]{ID: id})
		wantCode(t, err, fault.Invalid)
		wantCode(t, texts.Delete(ctx, id, 1), fault.Invalid)
	}
	wantCode(t, texts.Delete(ctx, "full", 0), fault.Invalid)
	_, err = In[func()](s, "limits").Put(ctx, Record[func()]{ID: "f"})
	wantCode(t, err, fault.Invalid)
	if _, err := texts.Put(ctx, Record[string]{ID: "job/1/ü " + strings.Repeat("x", maxID-9)}); err != nil {
		t.Fatal(err)
	}
}

var errEnough = errors.New("enough")

// watcher collects what a watch says.
type watcher struct {
	events chan Event[thing]
	done   chan error
	cancel context.CancelFunc
}

func watch(t *testing.T, table Table[thing], from int64) *watcher {
	ctx, cancel := context.WithCancel(within(t))
	w := &watcher{make(chan Event[thing]), make(chan error, 1), cancel}
	go func() {
		w.done <- table.Watch(ctx, from, func(e Event[thing]) error {
			select {
			case w.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-w.done; w.done <- nil })
	return w
}

// next is what the watch says next, as text.
func (w *watcher) next(t *testing.T) string {
	t.Helper()
	select {
	case e := <-w.events:
		name := [...]string{"changed", "gone", "reset", "current"}[e.Kind]
		if e.Kind == Changed {
			return fmt.Sprintf("%s %s %d", name, e.Record.ID, e.Record.Value.N)
		}
		return strings.TrimSpace(name + " " + e.Record.ID)
	case err := <-w.done:
		w.done <- err
		t.Fatalf("the watch has ended: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("the watch says nothing")
	}
	return ""
}

func (w *watcher) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, s := range want {
		if got := w.next(t); got != s {
			t.Fatalf("the watch says %q, want %q", got, s)
		}
	}
}

func put(t *testing.T, table Table[thing], r Record[thing]) Record[thing] {
	t.Helper()
	r, err := table.Put(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func testWatch(t *testing.T, s *Store) {
	things := In[thing](s, "watch")
	a := put(t, things, Record[thing]{ID: "a", Value: thing{N: 1}})
	all := watch(t, things, 0)
	all.expect(t, "reset", "changed a 1", "current")
	put(t, In[thing](s, "watch2"), Record[thing]{ID: "z"}) // nobody's business
	from := a.Revision
	a.Value.N = 2
	a = put(t, things, a)
	b := put(t, things, Record[thing]{ID: "b", Value: thing{N: 1}})
	if _, err := s.Txn(within(t), things.PutOp(Record[thing]{ID: "c", Value: thing{N: 3}}), things.DeleteOp("b", b.Revision)); err != nil {
		t.Fatal(err)
	}
	later := []string{"changed a 2", "changed b 1", "gone b", "changed c 3"}
	for _, w := range []*watcher{all, watch(t, things, from)} {
		w.expect(t, later[:2]...)
		if got := []string{w.next(t), w.next(t)}; !slices.Contains(got, later[2]) || !slices.Contains(got, later[3]) { // of one revision
			t.Fatalf("the watch says %q", got)
		}
	}
	watch(t, things, b.Revision-1).expect(t, "changed b 1")

	all.cancel()
	err := <-all.done
	all.done <- err
	wantCode(t, err, fault.Canceled)
	err = things.Watch(within(t), 0, func(Event[thing]) error { return errEnough })
	if err != errEnough {
		t.Fatal(err)
	}
}

// A watch from a revision that etcd has dropped says so, and what there is now.
func testCompaction(t *testing.T, s *Store) {
	things := In[thing](s, "compaction")
	var old int64
	for i := range 1100 { // more than two pages
		op := put(t, things, Record[thing]{ID: fmt.Sprintf("%04d", i), Value: thing{N: i}})
		if i == 0 {
			old = op.Revision
		}
	}
	first, err := things.Get(within(t), "0000")
	if err != nil {
		t.Fatal(err)
	}
	if err := things.Delete(within(t), "0000", first.Revision); err != nil {
		t.Fatal(err)
	}
	last := put(t, things, Record[thing]{ID: "last"})
	if _, err := s.client.Compact(within(t), last.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	w := watch(t, things, old)
	w.expect(t, "reset")
	for i := range 1099 {
		w.expect(t, fmt.Sprintf("changed %04d %d", i+1, i+1))
	}
	w.expect(t, "changed last 0", "current")
	put(t, things, Record[thing]{ID: "after"})
	w.expect(t, "changed after 0")

	_, next, err := things.List(within(t), Cursor{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	put(t, things, Record[thing]{ID: "more"})
	if _, err := s.client.Compact(within(t), next.Revision+1, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	_, _, err = things.List(within(t), next, 10)
	wantCode(t, err, fault.Unavailable)
	has(t, err, "begin again")
}

func testLease(t *testing.T, s *Store) {
	ctx, things := within(t), In[thing](s, "lease")
	short, err := s.Grant(ctx, time.Second)
	if err != nil || short.TTL < time.Second || short.TTL > 2*time.Second {
		t.Fatal(short, err)
	}
	long, err := s.Grant(ctx, time.Minute)
	if err != nil || long.TTL != time.Minute {
		t.Fatal(long, err)
	}
	w := watch(t, things, 0)
	w.expect(t, "reset", "current")
	a := put(t, things, Record[thing]{ID: "a", Lease: short.ID})
	b := put(t, things, Record[thing]{ID: "b", Lease: long.ID})
	b.Value.N = 1
	b = put(t, things, b)
	w.expect(t, "changed a 0", "changed b 0", "changed b 1")
	if got, err := things.Get(ctx, "b"); err != nil || got.Lease != long.ID {
		t.Fatal(got, err)
	}

	if ttl, err := s.KeepAlive(ctx, short.ID); err != nil || ttl != short.TTL {
		t.Fatal(ttl, err)
	}
	renewed := time.Now()
	w.expect(t, "gone a") // it ended
	if took := time.Since(renewed); took < short.TTL-100*time.Millisecond || took > short.TTL+5*time.Second {
		t.Errorf("a lease of %v took %v", short.TTL, took)
	}
	_, err = s.KeepAlive(ctx, short.ID)
	wantCode(t, err, fault.NotFound)
	has(t, err, "the lease has ended")
	a.Revision = 0
	_, err = things.Put(ctx, a)
	wantCode(t, err, fault.NotFound)

	for range 2 {
		if err := s.Revoke(ctx, long.ID); err != nil {
			t.Fatal(err)
		}
	}
	w.expect(t, "gone b")
	_, err = things.Put(ctx, b)
	wantCode(t, err, fault.Exists)
	for _, ttl := range []time.Duration{0, -1, 1000 * 24 * time.Hour} {
		_, err = s.Grant(ctx, ttl)
		wantCode(t, err, fault.Invalid)
	}
}

func testDamagedRecord(t *testing.T, s *Store) {
	ctx, things := within(t), In[thing](s, "damaged")
	for _, value := range []string{"", "{", `{"w":"1"}`, `{"w":"1","v":7}`} {
		if _, err := s.client.Put(ctx, s.key("damaged", "a"), value); err != nil {
			t.Fatal(err)
		}
		_, err := things.Get(ctx, "a")
		wantCode(t, err, fault.Corrupt)
		has(t, err, "damaged/a", "/penstock/v1/damaged/a")
		_, _, err = things.List(ctx, Cursor{}, 10)
		wantCode(t, err, fault.Corrupt)
		wantCode(t, things.Watch(ctx, 0, func(Event[thing]) error { return nil }), fault.Corrupt)
	}
}
