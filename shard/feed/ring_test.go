package feed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
	"golang.org/x/sys/unix"
)

// mapped is how many rings this process maps, of either side.
func mapped() int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	return bytes.Count(b, []byte("memfd:penstock"))
}

func openFiles(t testing.TB) int {
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}

// tensorJob has batches of n numbers per rank: 8 bytes each.
func tensorJob(t testing.TB, ranks, n int, o shard.Options) []*shard.Iterator {
	t.Helper()
	o.BatchPerRank, o.Form = n, shard.Form{Tensors: true}
	if o.Shuffle == nil {
		o.Shuffle = &shard.Shuffle{Lanes: 2, WindowRows: 1000}
	}
	its, err := dataset.Range(int64(n)*1000).Shards(context.Background(), ranks, &dataset.ShardOptions{Options: o})
	must(t, err)
	return its
}

// Tensors are not copied on their way: what the iterator made lies where the consumer sees it.
func TestInPlace(t *testing.T) {
	its := tensorJob(t, 1, 1000, shard.Options{})
	defer its[0].Close()
	r, err := newRing(its[0])
	must(t, err)
	defer r.close()
	early, err := its[0].Next(t.Context())
	must(t, err)
	defer early.Release()
	its[0].SetMemory(r.mem)
	in := 0
	for range 10 {
		b, err := its[0].Next(t.Context())
		must(t, err)
		at, ok := r.mem.Offset(b.Buffer())
		if ok {
			in++
		}
		place, done, err := r.place(b)
		must(t, err)
		if place.length != 8000 || ok && place.offset != uint64(at) {
			t.Errorf("a batch of 8000 bytes at %d, told as %+v", at, place)
		}
		held := r.mem.Live()
		b.Release()
		if r.mem.Live() != held {
			t.Error("freed while the consumer looks at it")
		}
		done()
		if ok && r.mem.Live() >= held {
			t.Error("not freed")
		}
	}
	if in < 10-3 { // prefetch was made before
		t.Errorf("%d of 10 batches were made in the ring", in)
	}
	paid := int64(0)
	for _, p := range r.paid.paid {
		paid += p.n
	}
	if paid != r.mem.Resident() || paid == 0 {
		t.Errorf("%d bytes are paid, %d taken", paid, r.mem.Resident())
	}
}

// A rank that begins has its batches made in its ring from the first one on.
func TestBeginInPlace(t *testing.T) {
	it := tensorJob(t, 1, 1000, shard.Options{})[0]
	defer it.Close()
	r, err := newRing(it)
	must(t, err)
	defer r.close()
	st := &seat{it: it, wanted: make(chan struct{}, maxAhead)}
	s := &server{ranks: []int{0}, seats: map[int]*seat{0: st}, started: make(chan struct{}), end: func(error) {}}
	begin := appendFrame(nil, frameBegin, binary.LittleEndian.AppendUint64(nil, 2))
	if _, err := s.listen(bytes.NewReader(begin), st, &sender{w: io.Discard, ring: r}, func() {}); err != io.EOF {
		t.Error(err)
	}
	for range 5 {
		b, err := it.Next(t.Context())
		must(t, err)
		if _, ok := r.mem.Offset(b.Buffer()); !ok {
			t.Error("a batch that is not in the ring")
		}
		b.Release()
	}
}

// What a toll pays is what it was told, in any sequence.
func TestToll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	held, want := int64(0), int64(0)
	x := &toll{charge: func(n int64) func() {
		if n <= 0 {
			t.Fatalf("charged %d", n)
		}
		held += n
		return sync.OnceFunc(func() { held -= n })
	}}
	for range 5000 {
		d := rng.Int64N(1000) - 500
		d = max(d, -want)
		x.add(d)
		if want += d; held != want {
			t.Fatalf("%d held, not %d", held, want)
		}
	}
}

