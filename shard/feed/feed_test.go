package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/shard"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if cfg := os.Getenv("PENSTOCK_FEED_CHILD"); cfg != "" {
		child(cfg)
	}
	goleak.VerifyTestMain(m)
}

// socket is a path that is short enough, in a folder of its own.
func socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "feed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// serving runs Serve; wait gives what it returned.
func serving(t testing.TB, ctx context.Context, path string, its []*shard.Iterator, o *Options) (wait func() error) {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		err := Serve(ctx, l, its, o)
		l.Close()
		done <- err
	}()
	return sync.OnceValue(func() error { return <-done })
}

func dialTest(t testing.TB, path string, rank int, o *DialOptions) *Client {
	t.Helper()
	c, err := Dial(t.Context(), path, rank, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// columns of every kind that a batch in Arrow form may have.
func columns(t testing.TB, n int) *dataset.Dataset {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "x", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)},
		{Name: "f", Type: arrow.FixedSizeListOfNonNullable(3, arrow.PrimitiveTypes.Uint8)},
		{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
	}, nil)
	var recs []arrow.RecordBatch
	for at := 0; at < n; at += 500 {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for i := at; i < min(at+500, n); i++ {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
			b.Field(1).(*array.Float32Builder).Append(float32(i) / 3)
			if i%7 == 0 {
				b.Field(2).AppendNull()
				b.Field(3).AppendNull()
				b.Field(6).AppendNull()
			} else {
				b.Field(2).(*array.StringBuilder).Append(strings.Repeat("ä", i%5))
				b.Field(3).(*array.BooleanBuilder).Append(i%3 == 0)
				if err := b.Field(6).(*array.BinaryDictionaryBuilder).AppendString(fmt.Sprint("v", (i+at/500)%4)); err != nil {
					t.Fatal(err)
				}
			}
			l := b.Field(4).(*array.ListBuilder)
			l.Append(true)
			for k := range i % 4 {
				l.ValueBuilder().(*array.Int32Builder).Append(int32(i + k))
			}
			f := b.Field(5).(*array.FixedSizeListBuilder)
			f.Append(true)
			for k := range 3 {
				f.ValueBuilder().(*array.Uint8Builder).Append(uint8(i + k))
			}
		}
		recs = append(recs, b.NewRecordBatch())
		b.Release()
	}
	ds := dataset.FromRecords(schema, recs...)
	return ds
}

// Consumers of the feed get what iterators of this process give: the same bytes, numbers, lineage,
// ends of epochs and states, in both forms.
func TestSame(t *testing.T) {
	lists := map[string]shard.Column{"id": {}, "x": {DType: shard.BFloat16}, "f": {}, "l": {Lists: shard.ListsRagged}, "b": {}}
	delete(lists, "b") // has nulls
	forms := []shard.Form{{}, {Tensors: true, Columns: lists},
		{Tensors: true, Columns: map[string]shard.Column{"id": {DType: shard.Float64}, "l": {Lists: shard.ListsPadGlobal, Multiple: 2}}}}
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			ranks := 1 + rng.IntN(4)
			ds := columns(t, 3000+rng.IntN(500))
			if rng.IntN(2) == 0 {
				ds = ds.Filter("id % 3 != 0")
			}
			o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: seed}, Options: shard.Options{
				GlobalBatch: 20 + rng.IntN(300), Lineage: rng.IntN(2) == 0, Epochs: 2, Form: forms[rng.IntN(len(forms))],
				Tail: []shard.Tail{shard.TailDrop, shard.TailPad, shard.TailRepeat}[rng.IntN(3)], Prefetch: rng.IntN(4) - 1,
				Shuffle: &shard.Shuffle{Lanes: 1 + rng.IntN(3), WindowRows: int64(50 + rng.IntN(400))},
			}}
			local, err := ds.Shards(t.Context(), ranks, o)
			if err != nil {
				t.Fatal(err)
			}
			served, err := ds.Shards(t.Context(), ranks, o)
			if err != nil {
				t.Fatal(err)
			}
			path := socket(t)
			wait := serving(t, t.Context(), path, served, nil)
			alloc := memtest.New(t)
			var all sync.WaitGroup
			for r := range ranks {
				all.Go(func() {
					c, err := Dial(t.Context(), path, r, &DialOptions{Allocator: alloc, Prefetch: 1 + int(seed)%3})
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					if err := same(t.Context(), local[r], c); err != nil {
						t.Errorf("rank %d of %d: %v", r, ranks, err)
					}
				})
			}
			all.Wait()
			if err := wait(); err != nil {
				t.Error(err)
			}
			for _, it := range local {
				it.Close()
			}
		})
	}
}

