package feed

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/shard"
)

const fuzzLimit = 1 << 20

// streams are what data processes send after the welcome, in several forms, and the state of
// the welcome.
func streams(t testing.TB) (all [][]byte, base shard.State) {
	t.Helper()
	for _, o := range []shard.Options{
		{Form: shard.Form{}, Lineage: true, Tail: shard.TailPad},
		{Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{"id": {}, "l": {Lists: shard.ListsRagged}}}, Lineage: true},
		{Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{"f": {}}}, Tail: shard.TailRepeat},
	} {
		o.GlobalBatch, o.Epochs, o.Shuffle = 7, 1, &shard.Shuffle{Lanes: 2, WindowRows: 10}
		it, err := columns(t, 30).Shards(t.Context(), 1, &dataset.ShardOptions{Options: o})
		if err != nil {
			t.Fatal(err)
		}
		base = it[0].State()
		var b bytes.Buffer
		w := newSender(&b, memory.DefaultAllocator)
		must(t, w.json(frameStarted, base))
		for {
			x, err := it[0].Next(t.Context())
			at := it[0].State()
			if err == io.EOF {
				must(t, w.end(&at))
				break
			}
			must(t, err)
			must(t, w.batch(x, &at))
			x.Release()
		}
		must(t, w.fail(fault.New(fault.RowError, "and no further")))
		w.close()
		it[0].Close()
		all = append(all, b.Bytes())
	}
	return all, base
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// counting is an allocator that notes the most bytes held.
type counting struct {
	memory.Allocator
	held, most int
}

func (c *counting) Allocate(n int) []byte {
	c.held += n
	c.most = max(c.most, c.held)
	return c.Allocator.Allocate(n)
}

func (c *counting) Reallocate(n int, b []byte) []byte {
	c.held += n - len(b)
	c.most = max(c.most, c.held+len(b))
	return c.Allocator.Reallocate(n, b)
}

func (c *counting) Free(b []byte) {
	c.held -= len(b)
	c.Allocator.Free(b)
}

// readAll reads items until an error; use is called for each batch.
func readAll(data []byte, base shard.State, alloc memory.Allocator, use func(*shard.Batch)) error {
	r := newReader(bytes.NewReader(data), 0, alloc, fuzzLimit)
	r.base = base
	defer r.close()
	for {
		x, err := r.next()
		if err != nil {
			return err
		}
		if x.batch != nil {
			use(x.batch)
			x.batch.Release()
		}
		if x.over {
			return io.EOF
		}
	}
}

// Whatever the other end sends: no panic, no memory on a claim alone, and batches that can be used.
func FuzzClient(f *testing.F) {
	all, base := streams(f)
	for _, b := range all {
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add(appendFrame(nil, frameOver, nil, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		alloc := &counting{Allocator: memory.NewGoAllocator()}
		err := readAll(data, base, alloc, func(b *shard.Batch) {
			b.Digest() // reads all of it
			if b.Real() > b.Rows() || b.Samples() != nil && len(b.Samples()) != b.Real() {
				t.Errorf("%d rows, %d real, %d samples", b.Rows(), b.Real(), len(b.Samples()))
			}
			for _, x := range b.Tensors() {
				n := x.DType.Size()
				for _, d := range x.Shape {
					n *= d
				}
				if n != len(x.Data) || n > 0 && address(x.Data)%64 != 0 {
					t.Errorf("tensor %q of %v in %d bytes at %d", x.Name, x.Shape, len(x.Data), address(x.Data))
				}
			}
		})
		if err == nil {
			t.Error("the stream has no end")
		}
		if alloc.most > 8*fuzzLimit+believed {
			t.Errorf("%d bytes of memory for %d bytes", alloc.most, len(data))
		}
	})
}

// Whatever a consumer sends: no panic, and either it leaves or the connection is over.
func FuzzServer(f *testing.F) {
	_, base := streams(f)
	state := newSender(new(bytes.Buffer), nil)
	must(f, state.json(frameRestore, base))
	begin := appendFrame(nil, frameBegin, binary.LittleEndian.AppendUint32(nil, 2), 0)
	f.Add(state.frames)
	f.Add(begin)
	f.Add(append(bytes.Clone(state.frames), begin...))
	f.Add(append(append(bytes.Clone(begin), appendFrame(nil, frameMore, nil, 0)...), appendFrame(nil, frameBye, nil, 0)...))
	f.Add([]byte("penstock\x01\x00\x00\x00\x00\x00"))
	its, err := columns(f, 30).Shards(f.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 7, Shuffle: &shard.Shuffle{Lanes: 2, WindowRows: 10}}})
	must(f, err)
	f.Cleanup(func() { its[0].Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		readHello(bytes.NewReader(data))
		st := &seat{it: its[0], taken: true, wanted: make(chan struct{}, maxAhead)}
		s := &server{ranks: []int{0}, seats: map[int]*seat{0: st}, started: make(chan struct{}), end: func(error) {}}
		began := 0
		left, err := s.listen(bytes.NewReader(data), st, newSender(io.Discard, nil), func() { began++ })
		if left == (err != nil) {
			t.Errorf("left %v, error %v", left, err)
		}
		if began > 1 || len(st.wanted) > maxAhead {
			t.Errorf("began %d times, wants %d", began, len(st.wanted))
		}
	})
}

