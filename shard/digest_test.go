package shard

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
)

// plainBytes joins strings, and numbers of fixed width in little-endian.
func plainBytes(parts ...any) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		if s, ok := p.(string); ok {
			b.WriteString(s)
		} else if err := binary.Write(&b, binary.LittleEndian, p); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func column1(t *testing.T, alloc memory.Allocator, f arrow.Field, text string) arrow.RecordBatch {
	t.Helper()
	a, _, err := array.FromJSON(alloc, f.Type, strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %v", f.Type, err)
	}
	defer a.Release()
	return array.NewRecordBatch(arrow.NewSchema([]arrow.Field{f}, nil), []arrow.Array{a}, int64(a.Len()))
}

// Every kind of column is hashed as the comment of Digest says, byte by byte.
func TestDigestByHand(t *testing.T) {
	p := arrow.PrimitiveTypes
	f := arrow.FixedWidthTypes
	three := []int8{1, 0, 1} // validity of all but the second
	field := func(name string, typ arrow.DataType, null bool) arrow.Field {
		return arrow.Field{Name: name, Type: typ, Nullable: null}
	}
	dict := &arrow.DictionaryType{IndexType: p.Uint8, ValueType: arrow.BinaryTypes.String}
	for _, c := range []struct {
		typ  arrow.DataType
		null bool
		text string
		want []byte
	}{
		{f.Boolean, false, `[true, false, true]`, plainBytes("bool\x003\x00", []int8{1, 0, 1})},
		{f.Boolean, true, `[true, null, true]`, plainBytes("bool\x003\x00", []int8{1, 0, 1}, three)},
		{p.Int8, true, `[-1, null, 2]`, plainBytes("int8\x003\x00", []int8{-1, 0, 2}, three)},
		{p.Int16, false, `[-2]`, plainBytes("int16\x001\x00", int16(-2))},
		{p.Int32, false, `[]`, plainBytes("int32\x000\x00")},
		{p.Int64, true, `[5]`, plainBytes("int64\x001\x00", int64(5), int8(1))},
		{p.Uint8, false, `[255]`, plainBytes("uint8\x001\x00", uint8(255))},
		{p.Uint16, false, `[255]`, plainBytes("uint16\x001\x00", uint16(255))},
		{p.Uint32, false, `[255]`, plainBytes("uint32\x001\x00", uint32(255))},
		{p.Uint64, false, `[255]`, plainBytes("uint64\x001\x00", uint64(255))},
		{f.Float16, false, `[1.5]`, plainBytes("float16\x001\x00", uint16(0x3e00))},
		{p.Float32, false, `[1.5]`, plainBytes("float32\x001\x00", float32(1.5))},
		{p.Float64, true, `[null, 1.5]`, plainBytes("float64\x002\x00", float64(0), 1.5, []int8{0, 1})},
		{arrow.BinaryTypes.String, true, `["ab", null, "c"]`, plainBytes("string\x003\x00", []int64{0, 2, 2, 3}, "abc", three)},
		{arrow.BinaryTypes.LargeString, true, `["ab", null, "c"]`, plainBytes("string\x003\x00", []int64{0, 2, 2, 3}, "abc", three)},
		{arrow.BinaryTypes.StringView, true, `["ab", null, "longer than inline"]`, plainBytes("string\x003\x00", []int64{0, 2, 2, 20}, "ablonger than inline", three)},
		{arrow.BinaryTypes.Binary, false, `["aGk="]`, plainBytes("binary\x001\x00", []int64{0, 2}, "hi")},
		{arrow.BinaryTypes.LargeBinary, false, `["aGk="]`, plainBytes("binary\x001\x00", []int64{0, 2}, "hi")},
		{arrow.BinaryTypes.BinaryView, false, `["aGk="]`, plainBytes("binary\x001\x00", []int64{0, 2}, "hi")},
		{&arrow.FixedSizeBinaryType{ByteWidth: 2}, true, `["aGk=", null]`, plainBytes("fixed_size_binary(2)\x002\x00", "hi\x00\x00", []int8{1, 0})},
		{f.Date32, false, `["1970-01-03"]`, plainBytes("date32\x001\x00", int32(2))},
		{f.Date64, false, `["1970-01-03"]`, plainBytes("date64\x001\x00", int64(2*86400_000))},
		{f.Time32s, false, `["00:01:00"]`, plainBytes("time32[s]\x001\x00", int32(60))},
		{f.Time64us, false, `["00:01:00"]`, plainBytes("time64[us]\x001\x00", int64(60_000_000))},
		{f.Timestamp_us, false, `["1970-01-01T00:00:01Z"]`, plainBytes("timestamp[us, UTC]\x001\x00", int64(1_000_000))},
		{&arrow.TimestampType{Unit: arrow.Millisecond}, false, `["1970-01-01 00:00:01"]`, plainBytes("timestamp[ms]\x001\x00", int64(1000))},
		{f.Duration_us, false, `["7us"]`, plainBytes("duration[us]\x001\x00", int64(7))},
		{&arrow.Decimal128Type{Precision: 9, Scale: 2}, false, `["-1.00"]`, plainBytes("decimal128(9, 2)\x001\x00", int64(-100), int64(-1))},
		{&arrow.Decimal256Type{Precision: 50, Scale: 0}, false, `["3"]`, plainBytes("decimal256(50, 0)\x001\x00", []int64{3, 0, 0, 0})},
		{arrow.Null, true, `[null, null]`, plainBytes("null\x002\x00", []int8{0, 0})},
		{arrow.ListOfNonNullable(p.Int16), true, `[[1, 2], null, [3]]`, plainBytes("list<int16>\x003\x00", []int64{0, 2, 2, 3}, []int16{1, 2, 3}, three)},
		{arrow.LargeListOf(p.Int16), false, `[[1, null], [], [3]]`, plainBytes("list<int16>\x003\x00", []int64{0, 2, 2, 3}, []int16{1, 0, 3}, []int8{1, 0, 1})},
		{arrow.ListOf(arrow.ListOfNonNullable(p.Int8)), false, `[[[1], null], [[2, 3]]]`,
			plainBytes("list<list<int8>>\x002\x00", []int64{0, 2, 3}, []int64{0, 1, 1, 3}, []int8{1, 2, 3}, []int8{1, 0, 1})},
		{arrow.FixedSizeListOfNonNullable(2, p.Float32), false, `[[1, 2], [3, 4]]`, plainBytes("float32\x002,2\x00", []float32{1, 2, 3, 4})},
		{arrow.FixedSizeListOf(2, p.Int8), true, `[[1, null], null]`, plainBytes("int8\x002,2\x00", []int8{1, 0, 0, 0}, []int8{1, 0, 0, 0}, []int8{1, 0})},
		{arrow.ListOfNonNullable(arrow.FixedSizeListOfNonNullable(2, p.Int8)), false, `[[], [[1, 2]]]`,
			plainBytes("list<fixed_size_list<int8>(2)>\x002\x00", []int64{0, 0, 1}, []int8{1, 2})},
		{arrow.StructOf(field("a", p.Int8, false), field("b", arrow.BinaryTypes.String, true)), true, `[{"a": 1, "b": "x"}, null, {"a": 2, "b": null}]`,
			plainBytes("struct<a: int8, b: string>\x003\x00", []int8{1, 0, 2}, []int64{0, 1, 1, 1}, "x", []int8{1, 0, 0}, three)},
		{arrow.MapOf(arrow.BinaryTypes.String, p.Int8), false, `[[{"key": "k", "value": 7}], []]`,
			plainBytes("map<string, int8>\x002\x00", []int64{0, 1, 1}, []int64{0, 1}, "k", int8(7), int8(1))},
		{dict, true, `["b", null, "b"]`, plainBytes("string\x003\x00", []int64{0, 1, 1, 2}, "bb", three)},
		{arrow.RunEndEncodedOf(p.Int32, p.Int8), true, `[4, 4, null]`, plainBytes("int8\x003\x00", []int8{4, 4, 0}, []int8{1, 1, 0})},
	} {
		alloc := memtest.New(t)
		rec := column1(t, alloc, arrow.Field{Name: "col", Type: c.typ, Nullable: c.null}, c.text)
		if got, want := DigestRecord(rec), sha256.Sum256(append([]byte("col\x00"), c.want...)); got != want {
			t.Errorf("%v of %s: %x, want %x", c.typ, c.text, got, want)
		}
		rec.Release()
	}
}