// An iterator that was used before it is served goes on where it stands.
func TestServeUsed(t *testing.T) {
	for _, form := range []bool{false, true} {
		o := shard.Options{Lineage: true}
		open := func() *shard.Iterator {
			its := tensorJob(t, 1, 50, o)
			if form {
				return its[0]
			}
			its[0].Close()
			its, err := columns(t, 3000).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 50, Lineage: true}})
			must(t, err)
			return its[0]
		}
		a, b := open(), open()
		for _, it := range []*shard.Iterator{a, b} {
			x, err := it.Next(t.Context())
			must(t, err)
			x.Release()
		}
		path := socket(t)
		wait := serving(t, t.Context(), path, []*shard.Iterator{b}, nil)
		c := dialTest(t, path, 0, nil)
		for i := range 10 {
			x, err := a.Next(t.Context())
			must(t, err)
			y, err := c.Next(t.Context())
			must(t, err)
			if x.Digest() != y.Digest() || !reflect.DeepEqual(x.Lineage(), y.Lineage()) {
				t.Errorf("batch %d differs", i)
			}
			x.Release()
			y.Release()
		}
		c.Close()
		a.Close()
		must(t, wait())
	}
}

// Batches stay as they are when everything else is gone: the client, the data process, the job. Then their memory goes, too.
func TestViewsStay(t *testing.T) {
	before := mapped()
	for _, tensors := range []bool{false, true} {
		for _, how := range []string{"client closes", "job ends", "connection is lost"} {
			ctx, cancel := context.WithCancel(t.Context())
			o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 700, Form: shard.Form{Tensors: tensors}}}
			if tensors {
				o.Form.Columns = map[string]shard.Column{"id": {}, "f": {}}
			}
			its, err := columns(t, 30_000).Shards(ctx, 1, o)
			must(t, err)
			path := socket(t)
			wait := serving(t, ctx, path, its, nil)
			c := dialTest(t, path, 0, nil)
			type kept struct {
				b   *shard.Batch
				sum [32]byte
			}
			var all []kept
			for range 5 {
				b, err := c.Next(t.Context())
				must(t, err)
				b.Retain()
				all = append(all, kept{b, b.Digest()})
				b.Release()
			}
			switch how {
			case "client closes":
				c.Close()
			case "job ends":
				cancel()
			default:
				c.conn.Close()
			}
			if err := wait(); (err == nil) != (how == "client closes") {
				t.Errorf("%s: %v", how, err)
			}
			c.Close()
			runtime.GC()
			for i, k := range all {
				if k.b.Digest() != k.sum {
					t.Errorf("%s, tensors %v: batch %d has other bytes", how, tensors, i)
				}
				if mapped() != before+1 {
					t.Errorf("%s: %d mappings before the last batch is released", how, mapped()-before)
				}
				k.b.Release()
			}
			if mapped() != before {
				t.Errorf("%s: still mapped", how)
			}
			cancel()
		}
	}
}

// Who comes and goes leaves no file and no mapping behind.
func TestNothingLeft(t *testing.T) {
	g := newGroup(t, t.Context(), 1, nil, false)
	maps, files := mapped(), openFiles(t)
	for range 50 {
		c := dialTest(t, g.path, 0, nil)
		c.conn.Close() // nothing was asked for
		c.Close()
	}
	c := dialTest(t, g.path, 0, nil) // once the others are gone
	c.Close()
	must(t, g.wait())
	if m, f := mapped(), openFiles(t); m > maps || f > files {
		t.Errorf("%d mappings and %d files more", m-maps, f-files)
	}
}

// A consumer that keeps its batches is fed all the same, and what it gives back is used again.
func TestKeep(t *testing.T) {
	its := tensorJob(t, 1, 10_000, shard.Options{Endless: true})
	path := socket(t)
	wait := serving(t, t.Context(), path, its, nil)
	c := dialTest(t, path, 0, nil)
	rng := rand.New(rand.NewPCG(3, 4))
	var all []*shard.Batch
	var first [][]int64
	at := map[uintptr]bool{}
	for i := range 600 {
		b, err := c.Next(t.Context())
		must(t, err)
		id := shard.Values[int64](b.Tensors()[0])
		at[address(b.Buffer())] = true
		all, first = append(all, b), append(first, append([]int64(nil), id...))
		keep := 40
		if i > 300 {
			keep = 2
		}
		for len(all) > keep {
			k := rng.IntN(len(all))
			if !reflect.DeepEqual(shard.Values[int64](all[k].Tensors()[0]), first[k]) {
				t.Fatalf("a batch that was kept has changed")
			}
			all[k].Release()
			all, first = append(all[:k], all[k+1:]...), append(first[:k], first[k+1:]...)
		}
	}
	if len(at) > 60 {
		t.Errorf("batches lay at %d places", len(at))
	}
	for _, b := range all {
		b.Release()
	}
	c.Close()
	must(t, wait())
}