// A stream cut anywhere, and one with any byte changed, gives an error and all memory back where
// nothing was handed out by arrow-go's reader.
func TestDamaged(t *testing.T) {
	all, base := streams(t)
	for i, b := range all {
		whole := 0
		err := readAll(b, base, memtest.New(t), func(*shard.Batch) { whole++ })
		wantError(t, err, fault.RowError, "and no further")
		for n := 0; n < len(b); n += 1 + n/50 {
			got := 0
			if err := readAll(b[:n], base, memtest.New(t), func(*shard.Batch) { got++ }); !isGone(err) || got > whole {
				t.Errorf("form %d, %d bytes of %d: %d batches, then %v", i, n, len(b), got, err)
			}
		}
		for at := 0; at < len(b); at += 1 + at/50 {
			for _, v := range []byte{0, 0xff, b[at] ^ 0x40} {
				bad := bytes.Clone(b)
				bad[at] = v
				if err := readAll(bad, base, memory.NewGoAllocator(), func(b *shard.Batch) { b.Digest() }); err == nil {
					t.Errorf("form %d, byte %d is %d: no end", i, at, v)
				}
			}
		}
	}
}

// Lengths that are claimed, and not sent, cost nothing.
func TestClaims(t *testing.T) {
	all, base := streams(t)
	var head [header]byte
	for _, c := range []struct {
		name       string
		meta, body uint64
	}{{"meta", maxMeta, 0}, {"too much meta", math.MaxUint32, 0}, {"body", 100, fuzzLimit}, {"too large a body", 100, math.MaxInt64}, {"negative", 100, math.MaxUint64}} {
		head[0] = frameTensors
		binary.LittleEndian.PutUint32(head[4:], uint32(c.meta))
		binary.LittleEndian.PutUint64(head[8:], c.body)
		alloc := &counting{Allocator: memory.NewGoAllocator()}
		var n uint64
		err := errors.Join(readAll(append(head[:], all[0][:min(int(c.meta), 50)]...), base, alloc, nil))
		if n = uint64(alloc.most); err == nil || n > believed {
			t.Errorf("%s: %v, %d bytes of memory", c.name, err, n)
		}
	}
	r := newReader(io.MultiReader(bytes.NewReader(append(head[:4:4], 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0)), bytes.NewReader(make([]byte, 100))), 0, nil, 1)
	if _, _, _, err := r.frame(maxMeta); !isGone(err) || cap(r.meta) > 2*believed {
		t.Errorf("%v, with %d bytes taken for 100", err, cap(r.meta))
	}
}

// Tensors whose shapes overflow, lie outside of the buffer or leave some of it.
func TestTensorHeads(t *testing.T) {
	head := func(dtype byte, dims ...uint64) []byte {
		b := binary.AppendUvarint([]byte{1, 1, 'x', dtype}, uint64(len(dims)))
		for _, d := range dims {
			b = binary.AppendUvarint(b, d)
		}
		return b
	}
	for _, c := range []struct {
		meta []byte
		body int
		ok   bool
	}{
		{head(byte(shard.Float32), 16), 64, true},
		{head(byte(shard.Float32), 17), 128, true},
		{head(byte(shard.Float32), 1<<30, 0), 0, true},
		{head(byte(shard.Float32)), 64, true},
		{head(byte(shard.Float32), 17), 64, false},
		{head(byte(shard.Float32), 16), 128, false},
		{head(byte(shard.Float32), 16), 60, false},
		{head(byte(shard.Int64), 1<<31, 1<<31, 1<<31, 1<<31), 64, false},
		{head(byte(shard.Int64), 1<<63), 64, false},
		{head(0, 16), 64, false},
		{head(99, 16), 64, false},
		{[]byte{0}, 64, false},
	} {
		cur := &cursor{b: c.meta}
		got := cur.tensors(make([]byte, c.body))
		if cur.bad == c.ok || c.ok && (len(got) != 1 || len(cur.b) > 0) {
			t.Errorf("%v in %d bytes: bad %v, %v", c.meta, c.body, cur.bad, got)
		}
	}
}

// A welcome of another release, without a state, or with one that is damaged is refused, and says which it is.
func TestWelcome(t *testing.T) {
	_, base := streams(t)
	good, err := json.Marshal(welcome{Rank: 1, Steps: 5, Known: true, State: base})
	must(t, err)
	if w, err := readWelcome(good); err != nil || !reflect.DeepEqual(w.State, base) || w.Rank != 1 || w.Steps != 5 || !w.Known {
		t.Errorf("%+v, %v", w, err)
	}
	_, err = readWelcome(bytes.Replace(good, []byte(`"version":1`), []byte(`"version":2`), 1))
	wantError(t, err, fault.Unsupported, "version 2", "use one release for both")
	_, err = readWelcome(bytes.Replace(good, []byte(`"step":0`), []byte(`"step":1`), 1))
	wantError(t, err, fault.Corrupt, "damaged")
	_, err = readWelcome([]byte(`{"rank":1}`))
	wantError(t, err, fault.Corrupt, "damaged")
}
