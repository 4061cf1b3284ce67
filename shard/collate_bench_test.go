//go:build linux

package shard

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/mem"
	"golang.org/x/sys/unix"
)

var table = flag.String("table", "", "BenchmarkRows writes its figures to this file, as Markdown (- for stdout); bench/batches reads it")

// threadCPU is the time that this thread has had a core: what a busy machine does not spoil.
func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

const (
	benchRows    = 1024
	benchColumns = 40
	benchRecs    = 64
	benchRec     = 16 << 10 // rows of a record: a million in all
)

// benchPool is n records of columns of type t.
func benchPool(alloc memory.Allocator, n, columns int, build func(rng *rand.Rand, b array.Builder), t arrow.DataType, nullable bool) []arrow.RecordBatch {
	rng := rand.New(rand.NewPCG(1, 2))
	fields := make([]arrow.Field, columns)
	for i := range fields {
		fields[i] = arrow.Field{Name: fmt.Sprintf("f%02d", i), Type: t, Nullable: nullable}
	}
	schema := arrow.NewSchema(fields, nil)
	recs := make([]arrow.RecordBatch, n)
	for i := range recs {
		arrs := make([]arrow.Array, columns)
		for k := range arrs {
			b := array.NewBuilder(alloc, t)
			b.Reserve(benchRec)
			for range benchRec {
				build(rng, b)
			}
			arrs[k] = b.NewArray()
			b.Release()
		}
		recs[i] = array.NewRecordBatch(schema, arrs, benchRec)
		for _, a := range arrs {
			a.Release()
		}
	}
	return recs
}

// benchNumber appends a small number.
func benchNumber(rng *rand.Rand, b array.Builder) {
	v := rng.IntN(100)
	switch b := b.(type) {
	case *array.Float32Builder:
		b.UnsafeAppend(float32(v) / 3)
	case *array.Float64Builder:
		b.UnsafeAppend(float64(v) / 3)
	case *array.Int64Builder:
		b.UnsafeAppend(int64(v))
	case *array.Int32Builder:
		b.UnsafeAppend(int32(v))
	case *array.Int16Builder:
		b.UnsafeAppend(int16(v))
	case *array.Uint8Builder:
		b.UnsafeAppend(uint8(v))
	case *array.Float16Builder:
		b.UnsafeAppend(float16.New(float32(v)))
	case *array.BooleanBuilder:
		b.UnsafeAppend(v < 50)
	}
}

// benchCase is a way to make batches.
type benchCase struct {
	name    string
	of      arrow.DataType
	columns int
	form    Form
	order   string // shuffled rows, rows in order, or whole windows packed
	packed  bool
	build   func(rng *rand.Rand, b array.Builder)
	nulls   bool
}

func (c *benchCase) stack(to DType, scale, offset float64) {
	names := make([]string, c.columns)
	for i := range names {
		names[i] = fmt.Sprintf("f%02d", i)
	}
	c.form = Form{Tensors: true, Columns: map[string]Column{"x": {Stack: names, DType: to, Scale: scale, Offset: offset}}}
}