// Tensors are hashed as they are; columns come in byte order of their names, and
// numbers that cannot be null have one digest in both forms.
func TestDigestTensors(t *testing.T) {
	alloc := memtest.New(t)
	s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.FixedSizeListOfNonNullable(2, arrow.PrimitiveTypes.Float32)}, {Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "Z", Type: arrow.FixedWidthTypes.Boolean}}, nil)
	rec, _, err := array.RecordFromJSON(alloc, s, strings.NewReader(`[{"x": [1, 2], "label": 7, "Z": true}, {"x": [3, 4], "label": 8, "Z": false}]`))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	want := sha256.Sum256(plainBytes("Z\x00bool\x003\x00", []int8{1, 0, 0}, "label\x00int64\x003\x00", []int64{7, 8, 0},
		"mask\x00bool\x003\x00", []int8{1, 1, 0}, "x\x00float32\x003,2\x00", []float32{1, 2, 3, 4, 0, 0}))
	for _, f := range []Form{{}, {Tensors: true}} {
		c, err := NewCollator(s, f, alloc)
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.Batch([]arrow.RecordBatch{rec}, []gather.Run{{N: 2}}, BatchShape{Rows: 3, Masked: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Digest(); got != want {
			t.Errorf("tensors %v: %x, want %x", f.Tensors, got, want)
		}
		b.Release()
	}
}

// A union is hashed by the values in use, dense or sparse.
func TestDigestUnion(t *testing.T) {
	alloc := memtest.New(t)
	fields := []arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int8}, {Name: "s", Type: arrow.BinaryTypes.String}}
	want := sha256.Sum256(plainBytes("u\x00union<i: int8, s: string>\x003\x00", []int8{5, 3, 5}, []int8{7}, []int64{0, 1, 2}, "ab"))
	for _, typ := range []arrow.UnionType{arrow.SparseUnionOf(fields, []int8{3, 5}), arrow.DenseUnionOf(fields, []int8{3, 5})} {
		b := array.NewBuilder(alloc, typ).(array.UnionBuilder)
		for i, v := range []string{"junk", "a", "7", "b"} {
			str, num := b.Child(1).(*array.StringBuilder), b.Child(0).(*array.Int8Builder)
			dense := typ.Mode() == arrow.DenseMode
			if i == 2 {
				appendUnion(b, 3)
				num.Append(7)
				if !dense {
					str.AppendEmptyValue()
				}
				continue
			}
			appendUnion(b, 5)
			str.Append(v)
			if !dense {
				num.AppendEmptyValue()
			}
		}
		all := b.NewArray()
		b.Release()
		part := array.NewSlice(all, 1, 4)
		rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "u", Type: typ}}, nil), []arrow.Array{part}, 3)
		if got := DigestRecord(rec); got != want {
			t.Errorf("%v: %x, want %x", typ, got, want)
		}
		rec.Release()
		part.Release()
		all.Release()
	}
}