// same reads both to their ends.
func same(ctx context.Context, it *shard.Iterator, c *Client) error {
	if a, b := it.State(), c.State(); !reflect.DeepEqual(a, b) {
		return fmt.Errorf("begins at %+v, not %+v", b, a)
	}
	n, known := it.Len()
	if m, ok := c.Len(); m != n || ok != known {
		return fmt.Errorf("Len is %d, %v, not %d, %v", m, ok, n, known)
	}
	batches, ends := 0, 0
	for ends < 4 { // two epochs, and twice more
		a, aerr := it.Next(ctx)
		b, berr := c.Next(ctx)
		if aerr != berr {
			return fmt.Errorf("after %d batches: %v, not %v", batches, berr, aerr)
		}
		sa, sb := it.State(), c.State()
		if !reflect.DeepEqual(sa, sb) {
			return fmt.Errorf("after %d batches: state %+v, not %+v", batches, sb, sa)
		}
		if c.Step() != it.Step() || c.Epoch() != it.Epoch() {
			return fmt.Errorf("after %d batches: epoch %d, step %d", batches, c.Epoch(), c.Step())
		}
		if aerr == io.EOF {
			ends++
			continue
		}
		if aerr != nil {
			return aerr
		}
		batches++
		switch {
		case a.Digest() != b.Digest():
			return fmt.Errorf("batch %d has other bytes", batches)
		case a.Rows() != b.Rows() || a.Real() != b.Real() || a.Step() != b.Step() || a.Epoch() != b.Epoch() || a.Rank() != b.Rank():
			return fmt.Errorf("batch %d: rows %d, real %d, step %d, epoch %d, rank %d", batches, b.Rows(), b.Real(), b.Step(), b.Epoch(), b.Rank())
		case !reflect.DeepEqual(a.Samples(), b.Samples()):
			return fmt.Errorf("batch %d: samples %v, not %v", batches, b.Samples(), a.Samples())
		case !reflect.DeepEqual(a.Lineage(), b.Lineage()):
			return fmt.Errorf("batch %d has another lineage", batches)
		case (a.Record() == nil) != (b.Record() == nil) || len(a.Tensors()) != len(b.Tensors()):
			return fmt.Errorf("batch %d has another form", batches)
		case a.Record() != nil && !a.Record().Schema().Equal(b.Record().Schema()):
			return fmt.Errorf("batch %d has the schema %v", batches, b.Record().Schema())
		}
		for i, x := range b.Tensors() {
			y := a.Tensors()[i]
			if x.Name != y.Name || len(x.Data) > 0 && address(x.Data)%64 != 0 {
				return fmt.Errorf("batch %d: tensor %q lies at %d", batches, x.Name, address(x.Data))
			}
		}
		a.Release()
		b.Release()
	}
	if batches == 0 {
		return errors.New("no batch")
	}
	return nil
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// group is a data process in this one, and its clients.
type group struct {
	path string
	wait func() error
	its  []*shard.Iterator
	all  []*Client
}

func newGroup(t testing.TB, ctx context.Context, ranks int, so *Options, dial bool) *group {
	t.Helper()
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 64 * ranks, Shuffle: &shard.Shuffle{Lanes: 2, WindowRows: 1000}}}
	its, err := dataset.Range(200_000).Shards(context.Background(), ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	g := &group{path: socket(t), its: its}
	g.wait = serving(t, ctx, g.path, its, so)
	for r := 0; r < ranks && dial; r++ {
		g.all = append(g.all, dialTest(t, g.path, r, nil))
	}
	return g
}

// step reads a batch on every client at once.
func (g *group) step(t testing.TB, n int) {
	t.Helper()
	for range n {
		var all sync.WaitGroup
		for _, c := range g.all {
			all.Go(func() {
				b, err := c.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				b.Release()
			})
		}
		all.Wait()
	}
}

// drain reads until an error.
func drain(t testing.TB, c *Client) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 3 { // 2 are ahead
		b, err := c.Next(ctx)
		if err != nil {
			return err
		}
		b.Release()
	}
	return errors.New("it goes on and on")
}