func benchCases() (out []benchCase) {
	f32 := arrow.PrimitiveTypes.Float32
	tensors := Form{Tensors: true}
	numbers := func(name string, t arrow.DataType, order string, packed bool, to DType, scale, offset float64) {
		c := benchCase{name: name, of: t, columns: benchColumns, order: order, packed: packed, build: benchNumber}
		if to == Auto {
			c.form = tensors
		} else {
			c.stack(to, scale, offset)
		}
		out = append(out, c)
	}
	numbers("40 float32, stacked, packed rows", f32, "shuffled", true, Float32, 0, 0)
	numbers("40 float32, 40 tensors, packed rows", f32, "shuffled", true, Auto, 0, 0)
	numbers("40 float32, stacked, columns", f32, "shuffled", false, Float32, 0, 0)
	numbers("40 float32, 40 tensors, columns", f32, "shuffled", false, Auto, 0, 0)
	numbers("40 float32, packing of a window", f32, "window", true, Float32, 0, 0)
	numbers("40 uint8, packing of a window as float32", arrow.PrimitiveTypes.Uint8, "window", true, Float32, 0, 0)
	numbers("40 float32, stacked", f32, "in order", false, Float32, 0, 0)
	for _, c := range []struct {
		name          string
		from          arrow.DataType
		to            DType
		scale, offset float64
	}{
		{"float32", f32, Float32, 0, 0},
		{"int32 to float32", arrow.PrimitiveTypes.Int32, Float32, 0, 0},
		{"int64 to float32", arrow.PrimitiveTypes.Int64, Float32, 0, 0},
		{"float64 to float32", arrow.PrimitiveTypes.Float64, Float32, 0, 0},
		{"uint8 to float32", arrow.PrimitiveTypes.Uint8, Float32, 0, 0},
		{"int16 to float32", arrow.PrimitiveTypes.Int16, Float32, 0, 0},
		{"bool to float32", arrow.FixedWidthTypes.Boolean, Float32, 0, 0},
		{"uint8 to float32, scaled", arrow.PrimitiveTypes.Uint8, Float32, 1. / 255, 0},
		{"float64 to float32, scaled", arrow.PrimitiveTypes.Float64, Float32, 2, 0},
		{"float32 to float32, scaled", f32, Float32, 2, 0},
		{"float32 to float32, offset", f32, Float32, 0, -1},
		{"uint8 to float32, scaled and offset", arrow.PrimitiveTypes.Uint8, Float32, 1. / 255, -0.5},
		{"float32 to float16, scaled", f32, Float16, 2, 0},
		{"float32 to bfloat16, scaled", f32, BFloat16, 2, 0},
		{"uint8 to float16, scaled", arrow.PrimitiveTypes.Uint8, Float16, 1. / 255, 0},
		{"uint8 to bfloat16, scaled", arrow.PrimitiveTypes.Uint8, BFloat16, 1. / 255, 0},
		{"uint8 to bfloat16", arrow.PrimitiveTypes.Uint8, BFloat16, 0, 0},
		{"int64 to float16", arrow.PrimitiveTypes.Int64, Float16, 0, 0},
		{"int64 to bfloat16", arrow.PrimitiveTypes.Int64, BFloat16, 0, 0},
		{"float32 to float16", f32, Float16, 0, 0},
		{"float32 to bfloat16", f32, BFloat16, 0, 0},
		{"uint8 to float16", arrow.PrimitiveTypes.Uint8, Float16, 0, 0},
		{"int32 to bfloat16", arrow.PrimitiveTypes.Int32, BFloat16, 0, 0},
		{"float64 to float16", arrow.PrimitiveTypes.Float64, Float16, 0, 0},
		{"float64 to bfloat16", arrow.PrimitiveTypes.Float64, BFloat16, 0, 0},
		{"float32 to float64", f32, Float64, 0, 0},
		{"int64 to int32", arrow.PrimitiveTypes.Int64, Int32, 0, 0},
	} {
		numbers("40 "+c.name+", stacked", c.from, "just read", false, c.to, c.scale, c.offset)
	}
	text := func(rng *rand.Rand, b array.Builder) {
		b.(*array.StringBuilder).Append("a text of many letters, say sixty or so, as they come by here"[:rng.IntN(60)])
	}
	lists := func(rng *rand.Rand, b array.Builder) {
		l := b.(*array.ListBuilder)
		l.Append(true)
		for range rng.IntN(32) {
			l.ValueBuilder().(*array.Int32Builder).Append(7)
		}
	}
	nulls := func(rng *rand.Rand, b array.Builder) {
		if rng.IntN(10) == 0 {
			b.AppendNull()
		} else {
			b.(*array.Float32Builder).Append(1)
		}
	}
	vector := func(rng *rand.Rand, b array.Builder) {
		l := b.(*array.FixedSizeListBuilder)
		l.Append(true)
		for range 128 {
			l.ValueBuilder().(*array.Float32Builder).Append(1)
		}
	}
	out = append(out, benchCase{name: "vectors of 128 float32", of: arrow.FixedSizeListOf(128, f32), columns: 1, form: tensors, order: "shuffled", build: vector})
	list := arrow.ListOf(arrow.PrimitiveTypes.Int32)
	listForm := func(l Lists) Form {
		f := Form{Tensors: true, Columns: map[string]Column{}}
		for i := range 4 {
			f.Columns[fmt.Sprintf("f%02d", i)] = Column{Lists: l}
		}
		return f
	}
	for _, order := range []string{"shuffled", "just read"} {
		out = append(out,
			benchCase{name: "4 strings of 30 bytes, Arrow", of: arrow.BinaryTypes.String, columns: 4, order: order, build: text},
			benchCase{name: "4 lists of 16 int32, ragged", of: list, columns: 4, form: listForm(ListsRagged), order: order, build: lists},
			benchCase{name: "4 lists of 16 int32, padded", of: list, columns: 4, form: listForm(ListsPad), order: order, build: lists},
			benchCase{name: "40 float32, 10 % nulls, Arrow", of: f32, columns: benchColumns, order: order, build: nulls, nulls: true})
	}
	return out
}