func appendUnion(b array.UnionBuilder, code arrow.UnionTypeCode) {
	switch b := b.(type) {
	case *array.SparseUnionBuilder:
		b.Append(code)
	case *array.DenseUnionBuilder:
		b.Append(code)
	}
}

func randomType(rng *rand.Rand, depth int) arrow.DataType {
	kinds := []arrow.DataType{arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Float64, arrow.BinaryTypes.String,
		arrow.BinaryTypes.LargeString, &arrow.FixedSizeBinaryType{ByteWidth: 3}, arrow.PrimitiveTypes.Uint8}
	if k := rng.IntN(len(kinds) + 5); k < len(kinds) || depth == 0 {
		return kinds[k%len(kinds)]
	}
	inner := arrow.Field{Name: "item", Type: randomType(rng, depth-1), Nullable: rng.IntN(2) == 0}
	switch rng.IntN(4) {
	case 0:
		return arrow.ListOfField(inner)
	case 1:
		return arrow.LargeListOfField(inner)
	case 2:
		return arrow.FixedSizeListOfField(int32(1+rng.IntN(3)), inner)
	}
	return arrow.StructOf(inner, arrow.Field{Name: "b", Type: randomType(rng, depth-1), Nullable: true})
}

// appendRandom appends a value that is not null anywhere.
func appendRandom(rng *rand.Rand, b array.Builder) {
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(rng.IntN(2) == 0)
	case *array.Int32Builder:
		b.Append(int32(rng.Uint32()))
	case *array.Uint8Builder:
		b.Append(uint8(rng.Uint32()))
	case *array.Float64Builder:
		b.Append(rng.NormFloat64())
	case *array.StringBuilder:
		b.Append(strings.Repeat("x", rng.IntN(4)) + fmt.Sprint(rng.IntN(100)))
	case *array.LargeStringBuilder:
		b.Append(strings.Repeat("x", rng.IntN(4)))
	case *array.FixedSizeBinaryBuilder:
		b.Append([]byte{byte(rng.Uint32()), 1, 2})
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			appendRandom(rng, b.FieldBuilder(i))
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range b.Type().(*arrow.FixedSizeListType).Len() {
			appendRandom(rng, b.ValueBuilder())
		}
	case array.ListLikeBuilder:
		b.Append(true)
		for range rng.IntN(4) {
			appendRandom(rng, b.ValueBuilder())
		}
	}
}

