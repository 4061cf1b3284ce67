package rows

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var leaves = map[Type]arrow.DataType{
	Bool: arrow.FixedWidthTypes.Boolean, Int8: arrow.PrimitiveTypes.Int8, Int16: arrow.PrimitiveTypes.Int16, Int32: arrow.PrimitiveTypes.Int32,
	Int64: arrow.FixedWidthTypes.Timestamp_us, Uint8: arrow.PrimitiveTypes.Uint8, Uint16: arrow.PrimitiveTypes.Uint16, Uint32: arrow.PrimitiveTypes.Uint32,
	Uint64: arrow.PrimitiveTypes.Uint64, Float16: arrow.FixedWidthTypes.Float16, Float32: arrow.PrimitiveTypes.Float32, Float64: arrow.PrimitiveTypes.Float64,
}

var sources = []Type{Bool, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64, Float16, Float32, Float64}

// testColumn is a column in several records, and its values as bytes (bools as 0 and 1).
type testColumn struct {
	field Field
	inner []int
	vals  [][][]byte // by record and row
	nulls [][]bool
}

func (c *testColumn) dtype() arrow.DataType {
	t := leaves[c.field.From]
	for _, w := range c.inner {
		t = arrow.FixedSizeListOf(int32(w), t)
	}
	return t
}

// randomTensors are the fields of a few tensors, some of them stacks, and their columns.
func randomTensors(rng *rand.Rand, sizes []int, nulls float64) (tensors [][]Field, cols []*testColumn) {
	one := func(from, to Type, inner []int) Field {
		c := &testColumn{inner: inner, field: Field{Column: len(cols), From: from, To: to, Width: 1}}
		for _, w := range inner {
			c.field.Width *= w
		}
		if rng.IntN(4) == 0 {
			c.field.Scale, c.field.Offset = float64(1+rng.IntN(2)), float64(rng.IntN(3))
		}
		for _, n := range sizes {
			vals, null := make([][]byte, n), make([]bool, n)
			for i := range vals {
				null[i] = rng.Float64() < nulls
				for range c.field.Width {
					vals[i] = append(vals[i], small(rng, from)...)
				}
			}
			c.vals, c.nulls = append(c.vals, vals), append(c.nulls, null)
		}
		cols = append(cols, c)
		return c.field
	}
	for range 1 + rng.IntN(5) {
		from, to := sources[rng.IntN(len(sources))], Type(1+rng.IntN(int(Float64)))
		switch rng.IntN(4) {
		case 0: // a stack
			var fs []Field
			for range 1 + rng.IntN(40) {
				if rng.IntN(2) == 0 {
					from = sources[rng.IntN(len(sources))]
				}
				fs = append(fs, one(from, to, nil))
			}
			tensors = append(tensors, fs)
		case 1: // many of one kind, as they are
			for range 1 + rng.IntN(40) {
				tensors = append(tensors, []Field{one(from, from, nil)})
			}
		default:
			var inner []int
			for range rng.IntN(3) {
				inner = append(inner, 1+rng.IntN(4))
			}
			if rng.IntN(20) == 0 {
				inner = append(inner, 700)
			}
			tensors = append(tensors, []Field{one(from, to, inner)})
		}
	}
	return tensors, cols
}

// small is a number from 0 to 60 as bytes: it fits all types, scaled or not.
func small(rng *rand.Rand, t Type) []byte {
	v := rng.IntN(61)
	if t == Bool {
		v = rng.IntN(2)
	}
	b := make([]byte, t.Size())
	if Cast(t, b, []float64{float64(v)}) >= 0 {
		panic("does not fit")
	}
	return b
}

// array is the column in record r, with an offset and something else before and behind its rows.
func (c *testColumn) array(rng *rand.Rand, alloc memory.Allocator, r int) arrow.Array {
	before, n := rng.IntN(9), len(c.vals[r])
	rows := before + n + rng.IntN(9)
	var raw []byte
	for i := range rows {
		if i >= before && i < before+n {
			raw = append(raw, c.vals[r][i-before]...)
			continue
		}
		for range c.field.Width * c.field.From.Size() {
			raw = append(raw, byte(rng.Uint32()))
		}
	}
	buffer := func(b []byte) *memory.Buffer {
		x := memory.NewResizableBuffer(alloc)
		x.Resize(len(b))
		copy(x.Bytes(), b)
		return x
	}
	if c.field.From == Bool {
		bits := make([]byte, (len(raw)+7)/8)
		for i, v := range raw {
			bitutil.SetBitTo(bits, i, v&1 == 1)
		}
		raw = bits
	}
	level := rng.IntN(len(c.inner) + 1) // what the nulls are of
	vals := buffer(raw)
	var data arrow.ArrayData
	per := c.field.Width // values of this level in a row
	t := leaves[c.field.From]
	for k := 0; ; k++ {
		var valid *memory.Buffer
		nulls := 0
		if k == level {
			bits := make([]byte, (rows*per+7)/8)
			for i := range rows * per {
				row := i/per - before
				null := row < 0 || row >= n || c.nulls[r][row] && i%per == per/2
				bitutil.SetBitTo(bits, i, !null)
				if null && row >= 0 && row < n {
					nulls++
				}
			}
			valid = buffer(bits)
			if nulls > 0 && rng.IntN(2) == 0 {
				nulls = array.UnknownNullCount
			}
		}
		off, length := 0, rows*per
		if k == len(c.inner) {
			off, length = before, n
		}
		if k == 0 {
			data = array.NewData(t, length, []*memory.Buffer{valid, vals}, nil, nulls, off)
			vals.Release()
		} else {
			t = arrow.FixedSizeListOf(int32(c.inner[k-1]), t)
			kid := data
			data = array.NewData(t, length, []*memory.Buffer{valid}, []arrow.ArrayData{kid}, nulls, off)
			kid.Release()
		}
		if valid != nil {
			valid.Release()
		}
		if k == len(c.inner) {
			break
		}
		per /= c.inner[k]
	}
	defer data.Release()
	return array.MakeFromData(data)
}