// Where the memory is used up, the job fails with what to do; on several ranks as on one.
func TestFull(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		its := tensorJob(t, ranks, 1000, shard.Options{})
		small, err := mem.NewShared(1<<16, nil)
		must(t, err)
		its[0].SetMemory(small)
		var kept []*shard.Batch
		for err == nil {
			var b *shard.Batch
			for _, it := range its {
				if b, err = it.Next(t.Context()); err == nil {
					kept = append(kept, b)
				}
			}
		}
		wantError(t, err, fault.Exhausted, "give batches back sooner")
		if len(kept) < 3 {
			t.Errorf("%d batches fit", len(kept))
		}
		for _, b := range kept {
			b.Release()
		}
		for _, it := range its {
			must(t, it.Close())
		}
		small.Close()
	}
	// The stream of a record that does not fit.
	its, err := columns(t, 3000).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 3000}})
	must(t, err)
	defer its[0].Close()
	r, err := newRing(its[0])
	must(t, err)
	defer r.close()
	r.mem.Close()
	r.mem, err = mem.NewShared(1<<16, nil)
	must(t, err)
	w := &sender{w: io.Discard, ring: r}
	at := its[0].State()
	b, err := its[0].Next(t.Context())
	if err == nil {
		err = w.batch(b, &at, 0)
		b.Release()
	}
	wantError(t, err, fault.Exhausted)
	if r.mem.Live() != 0 {
		t.Errorf("%d bytes are left", r.mem.Live())
	}
}

// The notice counts from the same step on for every rank, whatever their pace, and that is one that nobody had been sent.
func TestNotice(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		ranks := 1 + rng.IntN(4)
		its, err := dataset.Range(int64(ranks)*400).Shards(t.Context(), ranks, &dataset.ShardOptions{Options: shard.Options{
			BatchPerRank: 10, Endless: rng.IntN(2) == 0, Prefetch: 1 + rng.IntN(4), Form: shard.Form{Tensors: rng.IntN(2) == 0}}})
		must(t, err)
		notice := &Notice{}
		path := socket(t)
		wait := serving(t, t.Context(), path, its, &Options{Notice: notice})
		when := rng.IntN(100) // batches of all ranks until the notice; 0: before the first
		var mu sync.Mutex
		var last Step // the furthest that was given before it
		given := 0
		tell := func(at Step) {
			mu.Lock()
			defer mu.Unlock()
			if given < when && last.Before(at) {
				last = at
			}
			if given++; given == when {
				notice.Give()
			}
		}
		if when == 0 {
			notice.Give()
		}
		from := make([]Step, ranks)
		ahead := rng.IntN(4) // 0: by size and pace, each rank its own
		var all sync.WaitGroup
		for r := range ranks {
			pace := 1 + rng.IntN(2000)
			rng := rand.New(rand.NewPCG(seed, uint64(r)+10))
			all.Go(func() {
				c, err := Dial(t.Context(), path, r, &DialOptions{Prefetch: ahead})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				from[r] = Step{1 << 60, 0} // never
				for range 140 {
					b, err := c.Next(t.Context())
					if err == io.EOF {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					at := Step{b.Epoch(), b.Step()}
					b.Release()
					switch was := from[r]; {
					case c.Noticed() && at.Before(was):
						from[r] = at
					case !c.Noticed() && was.Before(at):
						t.Errorf("the notice is taken back")
					}
					tell(at)
					for range rng.IntN(pace) {
						runtime.Gosched()
					}
				}
			})
		}
		all.Wait()
		must(t, wait())
		for r, f := range from {
			if f != from[0] || when > 0 && !last.Before(f) || when == 0 && f != (Step{}) {
				t.Errorf("seed %d: rank %d of %d is told at %+v, rank 0 at %+v; %+v was given before, notice after %d batches", seed, r, ranks, f, from[0], last, when)
			}
			// Beyond what was given each rank may have been sent what it had asked for; epochs have 40 steps.
			most := cmp.Or(ahead, aheadMost) + 4
			if d := int64(f.Epoch-last.Epoch)*40 + f.Step - last.Step; when > 0 && d > int64(most) {
				t.Errorf("seed %d: told %d steps later", seed, d)
			}
		}
	}
}