func wantError(t testing.TB, err error, code fault.Code, texts ...string) {
	t.Helper()
	if err == nil || fault.CodeOf(err) != code {
		t.Errorf("got %v error %v, want %v", fault.CodeOf(err), err, code)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error %q does not say %q", err, s)
		}
	}
}

// A consumer that is lost ends the group: Serve, and all others, say which.
func TestConsumerLost(t *testing.T) {
	for _, restored := range []bool{false, true} {
		g := newGroup(t, t.Context(), 3, nil, true)
		if restored { // and no more
			must(t, g.all[1].Restore(g.all[1].State()))
		} else {
			// Nothing was asked for: the rank is free again.
			g.all[1].conn.Close()
			g.all[1] = dialTest(t, g.path, 1, nil)
			g.step(t, 3)
		}
		g.all[1].conn.Close() // as the system does for a process that dies
		wantError(t, g.wait(), fault.WorkerLost, "rank 1", "restore the last committed state")
		for _, r := range []int{0, 2} {
			err := drain(t, g.all[r])
			wantError(t, err, fault.WorkerLost, "rank 1", "lost")
			if _, again := g.all[r].Next(t.Context()); again != err {
				t.Errorf("then %v", again)
			}
		}
	}
}

// The end of the data process is an error at once, and State that of the last batch given.
func TestServerGone(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	g := newGroup(t, ctx, 2, nil, true)
	g.step(t, 5)
	cancel(errors.New("told to"))
	wantError(t, g.wait(), fault.Canceled, "told to")
	for _, c := range g.all {
		n := 5
		for {
			b, err := c.Next(t.Context())
			if err != nil {
				wantError(t, err, fault.Unavailable)
				break
			}
			b.Release()
			n++
		}
		if s := c.State(); s.Step != int64(n) || n > 5+2 {
			t.Errorf("%d batches, but the state has step %d", n, s.Step)
		}
	}
	_, err := Dial(t.Context(), g.path, 0, &DialOptions{Wait: -1})
	wantError(t, err, fault.Unavailable, g.path, "no data process")
}

// A rank that is given up holds nobody up; the last one ends Serve.
func TestClose(t *testing.T) {
	g := newGroup(t, t.Context(), 3, nil, true)
	g.step(t, 2)
	g.all[2].Close()
	g.all[2].Close()
	_, err := g.all[2].Next(t.Context())
	wantError(t, err, fault.Invalid, "closed")
	_, err = Dial(t.Context(), g.path, 0, &DialOptions{Wait: -1})
	wantError(t, err, fault.Exists, "rank 0 is taken by process", fmt.Sprint(os.Getpid()))
	g.all = g.all[:2]
	g.step(t, 50)
	_, err = Dial(t.Context(), g.path, 2, nil) // waits until the bye has been read
	wantError(t, err, fault.Invalid, "rank 2 was given up")
	_, err = Dial(t.Context(), g.path, 3, nil)
	wantError(t, err, fault.NotFound, "rank 3 is not served here; have ranks 0, 1, 2")
	g.all[0].Close()
	g.all[1].Close()
	if err := g.wait(); err != nil {
		t.Error(err)
	}
}

// All ranks restore the same state, before the first batch; every deviation is named.
func TestRestore(t *testing.T) {
	g := newGroup(t, t.Context(), 2, nil, true)
	g.step(t, 7)
	at := g.all[0].State()
	wantError(t, g.all[0].Restore(at), fault.Invalid, "has begun")
	g.step(t, 1)
	other := g.all[0].State()
	g.all[0].Close()
	g.all[1].Close()
	if err := g.wait(); err != nil {
		t.Fatal(err)
	}

	g = newGroup(t, t.Context(), 3, nil, true)
	bad := at
	bad.Plan = "0"
	wantError(t, g.all[0].Restore(bad), fault.Invalid, "another plan")
	for i, c := range g.all {
		if err := c.Restore(at); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			wantError(t, g.all[2].Restore(other), fault.Invalid, "all ranks go on from the same state")
		}
		if !reflect.DeepEqual(c.State(), at) {
			t.Errorf("the state is %+v", c.State())
		}
	}
	g.step(t, 1)
	if s := g.all[1].State(); s.Step != 8 || s.Sample != at.Sample+192 {
		t.Errorf("goes on at step %d, sample %d", s.Step, s.Sample)
	}
	for _, c := range g.all {
		c.Close()
	}
	if err := g.wait(); err != nil {
		t.Error(err)
	}

	g = newGroup(t, t.Context(), 2, nil, true)
	if err := g.all[1].Restore(at); err != nil {
		t.Fatal(err)
	}
	go g.all[0].Next(t.Context())
	wantError(t, drain(t, g.all[1]), fault.Invalid, "rank 1 restored a state, rank 0 did not")
	wantError(t, g.wait(), fault.Invalid)
}