// masked makes some values null, at every level that can be, and leaves what is
// below them in memory.
func masked(rng *rand.Rand, d arrow.ArrayData, nullable bool) arrow.ArrayData {
	var kids []arrow.ArrayData
	if n, ok := d.DataType().(arrow.NestedType); ok {
		for i, k := range d.Children() {
			kids = append(kids, masked(rng, k, n.Fields()[i].Nullable))
			defer kids[i].Release()
		}
	}
	bufs := slices.Clone(d.Buffers())
	if nullable && rng.IntN(3) > 0 {
		bits := make([]byte, (d.Offset()+d.Len()+7)/8)
		for i := range bits {
			bits[i] = byte(rng.Uint32() | rng.Uint32())
		}
		bufs[0] = memory.NewBufferBytes(bits)
	}
	return array.NewData(d.DataType(), d.Len(), bufs, kids, array.UnknownNullCount, d.Offset())
}

// The digest depends on values, not on where they lie: slices at every level, what
// is below nulls, pieces put together, and dictionaries change nothing; another
// value does.
func TestDigestLayout(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		alloc := memtest.New(t)
		f := arrow.Field{Name: "c", Type: randomType(rng, 3), Nullable: rng.IntN(2) == 0}
		s := arrow.NewSchema([]arrow.Field{f}, nil)
		b := array.NewBuilder(alloc, f.Type)
		for range rng.IntN(40) {
			appendRandom(rng, b)
		}
		dense := b.NewArray()
		b.Release()
		d := masked(rng, dense.Data(), f.Nullable)
		dense.Release()
		record := func(f arrow.Field, d arrow.ArrayData) arrow.RecordBatch {
			a := array.MakeFromData(d)
			defer a.Release()
			return array.NewRecordBatch(arrow.NewSchema([]arrow.Field{f}, nil), []arrow.Array{a}, int64(a.Len()))
		}
		rec := record(f, d)
		n := int(rec.NumRows())
		want := DigestRecord(rec)
		same := func(what string, r arrow.RecordBatch) {
			t.Helper()
			if got := DigestRecord(r); got != want {
				t.Fatalf("%s of %v: %x, want %x", what, f.Type, got, want)
			}
			r.Release()
		}
		text, err := rec.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		clean, _, err := array.RecordFromJSON(alloc, s, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		moved := shifted(alloc, d)
		same("moved", record(f, moved))
		same("moved and clean", func() arrow.RecordBatch {
			d := shifted(alloc, clean.Column(0).Data())
			defer d.Release()
			return record(f, d)
		}())
		moved.Release()
		if n > 0 {
			var runs []gather.Run
			for row := 0; row < n; {
				k := 1 + rng.IntN(n-row)
				runs = append(runs, gather.Run{Rec: int32(rng.IntN(2)), Row: int32(row), N: int32(k)})
				row += k
			}
			pieces, err := gather.Record(alloc, s, []arrow.RecordBatch{rec, clean}, runs)
			if err != nil {
				t.Fatal(err)
			}
			same("pieces", pieces)

			// A dictionary of all values in another order, nulls in it or in the indices.
			perm := rng.Perm(n)
			for i, p := range perm {
				runs = append(runs[:i], gather.Run{Row: int32(p), N: 1})
			}
			values, err := gather.Column(alloc, []arrow.Array{clean.Column(0)}, runs)
			if err != nil {
				t.Fatal(err)
			}
			ib := array.NewInt16Builder(alloc)
			for row := range n {
				if clean.Column(0).IsNull(row) && rng.IntN(2) == 0 {
					ib.AppendNull()
				} else {
					ib.Append(int16(slices.Index(perm, row)))
				}
			}
			index := ib.NewArray()
			ib.Release()
			typ := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16, ValueType: f.Type}
			dict := array.NewDictionaryArray(typ, index, values)
			same("dictionary", record(arrow.Field{Name: f.Name, Type: typ, Nullable: f.Nullable}, dict.Data()))
			dict.Release()
			index.Release()
			values.Release()

			i, j := rng.IntN(n), rng.IntN(n)
			x, _ := json.Marshal(clean.Column(0).GetOneForMarshal(i))
			y, _ := json.Marshal(clean.Column(0).GetOneForMarshal(j))
			if !bytes.Equal(x, y) {
				var swapped []gather.Run
				for row := range n {
					switch row {
					case i:
						row = j
					case j:
						row = i
					}
					swapped = append(swapped, gather.Run{Row: int32(row), N: 1})
				}
				other, err := gather.Record(alloc, s, []arrow.RecordBatch{rec}, swapped)
				if err != nil {
					t.Fatal(err)
				}
				if DigestRecord(other) == want {
					t.Fatalf("rows %d and %d of %v change places without a trace", i, j, f.Type)
				}
				other.Release()
			}
		}
		same("clean", clean)
		same("itself", rec)
		d.Release()
	}
}

func BenchmarkDigest(b *testing.B) {
	alloc := memory.DefaultAllocator
	recs, runs := shuffledRecords(alloc)
	for _, tensors := range []bool{false, true} {
		b.Run(fmt.Sprintf("tensors=%v", tensors), func(b *testing.B) {
			c, err := NewCollator(recs[0].Schema(), Form{Tensors: tensors}, alloc)
			if err != nil {
				b.Fatal(err)
			}
			batch, err := c.Batch(recs, runs, BatchShape{Rows: len(runs)})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(runs) * 24))
			b.ReportAllocs()
			for b.Loop() {
				batch.Digest()
			}
		})
	}
}
