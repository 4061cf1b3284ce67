package exchange

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/shard"
)

// tape is a connection on which some bytes come, and then its end; what is written is kept.
type tape struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (t *tape) Read(b []byte) (int, error)     { return t.in.Read(b) }
func (t *tape) Write(b []byte) (int, error)    { return t.out.Write(b) }
func (*tape) SetReadDeadline(time.Time) error  { return nil }
func (*tape) SetWriteDeadline(time.Time) error { return nil }
func (*tape) Close() error                     { return nil }

// hanging is a connection on which nothing comes.
type hanging struct {
	tape
	closed chan struct{}
	once   sync.Once
}

func (h *hanging) Read([]byte) (int, error) { <-h.closed; return 0, io.EOF }
func (h *hanging) Close() error             { h.once.Do(func() { close(h.closed) }); return nil }

// written is what messages make of frames.
func written(t testing.TB, ms ...shard.Message) []byte {
	t.Helper()
	h := &hanging{closed: make(chan struct{})}
	x := New(0, []net.Conn{nil, h})
	for _, m := range ms {
		if err := x.Send(t.Context(), 1, m); err != nil {
			t.Fatal(err)
		}
	}
	x.kill()
	return h.out.Bytes()
}

// readAll receives what comes on a tape, until an error.
func readAll(b []byte, alloc memory.Allocator, use func(*shard.Message)) error {
	x := New(0, []net.Conn{nil, &tape{in: bytes.NewReader(b)}})
	defer x.Close()
	for {
		m, err := x.Receive(context.Background(), 1, alloc)
		if err != nil {
			return err
		}
		use(&m)
		m.Release()
	}
}

// samples are records of many types and forms.
func samples(rng *rand.Rand, alloc memory.Allocator) (all []arrow.RecordBatch) {
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16, ValueType: arrow.BinaryTypes.String}
	fields := []arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "d", Type: dict, Nullable: true},
		{Name: "l", Type: arrow.ListOf(dict), Nullable: true}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "v", Type: arrow.BinaryTypes.StringView, Nullable: true}, {Name: "u", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.FixedWidthTypes.Boolean, Nullable: true}), Nullable: true},
		{Name: "f", Type: arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32), Nullable: true}, {Name: "z", Type: arrow.Null, Nullable: true},
		{Name: "c", Type: &arrow.Decimal128Type{Precision: 20, Scale: 3}, Nullable: true}, {Name: "t", Type: arrow.FixedWidthTypes.Timestamp_us, Nullable: true},
	}
	for _, cols := range [][]int{{0}, {0, 3}, {1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {}} {
		var fs []arrow.Field
		for _, c := range cols {
			fs = append(fs, fields[c])
		}
		md := arrow.NewMetadata([]string{"k"}, []string{fmt.Sprint(rng.IntN(2))})
		s := arrow.NewSchema(fs, &md)
		for _, n := range []int{0, 1, rng.IntN(400)} {
			var text bytes.Buffer
			text.WriteByte('[')
			for i := range n {
				if i > 0 {
					text.WriteByte(',')
				}
				word := func() string {
					return []string{`"a"`, `"bb"`, `null`, `"a long text that lies in no view"`}[rng.IntN(4)]
				}
				row := map[string]string{"n": fmt.Sprint(rng.Int32()), "d": word(), "l": "[" + word() + "," + word() + "]", "s": word(), "v": word(), "u": `{"x":true}`, "f": "[1,2.5,-3]",
					"z": "null", "c": `"12.345"`, "t": `"2026-01-02T03:04:05Z"`}
				text.WriteByte('{')
				for k, f := range fs {
					if k > 0 {
						text.WriteByte(',')
					}
					v := row[f.Name]
					if rng.IntN(6) == 0 {
						v = "null"
					}
					fmt.Fprintf(&text, "%q:%s", f.Name, v)
				}
				text.WriteByte('}')
			}
			text.WriteByte(']')
			rec, _, err := array.RecordFromJSON(alloc, s, &text)
			if err != nil {
				panic(err)
			}
			all = append(all, rec)
			if r := int64(n); r > 2 {
				from := rng.Int64N(r)
				all = append(all, rec.NewSlice(from, from+rng.Int64N(r-from)))
			}
		}
	}
	return all
}