// Ranks that do not come are named after a while.
func TestWait(t *testing.T) {
	g := newGroup(t, t.Context(), 3, &Options{Wait: time.Millisecond}, false)
	c := dialTest(t, g.path, 1, nil)
	wantError(t, drain(t, c), fault.Stalled, "ranks 0, 2", "1ms")
	wantError(t, g.wait(), fault.Stalled)
}

// A failure of the job reaches everybody with its code.
func TestJobFails(t *testing.T) {
	its, err := dataset.Range(10_000).MapBatches(func(_ context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
		if n := int(rec.NumRows()); n > 0 && rec.Column(0).(*array.Int64).Value(n-1) >= 5000 {
			return nil, errors.New("no more than this")
		}
		rec.Retain()
		return rec, nil
	}, nil).Shards(t.Context(), 2,
		&dataset.ShardOptions{Options: shard.Options{GlobalBatch: 100, Shuffle: &shard.Shuffle{Lanes: 1, WindowRows: 1000}}})
	if err != nil {
		t.Fatal(err)
	}
	path := socket(t)
	wait := serving(t, t.Context(), path, its, nil)
	var all sync.WaitGroup
	for r := range 2 {
		c := dialTest(t, path, r, nil)
		all.Go(func() {
			defer c.Close()
			for {
				b, err := c.Next(t.Context())
				if err != nil {
					wantError(t, err, fault.UserCode, "data process", "no more than this")
					return
				}
				b.Release()
			}
		})
	}
	all.Wait()
	wantError(t, wait(), fault.UserCode)
}

// A call that is given up loses nothing.
func TestNextCanceled(t *testing.T) {
	g := newGroup(t, t.Context(), 2, nil, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 { // rank 1 has not begun
		_, err := g.all[0].Next(ctx)
		wantError(t, err, fault.Canceled)
	}
	for i := range 20 {
		g.step(t, 1)
		if s := g.all[0].State(); s.Step != int64(i+1) {
			t.Fatalf("step %d after %d batches", s.Step, i+1)
		}
	}
	for _, c := range g.all {
		c.Close()
	}
	if err := g.wait(); err != nil {
		t.Error(err)
	}
}

// What is ahead of a consumer that does not read is bounded, and so is what a consumer reads ahead.
func TestBackpressure(t *testing.T) {
	budget := int64(64 << 20)
	its, err := dataset.Range(4_000_000).Shards(t.Context(), 1, &dataset.ShardOptions{RunOptions: dataset.RunOptions{Memory: budget},
		Options: shard.Options{GlobalBatch: 100_000, Form: shard.Form{Tensors: true}}})
	if err != nil {
		t.Fatal(err)
	}
	path := socket(t)
	wait := serving(t, t.Context(), path, its, nil)
	alloc := memtest.New(t)
	c := dialTest(t, path, 0, &DialOptions{Allocator: alloc, Prefetch: 3})
	for i := range 20 {
		b, err := c.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if i == 10 {
			for len(c.queue) < 3 { // fills up
				runtime.Gosched()
			}
			for range 10_000 {
				if n := alloc.CurrentAlloc(); n > 3*800_000+3<<10 {
					t.Fatalf("%d bytes read ahead", n)
				}
				runtime.Gosched()
			}
			if at := its[0].Step(); at > 11+3 {
				t.Errorf("%d steps left the iterator for 11 read", at)
			}
		}
	}
	c.Close()
	if err := wait(); err != nil {
		t.Error(err)
	}
	_, err = Dial(t.Context(), path, 0, &DialOptions{Wait: -1})
	wantError(t, err, fault.Unavailable)
}

// A batch over the limit is refused before memory is taken for it.
func TestMaxBatch(t *testing.T) {
	for _, form := range []shard.Form{{}, {Tensors: true}} {
		its, err := dataset.Range(100_000).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10_000, Form: form}})
		if err != nil {
			t.Fatal(err)
		}
		path := socket(t)
		wait := serving(t, t.Context(), path, its, nil)
		c := dialTest(t, path, 0, &DialOptions{MaxBatch: 70_000})
		_, err = c.Next(t.Context())
		if form.Tensors {
			wantError(t, err, fault.Exhausted, "MaxBatch")
		} else {
			wantError(t, err, fault.Corrupt, "at most 70000")
		}
		c.Close()
		if err := wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestListen(t *testing.T) {
	path := socket(t)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	_, err = Listen(path)
	wantError(t, err, fault.Exists, "another process serves this socket")
	l.SetUnlinkOnClose(false) // as if killed
	l.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	if l, err = Listen(path); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Listen(path)
	wantError(t, err, fault.Exists, "no socket")
	_, err = Listen("@abstract")
	wantError(t, err, fault.Invalid)
	_, err = Listen(filepath.Dir(path) + "/" + strings.Repeat("x", 100))
	wantError(t, err, fault.Invalid, "at most 103 bytes")
	dir := filepath.Join(filepath.Dir(path), "new", "folder")
	if l, err = Listen(dir + "/s"); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	_, err = Listen(dir + "/s")
	wantError(t, err, fault.Invalid, "closed to others", "0750")
}