func records(rng *rand.Rand, alloc memory.Allocator, cols []*testColumn, sizes []int) []arrow.RecordBatch {
	var fields []arrow.Field
	for i, c := range cols {
		fields = append(fields, arrow.Field{Name: fmt.Sprint("c", i), Type: c.dtype(), Nullable: true})
	}
	recs := make([]arrow.RecordBatch, len(sizes))
	for r, n := range sizes {
		arrs := make([]arrow.Array, len(cols))
		for i, c := range cols {
			arrs[i] = c.array(rng, alloc, r)
		}
		recs[r] = array.NewRecordBatch(arrow.NewSchema(fields, nil), arrs, int64(n))
		for _, a := range arrs {
			a.Release()
		}
	}
	return recs
}

func randomRuns(rng *rand.Rand, sizes []int, single bool) (runs []gather.Run) {
	for range rng.IntN(300) {
		r := rng.IntN(len(sizes))
		if sizes[r] == 0 {
			continue
		}
		row := rng.IntN(sizes[r])
		n := 1
		if !single && rng.IntN(3) == 0 {
			n = rng.IntN(sizes[r] - row + 1)
		}
		runs = append(runs, gather.Run{Rec: int32(r), Row: int32(row), N: int32(n)})
	}
	return runs
}

// model converts value by value; false where a row is null.
func model(tensors [][]Field, cols []*testColumn, runs []gather.Run) (outs [][]byte, ok bool) {
	ok = true
	for _, fs := range tensors {
		var out []byte
		for _, r := range runs {
			for k := range r.N {
				for _, f := range fs {
					c := cols[f.Column]
					ok = ok && !c.nulls[r.Rec][r.Row+k]
					v := c.vals[r.Rec][r.Row+k]
					to := make([]byte, f.Width*f.To.Size())
					if Converter(f.From, f.To, f.Scale, f.Offset)(to, v) >= 0 {
						panic("does not fit")
					}
					out = append(out, to...)
				}
			}
		}
		outs = append(outs, out)
	}
	return outs, ok
}

// take is Take into fresh memory with guards behind each tensor.
func take(t *testing.T, l *Layout, blocks [][]byte, runs []gather.Run) [][]byte {
	n := gather.Count(runs)
	outs, all := make([][]byte, l.Tensors()), make([][]byte, l.Tensors())
	for i := range outs {
		size := n * l.Bytes(i)
		all[i] = bytes.Repeat([]byte{0xa5}, size+64)
		outs[i] = all[i][:size:size]
	}
	l.Take(append([][]byte(nil), outs...), blocks, runs)
	for i := range all {
		if !bytes.Equal(all[i][len(outs[i]):], bytes.Repeat([]byte{0xa5}, 64)) {
			t.Fatalf("tensor %d: written behind its end", i)
		}
	}
	return outs
}

