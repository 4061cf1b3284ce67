package feed

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
)

const fuzzLimit = 1 << 20

// stream is what a data process sends after the welcome, and the ring that its batches lie in.
type stream struct{ frames, ring []byte }

// streams are in several forms, all with the state of the welcome.
func streams(t testing.TB) (all []stream, base shard.State) {
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
		w := &sender{w: &b}
		w.ring, err = newRing(it[0])
		must(t, err)
		it[0].SetMemory(w.ring.mem)
		must(t, w.json(frameStarted, base))
		for {
			x, err := it[0].Next(t.Context())
			at := it[0].State()
			if err == io.EOF {
				must(t, w.end(&at))
				break
			}
			must(t, err)
			must(t, w.batch(x, &at, uint32(x.Step())&flagNoticed))
			x.Release()
		}
		must(t, w.fail(fault.New(fault.RowError, "and no further")))
		view, err := mem.MapShared(w.ring.mem.File(), w.ring.mem.Size())
		must(t, err)
		all = append(all, stream{b.Bytes(), bytes.Clone(view[:w.ring.mem.Resident()])})
		mem.UnmapShared(view)
		it[0].Close()
		w.ring.close()
	}
	return all, base
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// readAll reads items of a stream until an error; use is called for each batch. What was given back is counted.
func (s stream) readAll(base shard.State, use func(*shard.Batch)) (free int, err error) {
	ring := memory.NewGoAllocator().Allocate(len(s.ring)) // aligned
	copy(ring, s.ring)
	r := newReader(bytes.NewReader(s.frames), 0, fuzzLimit)
	r.ring = &window{ring: ring, free: func(span) { free++ }}
	r.base = base
	for {
		x, err := r.next()
		if err != nil {
			return free, err
		}
		if x.batch != nil {
			use(x.batch)
			x.batch.Release()
		}
		if x.over {
			return free, io.EOF
		}
	}
}

// Whatever the other end sends, and has in its ring: no panic, and batches that can be used.
func FuzzClient(f *testing.F) {
	all, base := streams(f)
	for _, s := range all {
		f.Add(s.frames, s.ring[:min(len(s.ring), 16<<10)])
		f.Add(s.frames[:len(s.frames)/2], s.ring[:4<<10])
	}
	f.Add(appendFrame(nil, frameOver, nil), []byte{})
	f.Fuzz(func(t *testing.T, frames, ring []byte) {
		_, err := stream{frames, ring}.readAll(base, func(b *shard.Batch) {
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
	})
}

// Whatever a consumer sends: no panic, and either it leaves or the connection is over.
func FuzzServer(f *testing.F) {
	_, base := streams(f)
	state := &sender{w: io.Discard}
	must(f, state.json(frameRestore, base))
	begin := appendFrame(nil, frameBegin, binary.LittleEndian.AppendUint64(nil, 1<<32+2))
	free := appendFrame(nil, frameFree, binary.LittleEndian.AppendUint64(nil, 4096))
	f.Add(state.frames)
	f.Add(begin)
	f.Add(append(bytes.Clone(state.frames), begin...))
	f.Add(slices.Concat(begin, appendFrame(nil, frameMore, nil), free, appendFrame(nil, frameBye, nil)))
	f.Add(slices.Concat(begin, free, free))
	f.Add([]byte("penstock\x03\x00\x00\x00\x00\x00"))
	its, err := columns(f, 30).Shards(f.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 7, Shuffle: &shard.Shuffle{Lanes: 2, WindowRows: 10}}})
	must(f, err)
	ring, err := newRing(its[0])
	must(f, err)
	f.Cleanup(func() { its[0].Close(); ring.close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		readHello(bytes.NewReader(data))
		st := &seat{it: its[0], taken: true, wanted: make(chan struct{}, maxAhead)}
		s := &server{ranks: []int{0}, seats: map[int]*seat{0: st}, started: make(chan struct{}), end: func(error) {}}
		began, freed := 0, 0
		ring.held[4096] = func() { freed++ } // a batch
		left, err := s.listen(bytes.NewReader(data), st, &sender{w: io.Discard, ring: ring}, func() { began++ })
		if left == (err != nil) {
			t.Errorf("left %v, error %v", left, err)
		}
		if began > 1 || freed > began || len(st.wanted) > maxAhead {
			t.Errorf("began %d times, freed %d times, wants %d", began, freed, len(st.wanted))
		}
	})
}

// A stream cut anywhere, and one with any byte changed, gives an error, and what was given out back.
func TestDamaged(t *testing.T) {
	all, base := streams(t)
	for i, s := range all {
		whole := 0
		free, err := s.readAll(base, func(*shard.Batch) { whole++ })
		wantError(t, err, fault.RowError, "and no further")
		if free != whole || whole < 4 {
			t.Errorf("form %d: %d batches, %d given back", i, whole, free)
		}
		for n := 0; n < len(s.frames); n += 1 + n/50 {
			got := 0
			free, err := stream{s.frames[:n], s.ring}.readAll(base, func(*shard.Batch) { got++ })
			if !isGone(err) || got > whole || free != got {
				t.Errorf("form %d, %d bytes of %d: %d batches, %d given back, then %v", i, n, len(s.frames), got, free, err)
			}
		}
		for at := 0; at < len(s.frames); at += 1 + at/50 {
			for _, v := range []byte{0, 0xff, s.frames[at] ^ 0x40} {
				bad := bytes.Clone(s.frames)
				bad[at] = v
				if _, err := (stream{bad, s.ring}).readAll(base, func(b *shard.Batch) { b.Digest() }); err == nil {
					t.Errorf("form %d, byte %d is %d: no end", i, at, v)
				}
			}
		}
		if i > 0 {
			continue // tensors may have any value
		}
		refused := 0
		for at := 0; at < len(s.ring); at += 1 + at/50 {
			for _, v := range []byte{0, 0xff, s.ring[at] ^ 0x40} {
				bad := bytes.Clone(s.ring)
				bad[at] = v
				if _, err := (stream{s.frames, bad}).readAll(base, func(b *shard.Batch) { b.Digest() }); fault.CodeOf(err) == fault.Corrupt {
					refused++
				}
			}
		}
		if refused < 20 {
			t.Errorf("%d changes of records were noticed", refused)
		}
	}
}