// Records of all kinds arrive as they are, with whatever schema the one before had, and what they take comes back on both sides.
func TestRecords(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	got := memtest.New(t)
	x := pair(t)
	for range 40 {
		all := samples(rng, memory.DefaultAllocator)
		rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan bool)
		go func() {
			defer close(done)
			for _, rec := range all {
				rec.Retain()
				if err := x[0].Send(ctx, 1, shard.Message{Head: []byte("r"), Record: rec}); err != nil {
					cancel(fmt.Errorf("cannot be sent: %w", err))
				}
			}
		}()
		for i, want := range all {
			m, err := x[1].Receive(ctx, 0, got)
			if err != nil {
				t.Fatalf("seed %d: record %d, %v: %v", seed, i, want.Schema(), err)
			}
			if !array.RecordEqual(m.Record, want) || !m.Record.Schema().Equal(want.Schema()) || !m.Record.Schema().Metadata().Equal(want.Schema().Metadata()) {
				t.Errorf("seed %d: record %d is\n%v\nnot\n%v", seed, i, m.Record, want)
			}
			m.Release()
			want.Release()
		}
		<-done
	}
}

// A message that cannot be sent is released, and refused; the connection has others.
func TestRefused(t *testing.T) {
	alloc := memtest.New(t)
	freed := 0
	free := func() { freed++ }
	long := arrow.MetadataFrom(map[string]string{"k": strings.Repeat("v", maxMeta)})
	described := array.NewRecordBatch(arrow.NewSchema(nil, &long), nil, 1)
	x := pair(t)
	for _, m := range []shard.Message{
		{Head: make([]byte, shard.MaxHead+1), Free: free},
		{Packed: []byte("x"), Record: samples(rand.New(rand.NewPCG(1, 2)), memory.DefaultAllocator)[0], Free: free},
		{Record: described, Free: free},
	} {
		var refused shard.RefusedError
		if err := x[0].Send(t.Context(), 1, m); !errors.As(err, &refused) || fault.CodeOf(err) == fault.WorkerLost {
			t.Errorf("sending: %v", err)
		}
	}
	for _, to := range []int{-1, 0, 2} {
		if err := x[0].Send(t.Context(), to, shard.Message{Packed: []byte("x"), Free: free}); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("to node %d: %v", to, err)
		}
	}
	if freed != 6 {
		t.Errorf("%d of 6 were released", freed)
	}
	rec := samples(rand.New(rand.NewPCG(1, 2)), memory.DefaultAllocator)[0]
	rec.Retain()
	for _, m := range []shard.Message{{Head: []byte("ok")}, {Head: []byte("rec"), Record: rec}} {
		want := string(m.Head)
		if err := x[0].Send(t.Context(), 1, m); err != nil {
			t.Error(err)
		}
		m, err := x[1].Receive(t.Context(), 0, alloc)
		if err != nil || string(m.Head) != want || m.Packed != nil || (m.Record != nil) != (want == "rec") || m.Record != nil && !array.RecordEqual(m.Record, rec) {
			t.Errorf("%+v, %v", m, err)
		}
		m.Release()
	}
	rec.Release()
}

// said is what comes of a few messages.
func said(t testing.TB) (frames []byte, messages int) {
	rng := rand.New(rand.NewPCG(3, 4))
	ms := []shard.Message{{Head: []byte("plain")}, {}, {Head: []byte("p"), Packed: bytes.Repeat([]byte("row"), 100)}, {Packed: []byte{}}, {Head: bytes.Repeat([]byte("h"), smallHead+1)}}
	for _, rec := range samples(rng, memory.DefaultAllocator) {
		if rec.NumRows() < 50 {
			ms = append(ms, shard.Message{Head: []byte("rec"), Record: rec})
		}
	}
	return written(t, ms...), len(ms)
}