// Packed in any order, in runs and at places, and taken out again, rows are what a conversion value by value makes
// of them; rows with nulls do not pack, unless they are left out.
func TestPackTake(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	failed := 0
	for round := range 50 {
		alloc := memtest.New(t)
		sizes := make([]int, 1+rng.IntN(4))
		for i := range sizes {
			sizes[i] = rng.IntN(300)
		}
		nulls := 0.0
		if round%3 == 0 {
			nulls = 0.001
		}
		tensors, cols := randomTensors(rng, sizes, nulls)
		recs := records(rng, alloc, cols, sizes)
		l := New(tensors, false)
		for _, single := range []bool{true, false} {
			runs := randomRuns(rng, sizes, single)
			want, ok := model(tensors, cols, runs)
			n := gather.Count(runs)
			packed := bytes.Repeat([]byte{0x5a}, n*l.Size+64)
			if got := l.PackRuns(packed[:n*l.Size], recs, runs); got != ok {
				t.Fatalf("PackRuns %v, want %v", got, ok)
			}
			if !bytes.Equal(packed[n*l.Size:], bytes.Repeat([]byte{0x5a}, 64)) {
				t.Fatal("PackRuns wrote behind the end")
			}
			if !ok {
				failed++
				continue
			}
			all := []gather.Run{{N: int32(n)}}
			check(t, l, want, take(t, l, [][]byte{nil, packed}, append([]gather.Run{{}}, shifted(all)...)))
		}
		// Whole records at places, some rows left out, then runs of them.
		blocks := make([][]byte, len(recs))
		place := make([][]int32, len(recs))
		packs := true
		for r, rec := range recs {
			place[r] = make([]int32, sizes[r])
			for i, p := range rng.Perm(sizes[r]) {
				place[r][i] = int32(p)
			}
			switch rng.IntN(3) {
			case 0:
				for i := range place[r] {
					if rng.IntN(5) == 0 {
						place[r][i] = -1
					}
				}
			case 1:
				for i := range place[r] {
					place[r][i] = int32(i)
				}
			}
			blocks[r] = make([]byte, sizes[r]*l.Size)
			var wanted []gather.Run
			inOrder := true
			for i, p := range place[r] {
				inOrder = inOrder && int(p) == i
				if p >= 0 {
					wanted = append(wanted, gather.Run{Rec: int32(r), Row: int32(i), N: 1})
				}
			}
			_, ok := model(tensors, cols, wanted)
			places := place[r]
			if inOrder {
				places = nil
			}
			if got := l.Pack(blocks[r], rec, places); got != ok {
				t.Fatalf("Pack %v, want %v", got, ok)
			}
			packs = packs && ok
		}
		if packs {
			var runs, origin []gather.Run
			for _, r := range randomRuns(rng, sizes, rng.IntN(2) == 0) {
				var from []gather.Run
				for k := range r.N {
					for row, p := range place[r.Rec] {
						if p == r.Row+k {
							from = append(from, gather.Run{Rec: r.Rec, Row: int32(row), N: 1})
						}
					}
				}
				if len(from) == int(r.N) {
					runs, origin = append(runs, r), append(origin, from...)
				}
			}
			want, _ := model(tensors, cols, origin)
			check(t, l, want, take(t, l, blocks, runs))
		}
		for _, r := range recs {
			r.Release()
		}
	}
	t.Logf("%d with nulls", failed)
}

func shifted(runs []gather.Run) []gather.Run {
	for i := range runs {
		runs[i].Rec++
	}
	return runs
}

func check(t *testing.T, l *Layout, want, got [][]byte) {
	t.Helper()
	for i := range want {
		if !bytes.Equal(want[i], got[i]) {
			t.Fatalf("tensor %d of rows of %d bytes: % x, want % x", i, l.Size, got[i], want[i])
		}
	}
}

// A value that does not fit keeps rows from being packed, unless its row is left out.
func TestMisfit(t *testing.T) {
	b := array.NewInt16Builder(memory.DefaultAllocator)
	defer b.Release()
	for i := range 100 {
		b.Append(int16(i))
	}
	b.Append(300)
	a := b.NewArray()
	defer a.Release()
	rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "x", Type: a.DataType()}}, nil), []arrow.Array{a}, 101)
	defer rec.Release()
	l := New([][]Field{{{From: Int16, To: Int8, Width: 1}}}, false)
	dst := make([]byte, 101)
	places := make([]int32, 101)
	for i := range places {
		places[i] = int32(100 - i)
	}
	if l.Pack(dst, rec, nil) || l.Pack(dst, rec, places) || l.PackRuns(dst, []arrow.RecordBatch{rec}, []gather.Run{{N: 101}}) {
		t.Error("300 was packed as int8")
	}
	places[100] = -1
	if !l.Pack(dst, rec, places) || !l.PackRuns(dst, []arrow.RecordBatch{rec}, []gather.Run{{N: 100}, {Row: 3, N: 1}}) {
		t.Error("rows that fit were not packed")
	}
	if !l.Pack(dst, rec, places) || dst[100] != 0 || dst[1] != 99 {
		t.Errorf("%v", dst)
	}
}

// Elements lie at multiples of their size; what would grow is kept as it comes, if it can be.
func TestLayout(t *testing.T) {
	f := func(col int, from, to Type, width int) Field {
		return Field{Column: col, From: from, To: to, Width: width}
	}
	l := New([][]Field{
		{f(0, Uint8, Float32, 3)},                            // 3 bytes
		{f(1, Float32, Float32, 1), f(2, Int64, Float32, 1)}, // 8
		{f(3, Int64, Int64, 1)},                              // 8
		{f(4, Int8, Uint16, 1)},                              // 2: may not fit
		{f(5, Int32, Float32, 1)},                            // 4
	}, true)
	if l.Size != 32 || !l.Rest || l.Tensors() != 5 || l.Bytes(0) != 12 || l.Bytes(1) != 8 || l.Whole() {
		t.Errorf("%+v", l)
	}
	for _, x := range l.tensors {
		for _, f := range l.fields[x.first:x.limit] {
			if f.at%f.kept() != 0 {
				t.Errorf("%+v", f)
			}
		}
	}
	if !New([][]Field{{f(0, Float32, Float32, 1), f(1, Int32, Float32, 1)}}, false).Whole() {
		t.Error("a single stack is not the whole row")
	}
}