// Numbers of a batch's head that lie, each alone.
func TestHeads(t *testing.T) {
	all, base := streams(t)
	s := all[1]
	at := header + int(binary.LittleEndian.Uint32(s.frames[4:])) // behind started
	frame := s.frames[at : at+header+int(binary.LittleEndian.Uint32(s.frames[at+4:]))]
	read := func(frame []byte) error {
		_, err := stream{frame, s.ring}.readAll(base, func(b *shard.Batch) { b.Digest() })
		return err
	}
	if err := read(frame); err != io.EOF {
		t.Fatal(err)
	}
	n := uint64(len(s.ring))
	for _, c := range []struct {
		name string
		at   int
		v    uint64
		code fault.Code
	}{
		{"negative step", 8, 1 << 63, fault.Corrupt}, {"no rows", 16, 0, fault.Corrupt}, {"too many rows", 16, 1 << 41, fault.Corrupt}, {"more real rows", 24, 8, fault.Corrupt},
		{"offset behind the end", 32, n, fault.Corrupt}, {"offset far behind", 32, math.MaxUint64 &^ 63, fault.Corrupt}, {"offset between", 32, 8, fault.Corrupt},
		{"length 0", 40, 0, fault.Corrupt}, {"another length", 40, 64, fault.Corrupt}, {"length behind the end", 40, n + 64, fault.Corrupt},
		{"over the limit", 40, fuzzLimit + 1, fault.Exhausted}, {"length that overflows", 40, math.MaxUint64, fault.Exhausted},
	} {
		bad := bytes.Clone(frame)
		binary.LittleEndian.PutUint64(bad[header+c.at:], c.v)
		if err := read(bad); fault.CodeOf(err) != c.code {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for i, name := range []string{"flags", "position", "samples", "lineage", "form", "zero"} {
		for _, v := range []uint32{1, 2, math.MaxUint32} {
			bad := bytes.Clone(frame)
			field := bad[header+sections-4+4*i:]
			if i == 0 && v == 1 {
				continue // is one
			}
			binary.LittleEndian.PutUint32(field, binary.LittleEndian.Uint32(field)+v)
			if err := read(bad); fault.CodeOf(err) != fault.Corrupt {
				t.Errorf("%s and %d: %v", name, v, err)
			}
		}
	}
	if err := read(slices.Concat([]byte{frameTensors, 0, 0, 0, head - 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, frame[header:header+head-1])); fault.CodeOf(err) != fault.Corrupt {
		t.Error(err)
	}
}

// Lengths that are claimed, and not sent, cost nothing.
func TestClaims(t *testing.T) {
	claim := func(meta uint32, body uint64) io.Reader {
		b := binary.LittleEndian.AppendUint32([]byte{frameTensors, 0, 0, 0}, meta)
		return io.MultiReader(bytes.NewReader(binary.LittleEndian.AppendUint64(b, body)), bytes.NewReader(make([]byte, 100)))
	}
	for _, n := range []uint32{200, 16 << 20, maxMeta} {
		r := newReader(claim(n, 0), 0, 1)
		if _, _, err := r.frame(maxMeta); !isGone(err) || cap(r.meta) > 2*believed {
			t.Errorf("%v, with %d bytes taken for 100", err, cap(r.meta))
		}
	}
	for _, r := range []io.Reader{claim(maxMeta+1, 0), claim(math.MaxUint32, 0), claim(100, 1), claim(100, math.MaxUint64)} {
		r := newReader(r, 0, 1)
		if _, _, err := r.frame(maxMeta); fault.CodeOf(err) != fault.Corrupt || cap(r.meta) > 0 {
			t.Errorf("%v, with %d bytes taken", err, cap(r.meta))
		}
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
	good, err := json.Marshal(welcome{Rank: 1, Extent: shard.Extent{Samples: 20, Batch: 4}, State: base})
	must(t, err)
	if w, err := readWelcome(good); err != nil || !reflect.DeepEqual(w.State, base) || w.Rank != 1 || w.Extent != (shard.Extent{Samples: 20, Batch: 4}) {
		t.Errorf("%+v, %v", w, err)
	}
	_, err = readWelcome(bytes.Replace(good, []byte(`"version":1`), []byte(`"version":2`), 1))
	wantError(t, err, fault.Unsupported, "version 2", "use one release for both")
	_, err = readWelcome(bytes.Replace(good, []byte(`"step":0`), []byte(`"step":1`), 1))
	wantError(t, err, fault.Corrupt, "damaged")
	for _, bad := range [][]byte{[]byte(`{"rank":1}`), bytes.Replace(good, []byte(`"batch":4`), []byte(`"batch":0`), 1)} {
		_, err = readWelcome(bad)
		wantError(t, err, fault.Corrupt, "damaged")
	}
}