// Frames that are cut off anywhere, or have any byte changed, give what came before and an error, and no memory is held.
func TestDamaged(t *testing.T) {
	frames, n := said(t)
	alloc := memtest.New(t)
	read := func(b []byte) (int, error) {
		got := 0
		return got, readAll(b, alloc, func(m *shard.Message) {
			got++
			look(m)
		})
	}
	whole := 0
	if err := readAll(frames, alloc, func(*shard.Message) { whole++ }); fault.CodeOf(err) != fault.WorkerLost || whole != n {
		t.Fatalf("%d of %d messages, %v", whole, n, err)
	}
	for cut := 0; cut < len(frames); cut += 1 + cut/20 {
		if _, err := read(frames[:cut]); fault.CodeOf(err) != fault.WorkerLost {
			t.Errorf("%d of %d bytes: %v", cut, len(frames), err)
		}
	}
	refused := 0
	for at := 0; at < len(frames); at += 1 + at/30 {
		for _, v := range []byte{0, 0xff, frames[at] ^ 0x40} {
			bad := bytes.Clone(frames)
			bad[at] = v
			_, err := read(bad)
			switch fault.CodeOf(err) {
			case fault.Corrupt:
				refused++
			case fault.WorkerLost:
			default:
				t.Errorf("byte %d is %d: %v", at, v, err)
			}
		}
	}
	if refused < 100 {
		t.Errorf("%d changes were noticed", refused)
	}
}

// look reads all of a message.
func look(m *shard.Message) {
	sum := 0
	for _, b := range m.Packed {
		sum += int(b)
	}
	if m.Record != nil {
		_ = fmt.Sprint(m.Record)
	}
}

// Headers that lie.
func TestHeaders(t *testing.T) {
	for _, h := range []header{{}, {kind: frameEnded + 1}, {kind: framePing, head: 1}, {kind: frameEnd, rows: 1}, {kind: framePlain, meta: 1}, {kind: framePlain, rows: 1}, {kind: framePacked, meta: 1},
		{kind: frameRecord, rows: 8}, {kind: frameSchema}, {kind: frameSchema, meta: 8, rows: 1}, {kind: frameSchema, meta: 8, head: 1}, {kind: framePacked, rows: maxRows + 1}, {kind: framePacked, rows: -1},
		{kind: framePacked, head: shard.MaxHead + 1}, {kind: frameSchema, meta: maxMeta + 1}} {
		if err := readAll(h.append(nil), nil, func(*shard.Message) {}); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%+v: %v", h, err)
		}
	}
	for _, at := range []int{1, 2, 3, 12, 15} {
		b := (&header{kind: framePlain}).append(nil)
		b[at] = 1
		if err := readAll(b, nil, func(*shard.Message) {}); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	// An answer to nothing; a record without a schema, and with one that is none.
	rec := (&header{kind: frameRecord, meta: 8}).append(nil)
	for _, b := range [][]byte{(&header{kind: frameEnded}).append(nil), append(slices.Clone(rec), make([]byte, 8)...),
		slices.Concat((&header{kind: frameSchema, meta: 4}).append(nil), []byte("abcd"), rec, make([]byte, 8))} {
		if err := readAll(b, memtest.New(t), func(*shard.Message) {}); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%v: %v", b, err)
		}
	}
}

// highest notes the most bytes that were held.
type highest struct {
	memory.Allocator
	now, most int
}

func (h *highest) add(n int) { h.now += n; h.most = max(h.most, h.now) }
func (h *highest) Allocate(n int) []byte {
	h.add(n)
	return h.Allocator.Allocate(n)
}
func (h *highest) Reallocate(n int, b []byte) []byte {
	h.add(n - len(b))
	return h.Allocator.Reallocate(n, b)
}
func (h *highest) Free(b []byte) { h.add(-len(b)); h.Allocator.Free(b) }