// What is held is not sent; it goes on when it is let go, from the marked step on with the notice. A consumer can leave, and the group end, meanwhile.
func TestNoticeHeld(t *testing.T) {
	n := &Notice{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := newGroup(t, ctx, 2, &Options{Notice: n}, false)
	for r := range 2 {
		g.all = append(g.all, dialTest(t, g.path, r, &DialOptions{Prefetch: 1}))
	}
	wantError(t, n.Mark(Step{0, 5}), fault.Invalid, "hold first")
	if first := n.Hold(); first != (Step{}) {
		t.Errorf("%+v was sent", first)
	}
	n.Release()
	g.step(t, 4)
	first := n.Hold()
	if first.Step < 4 || first.Step > 6 || n.Hold() != first {
		t.Errorf("after 4 steps, %+v", first)
	}
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	for r, c := range g.all {
		for {
			b, err := c.Next(short)
			if err != nil {
				wantError(t, err, fault.Canceled)
				break
			}
			if b.Step() >= first.Step {
				t.Errorf("rank %d was sent step %d, %d is the first that none was", r, b.Step(), first.Step)
			}
			b.Release()
		}
	}
	wantError(t, n.Mark(Step{0, first.Step - 1}), fault.Invalid, "was sent already")
	must(t, n.Mark(Step{0, first.Step + 3}))
	must(t, n.Mark(Step{0, first.Step + 9})) // comes too late
	var all sync.WaitGroup
	for r, c := range g.all {
		all.Go(func() {
			for s := c.Step(); s < first.Step+6; s++ {
				b, err := c.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				b.Release()
				if c.Noticed() != (s >= first.Step+3) {
					t.Errorf("rank %d, step %d: noticed %v; marked from %d on", r, s, c.Noticed(), first.Step+3)
				}
			}
		})
	}
	all.Wait()
	if again := n.Hold(); again != (Step{0, first.Step + 3}) {
		t.Errorf("then %+v", again)
	}
	for _, c := range g.all {
		c.Close()
	}
	must(t, g.wait())

	n = &Notice{}
	g = newGroup(t, ctx, 2, &Options{Notice: n}, true)
	n.Hold()
	g.all[0].Close()
	cancel()
	wantError(t, g.wait(), fault.Canceled)
}

// Without a notice, nothing is noticed.
func TestNoNotice(t *testing.T) {
	g := newGroup(t, t.Context(), 2, &Options{Notice: &Notice{}}, true)
	g.step(t, 20)
	for _, c := range g.all {
		if c.Noticed() {
			t.Error("noticed")
		}
		c.Close()
	}
	must(t, g.wait())
}

// After a loss the same process opens its iterators again, from a state, and serves them on the listener that it has, to another number of ranks.
func TestServeAgain(t *testing.T) {
	path := socket(t)
	l, err := Listen(path)
	must(t, err)
	defer l.Close()
	open := func(ranks int, at *shard.State) []*shard.Iterator {
		its, err := dataset.Range(100_000).Shards(t.Context(), ranks, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 60, State: at, Form: shard.Form{Tensors: true}}})
		must(t, err)
		return its
	}
	whole := open(1, nil)[0]
	defer whole.Close()
	var want [][]int64
	for range 30 {
		b, err := whole.Next(t.Context())
		must(t, err)
		want = append(want, append([]int64(nil), shard.Values[int64](b.Tensors()[0])...))
		b.Release()
	}
	var at *shard.State
	step := 0
	for round, ranks := range []int{3, 2, 5} {
		done := make(chan error, 1)
		its := open(ranks, at)
		go func() { done <- Serve(t.Context(), l, its, nil) }()
		all := make([]*Client, ranks)
		for r := range all {
			all[r] = dialTest(t, path, r, nil)
		}
		for range 7 {
			got := map[int64]int{}
			var mu sync.Mutex
			var ranks sync.WaitGroup
			for _, c := range all {
				ranks.Go(func() {
					b, err := c.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					defer b.Release()
					mu.Lock()
					defer mu.Unlock()
					for _, id := range shard.Values[int64](b.Tensors()[0]) {
						got[id]++
					}
				})
			}
			ranks.Wait()
			for _, id := range want[step] {
				if got[id] != 1 {
					t.Fatalf("round %d, step %d: row %d comes %d times", round, step, id, got[id])
				}
			}
			step++
		}
		s := all[0].State()
		at = &s
		all[ranks-1].conn.Close()
		wantError(t, <-done, fault.WorkerLost)
		for _, c := range all {
			c.Close()
		}
	}
}