// Several that find the same stale socket: one gets it.
func TestListenRace(t *testing.T) {
	for range 20 {
		path := socket(t)
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		var all sync.WaitGroup
		var mu sync.Mutex
		var got []net.Listener
		for range 8 {
			all.Go(func() {
				if l, err := Listen(path); err == nil {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, l)
				} else {
					wantError(t, err, fault.Exists)
				}
			})
		}
		all.Wait()
		if len(got) != 1 {
			t.Fatalf("%d processes serve one socket", len(got))
		}
		got[0].Close()
	}
}

// What is not a unix socket, and what does not speak the feed, is refused.
func TestStrangers(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	its, err := dataset.Range(1000).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10}})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, Serve(t.Context(), tcp, its, nil), fault.Invalid, "unix sockets only, not on tcp")
	tcp.Close()

	g := newGroup(t, t.Context(), 1, nil, false)
	for _, c := range []struct{ hello, answer string }{
		{"GET / HTTP/1.1\r\n\r\n", "no consumer of a feed"},
		{"penstock\x07\x00\x00\x00\x00\x00", "version 7"},
	} {
		conn, err := net.Dial("unix", g.path)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, c.hello)
		b, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(b), "penstock\x01\x00") || !strings.Contains(string(b), c.answer) {
			t.Errorf("%q is answered with %q", c.hello, b)
		}
		conn.Close()
	}
	// One that says nothing, or nonsense once it has a rank.
	idle, err := net.Dial("unix", g.path)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	c := dialTest(t, g.path, 0, nil)
	must(t, c.send(frameTensors, nil))
	wantError(t, drain(t, c), fault.Corrupt, "at the wrong time")
	c = dialTest(t, g.path, 0, nil)
	b, err := c.Next(t.Context())
	must(t, err)
	b.Release()
	must(t, c.send(frameBegin, nil))
	wantError(t, g.wait(), fault.WorkerLost, "at the wrong time")
}

// Dial waits for a data process that comes later, and for no longer than it is told to.
func TestDialWaits(t *testing.T) {
	path := socket(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := Dial(ctx, path, 0, nil)
		got <- err
	}()
	cancel()
	wantError(t, <-got, fault.Canceled)

	l, err := Listen(path) // nobody accepts yet
	must(t, err)
	defer l.Close()
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, path, 0, nil)
	wantError(t, err, fault.Canceled)

	go func() {
		c, err := Dial(t.Context(), path, 0, nil)
		if err == nil {
			_, err = c.Next(t.Context())
			c.Close()
		}
		got <- err
	}()
	// Two groups one after the other on one listener; the one who gave up above is in nobody's way.
	for i := range 2 {
		its, err := dataset.Range(10).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 100, Epochs: 1}})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		if i == 0 {
			cancel()
		}
		if err := Serve(ctx, l, its, nil); (err == nil) != (i == 1) {
			t.Errorf("group %d: %v", i, err)
		}
		cancel()
	}
	if err := <-got; err != io.EOF {
		t.Error(err)
	}
}