// Lengths that are claimed, and not sent, cost nothing.
func TestClaims(t *testing.T) {
	for _, n := range []int64{100, 1 << 30, maxRows} {
		for _, come := range []int{0, 50, believed + 50} {
			h := &highest{Allocator: memory.NewGoAllocator()}
			b := append((&header{kind: framePacked, rows: n}).append(nil), make([]byte, min(come, int(n)-1))...)
			if err := readAll(b, h, func(*shard.Message) {}); fault.CodeOf(err) != fault.WorkerLost {
				t.Error(err)
			}
			if most := max(believed, growth*come) + 64; h.most > most || h.now != 0 {
				t.Errorf("%d bytes were claimed and %d came: %d were held, %d are", n, come, h.most, h.now)
			}
		}
	}
	for _, h := range []header{{kind: framePlain, head: shard.MaxHead}, {kind: frameSchema, meta: maxMeta}, {kind: frameRecord, head: shard.MaxHead, meta: maxMeta, rows: maxRows}} {
		before := testing.AllocsPerRun(1, func() {})
		_ = before
		p := newPeer(&Exchange{closing: make(chan struct{})}, 1, &tape{in: bytes.NewReader(make([]byte, 100))})
		var b []byte
		if err := p.bytes(&b, h.head+h.meta); err != io.EOF || cap(b) > 2*believed {
			t.Errorf("%v, with %d bytes taken for 100", err, cap(b))
		}
	}
}

// Whatever comes: no panic, messages that can be read, and all memory comes back.
func FuzzReceive(f *testing.F) {
	frames, _ := said(f)
	f.Add(frames)
	f.Add(frames[:len(frames)/2])
	for at := 0; at < len(frames); { // each frame alone, records behind their schema
		h, err := parseHeader((*[headerSize]byte)(frames[at:]))
		if err != nil {
			f.Fatal(err)
		}
		end := at + headerSize + int(h.left())
		if h.kind == frameSchema {
			next, err := parseHeader((*[headerSize]byte)(frames[end:]))
			if err != nil {
				f.Fatal(err)
			}
			end += headerSize + int(next.left())
		}
		f.Add(frames[at:end])
		at = end
	}
	f.Add((&header{kind: frameEnd}).append(nil))
	f.Add((&header{kind: framePing}).append((&header{kind: frameEnded}).append(nil)))
	f.Add(binary.LittleEndian.AppendUint64([]byte{framePacked, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, math.MaxUint64))
	f.Fuzz(func(t *testing.T, data []byte) {
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		if err := readAll(data, alloc, look); err == nil {
			t.Error("the stream has no end")
		}
		if n := alloc.CurrentAlloc(); n != 0 {
			t.Errorf("%d bytes are held", n)
		}
	})
}

// A schema is said before the first record that has it, and not again until another came.
func TestSchemaOnce(t *testing.T) {
	all := samples(rand.New(rand.NewPCG(5, 6)), memory.DefaultAllocator)
	var a, b arrow.RecordBatch
	for _, rec := range all {
		switch rec.NumCols() {
		case 1:
			a = rec
		case 2:
			b = rec
		}
	}
	var ms []shard.Message
	for _, rec := range []arrow.RecordBatch{a, a, b, b, a} {
		rec.Retain()
		ms = append(ms, shard.Message{Record: rec})
	}
	frames, said := written(t, ms...), ""
	for len(frames) > 0 {
		h, err := parseHeader((*[headerSize]byte)(frames))
		if err != nil {
			t.Fatal(err)
		}
		said += map[byte]string{frameSchema: "s", frameRecord: "r"}[h.kind]
		frames = frames[headerSize+int(h.left()):]
	}
	if said != "srrsrrsr" {
		t.Errorf("frames are %s", said)
	}
}