// BenchmarkRows compares batches of 1024 rows, from a million rows in windows of 16 Ki, with a copy of as many bytes, one
// behind the other, from a million rows as long; batches of what was just read with a copy within the cache. Both by
// the CPU time of this thread, in turns: the medians of the turns are given.
func BenchmarkRows(b *testing.B) {
	pool := mem.New(3 << 30)
	defer pool.Close()
	var md strings.Builder
	fmt.Fprintf(&md, "| batches of %d rows | rows | GB/s | a copy | of it |\n|---|---|--:|--:|--:|\n", benchRows)
	for _, c := range benchCases() {
		b.Run(strings.NewReplacer(" ", "_", ",", "").Replace(c.order+"/"+c.name), func(b *testing.B) {
			speed, copied, ratio := c.run(b, pool)
			if b.N > 1 {
				line := fmt.Sprintf("| %s | %s | %.2f | %.2f | %.3f |\n", c.name, c.order, speed, copied, ratio)
				if i := strings.Index(md.String(), "| "+c.name+" | "+c.order+" |"); i >= 0 {
					old := md.String()
					md.Reset()
					md.WriteString(old[:i])
				}
				md.WriteString(line)
			}
		})
	}
	switch *table {
	case "":
	case "-":
		fmt.Print("\n" + md.String())
	default:
		if err := os.WriteFile(*table, []byte(md.String()), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

func (c *benchCase) run(b *testing.B, pool *mem.Pool) (speed, copied, ratio float64) {
	n := benchRecs
	if c.order == "just read" {
		n = 1
	}
	recs := benchPool(pool, n, c.columns, c.build, c.of, c.nulls)
	defer func() {
		for _, r := range recs {
			r.Release()
		}
	}()
	col, err := NewCollator(recs[0].Schema(), c.form, pool)
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	srcs := make([]Rows, len(recs))
	places := make([]int32, benchRec)
	for i, p := range rng.Perm(benchRec) {
		places[i] = int32(p)
	}
	for i, rec := range recs {
		srcs[i].Rec = rec
		if c.packed {
			srcs[i].Rec = nil
			srcs[i].Packed = pool.Allocate(benchRec * col.Layout().Size)
			defer pool.Free(srcs[i].Packed)
			if !col.Layout().Pack(srcs[i].Packed, rec, places) {
				b.Fatal("does not pack")
			}
		}
	}
	runs := make([]gather.Run, benchRows)
	shuffled := make([][]gather.Run, 64)
	for i := range shuffled {
		for range benchRows {
			shuffled[i] = append(shuffled[i], gather.Run{Rec: int32(rng.IntN(benchRecs)), Row: int32(rng.IntN(benchRec)), N: 1})
		}
	}
	at := 0
	bytes := 0
	op := func() {
		switch at++; c.order {
		case "window":
			r := at % benchRecs
			col.Layout().Pack(srcs[r].Packed, recs[r], places)
			bytes += benchRec * col.Layout().Size
			return
		case "just read": // 4096 rows over and over: what has just been decoded
			runs = append(runs[:0], gather.Run{Row: int32(at % 4 * benchRows), N: benchRows})
		case "in order":
			per := benchRec / benchRows
			runs = append(runs[:0], gather.Run{Rec: int32(at / per % benchRecs), Row: int32(at % per * benchRows), N: benchRows})
		default:
			runs = shuffled[at%len(shuffled)]
		}
		batch, err := col.BatchOf(srcs, runs, BatchShape{Rows: benchRows})
		if err != nil {
			b.Fatal(err)
		}
		if batch.buf != nil {
			bytes += batch.buf.Len()
		} else {
			for _, a := range batch.record.Columns() {
				for _, x := range a.Data().Buffers() {
					if x != nil {
						bytes += x.Len()
					}
				}
			}
		}
		batch.Release()
	}
	op()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	one := benchRows * benchColumns * 4
	dst := make([]byte, one)
	lie := one // as many bytes as the rows are taken from, so that a copy finds them where these are: in the cache, or in memory
	if c.order != "just read" {
		lie *= benchRecs * benchRec / benchRows
	}
	src := make([]byte, lie)
	for i := range src { // or all its pages are one
		src[i] = byte(i)
	}
	from := 0
	var speeds, copies, ratios []float64 // of each turn: other work on the machine spoils some of them
	bytes = 0
	all := 0
	const turn = 8
	for b.Loop() {
		bytes = 0
		t0 := threadCPU()
		for range turn {
			op()
		}
		t1 := threadCPU()
		for range turn {
			copy(dst, src[from:])
			from = (from + one) % lie
		}
		t2 := threadCPU()
		speeds = append(speeds, float64(bytes)/float64(t1-t0))
		copies = append(copies, float64(turn*one)/float64(t2-t1))
		ratios = append(ratios, speeds[len(speeds)-1]/copies[len(copies)-1])
		all += bytes
	}
	median := func(x []float64) float64 {
		slices.Sort(x)
		return x[len(x)/2]
	}
	speed, copied, ratio = median(speeds), median(copies), median(ratios)
	b.SetBytes(int64(all / b.N))
	b.ReportMetric(speed, "GB/cpu-s")
	b.ReportMetric(ratio, "x-memcpy")
	return speed, copied, ratio
}

// BenchmarkCollate takes rows from 25 MB: more than the caches hold, as windows are.
func BenchmarkCollate(b *testing.B) {
	pool := mem.New(1 << 30)
	defer pool.Close()
	recs, base := shuffledRecords(pool)
	defer func() {
		for _, r := range recs {
			r.Release()
		}
	}()
	all := Form{Tensors: true}
	half := Form{Tensors: true, Columns: map[string]Column{"label": {}}}
	scaled := Form{Tensors: true, Columns: map[string]Column{"label": {}}}
	for i := range 4 {
		half.Columns[fmt.Sprint("f", i)] = Column{DType: BFloat16}
		scaled.Columns[fmt.Sprint("f", i)] = Column{Scale: 2, Offset: -1}
	}
	for _, c := range []struct {
		name string
		form Form
	}{{"same", all}, {"bfloat16", half}, {"scaled", scaled}, {"arrow", Form{}}} {
		b.Run(c.name, func(b *testing.B) {
			col, err := NewCollator(recs[0].Schema(), c.form, pool)
			if err != nil {
				b.Fatal(err)
			}
			runs := slices.Clone(base)
			b.SetBytes(1024 * (4*4 + 8))
			b.ReportAllocs()
			for b.Loop() {
				for i := range runs { // other rows of the same windows, as in a run
					runs[i].Row = (runs[i].Row + 97) & 16383
				}
				batch, err := col.Batch(recs, runs, BatchShape{Rows: len(runs)})
				if err != nil {
					b.Fatal(err)
				}
				batch.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1024, "ns/row")
		})
	}
}