// What a data process says of its memory is not believed.
func TestBadRing(t *testing.T) {
	it := tensorJob(t, 1, 10, shard.Options{})[0]
	defer it.Close()
	state := it.State()
	good, err := mem.NewShared(1<<20, nil)
	must(t, err)
	defer good.Close()
	fd, err := unix.MemfdCreate("open", unix.MFD_CLOEXEC)
	must(t, err)
	open := os.NewFile(uintptr(fd), "open")
	defer open.Close()
	must(t, open.Truncate(1<<20))
	files, maps := openFiles(t), mapped()
	for _, c := range []struct {
		name  string
		files []*os.File
		size  int64
		text  string
	}{
		{"none", nil, 1 << 20, "no memory came"},
		{"not sealed", []*os.File{open}, 1 << 20, "sealed against shrinking"},
		{"too small", []*os.File{good.File()}, 1<<20 + 1, "1048576 bytes, not 1048577"},
		{"no size", []*os.File{good.File()}, 0, "not 0"},
		{"negative", []*os.File{good.File()}, -1, "not -1"},
		{"two", []*os.File{good.File(), open}, 1 << 20, ""},
	} {
		path := socket(t)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		must(t, err)
		var served sync.WaitGroup
		served.Go(func() {
			conn, err := l.AcceptUnix()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			readHello(conn)
			var fds []int
			for _, f := range c.files {
				fds = append(fds, int(f.Fd()))
			}
			b, err := json.Marshal(welcome{Extent: shard.Extent{Batch: 1}, State: state, Ring: c.size})
			if err != nil {
				t.Error(err)
			}
			conn.Write(preamble(nil))
			conn.WriteMsgUnix(appendFrame(nil, frameWelcome, b), unix.UnixRights(fds...), nil)
			io.Copy(io.Discard, conn)
		})
		cl, err := Dial(t.Context(), path, 0, &DialOptions{Wait: -1})
		if c.text != "" {
			wantError(t, err, fault.Corrupt, c.text)
		} else {
			must(t, err)
			cl.Close()
		}
		served.Wait()
		l.Close()
		if f, m := openFiles(t), mapped(); f > files || m > maps {
			t.Errorf("%s: %d files and %d mappings are left", c.name, f-files, m-maps)
		}
	}
}

// A consumer may ask for pages that stay where they are; other flags are refused.
func TestBegin(t *testing.T) {
	for _, c := range []struct {
		flags uint32
		ok    bool
	}{{0, true}, {beginPinned, true}, {2, false}, {1 << 8, false}, {1 << 31, false}} {
		g := newGroup(t, t.Context(), 1, nil, true)
		begin := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 1), c.flags)
		must(t, g.all[0].send(frameBegin, begin))
		kind, meta, err := g.all[0].r.frame(maxState)
		must(t, err)
		if (kind == frameStarted) != c.ok || !c.ok && !strings.Contains(string(meta), "at the wrong time") {
			t.Errorf("flags %#x: a frame of kind %d, %q", c.flags, kind, meta)
		}
		g.all[0].Close()
		if !c.ok { // the rank is free again
			must(t, dialTest(t, g.path, 0, nil).Close())
		}
		must(t, g.wait())
	}
}

// A window takes what lies in it, and nothing else.
func TestWindow(t *testing.T) {
	ring := memory.NewGoAllocator().Allocate(1 << 16)
	var free []span
	w := &window{ring: ring, free: func(in span) { free = append(free, in) }}
	for _, in := range []span{{1 << 16, 64}, {64, 1 << 16}, {1, 64}, {1 << 63, 64}, {0, 1<<16 + 1}, {64, 1<<64 - 64}, {1<<64 - 64, 64}} {
		if _, err := w.take(in); err != errDamaged {
			t.Errorf("%+v: %v", in, err)
		}
	}
	for _, in := range []span{{0, 1 << 16}, {1<<16 - 64, 64}, {1<<16 - 64, 1}, {128, 100}} {
		b, err := w.take(in)
		must(t, err)
		part := memory.SliceBuffer(b, 0, 1)
		b.Release()
		if len(free) > 0 {
			t.Errorf("%+v is free while a part of it is used", in)
		}
		part.Release()
		if fmt.Sprint(free) != fmt.Sprint([]span{in}) {
			t.Errorf("%+v: %v is free", in, free)
		}
		free = nil
	}
	b, err := w.take(span{1 << 40, 0}) // of no bytes
	must(t, err)
	if b.Release(); b.Len() != 0 || len(free) > 0 || w.views != 0 {
		t.Errorf("%d views, %v", w.views, free)
	}
}
