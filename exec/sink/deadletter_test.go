package sink

import (
	"errors"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// letters sends the skipped rows of d, up to limit, to l.
func letters(t *testing.T, l *DeadLetter, d data, limit int) {
	t.Helper()
	for split := range d.Splits {
		b := d.block(memory.DefaultAllocator, split, 0, d.Rows)
		for i := range b.Skipped {
			if limit--; limit >= 0 {
				if err := l.Add(t.Context(), &b.Skipped[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.Release()
	}
}

func TestDeadLetter(t *testing.T) {
	d := data{Splits: 50, Rows: 3000, Bad: 1} // 1500 rows: more than one record
	for _, dir := range []string{filepath.Join(t.TempDir(), "bad"), "mem://dead/bad"} {
		open := func() *DeadLetter {
			l, err := NewDeadLetter(t.Context(), dir, "job", nil)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		l := open()
		letters(t, l, d, 10)
		if err := errors.Join(l.Close(t.Context(), false), l.Close(t.Context(), true)); err != nil {
			t.Fatal(err)
		}
		if got := visible(t, dir); len(got) > 0 {
			t.Fatalf("visible: %v", got)
		}
		for range 2 { // the second replaces the first
			l = open()
			letters(t, l, d, math.MaxInt)
			name := l.Path()
			if err := l.Close(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			exactDead(t, dir, d)
			if got := visible(t, dir); len(got) != 1 || !strings.HasSuffix(name, got[0]) {
				t.Errorf("files %v, want %s", got, name)
			}
		}
		l = open() // a run in which nothing was skipped
		if err := l.Close(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if got := visible(t, dir); len(got) > 0 {
			t.Fatalf("visible: %v", got)
		}
	}
	if _, err := NewDeadLetter(t.Context(), "x", "a/b", nil); fault.CodeOf(err) != fault.Invalid {
		t.Error(err)
	}
}

// TestDeadLongRow: no more of a row is written as JSON than may be kept of it, whatever it would take: here 100 GiB.
func TestDeadLongRow(t *testing.T) {
	alloc := memtest.New(t)
	b := array.NewRecordBuilder(alloc, arrow.NewSchema([]arrow.Field{{Name: "l", Type: arrow.ListOf(arrow.ListOf(arrow.BinaryTypes.String))}}, nil))
	defer b.Release()
	l := b.Field(0).(*array.ListBuilder)
	l.Append(true)
	l.ValueBuilder().(*array.ListBuilder).Append(true)
	l.ValueBuilder().(*array.ListBuilder).ValueBuilder().(*array.StringBuilder).Append(strings.Repeat("\x00", 1<<20))
	rec := b.NewRecordBatch()
	defer rec.Release()
	long := rec.Column(0).(*array.List).ListValues().(*array.List).ListValues()
	index := make([]int8, 100_000)
	buffers := []*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int8Traits.CastToBytes(index))}
	d := array.NewDataWithDictionary(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, len(index), buffers, 0, 0, long.Data().(*array.Data))
	defer d.Release()
	typ := arrow.ListOf(d.DataType())
	one := array.NewData(typ, 1, []*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes([]int32{0, int32(len(index))}))}, []arrow.ArrayData{d}, 0, 0)
	defer one.Release()
	list := array.MakeFromData(one)
	defer list.Release()
	row := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "l", Type: typ}}, nil), []arrow.Array{list}, 1)
	defer row.Release()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text := rowText(row)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; text != "" || took > 16*maxDeadText {
		t.Errorf("%d bytes of text, for %d of memory", len(text), took)
	}
}

func TestDeadRow(t *testing.T) {
	alloc := memtest.New(t)
	b := array.NewRecordBuilder(alloc, arrow.NewSchema([]arrow.Field{
		{Name: "f", Type: arrow.PrimitiveTypes.Float64}, {Name: "s", Type: arrow.BinaryTypes.String},
		{Name: "b", Type: arrow.BinaryTypes.Binary}, {Name: "t", Type: arrow.FixedWidthTypes.Timestamp_s},
		{Name: "n", Type: arrow.PrimitiveTypes.Int8, Nullable: true}}, nil))
	defer b.Release()
	add := func(f float64, s string, bin []byte, ts arrow.Timestamp) arrow.RecordBatch {
		b.Field(0).(*array.Float64Builder).Append(f)
		b.Field(1).(*array.StringBuilder).Append(s)
		b.Field(2).(*array.BinaryBuilder).Append(bin)
		b.Field(3).(*array.TimestampBuilder).Append(ts)
		b.Field(4).AppendNull()
		return b.NewRecordBatch()
	}
	for _, tc := range []struct {
		rec  arrow.RecordBatch
		want string
	}{
		{nil, ""},
		{add(1.5, "a\"\xff", []byte{1}, 0), `{"b":"AQ==","f":1.5,"n":null,"s":"a\"\ufffd","t":"1970-01-01T00:00:00Z"}`},
		{add(math.NaN(), "", nil, 0), `{"b":"","f":"NaN","n":null,"s":"","t":"1970-01-01T00:00:00Z"}`},
		{add(1, "", make([]byte, maxDeadText), 0), ""},
	} {
		if got := rowText(tc.rec); got != tc.want {
			t.Errorf("%.200s, want %s", got, tc.want)
		}
		if tc.rec != nil {
			tc.rec.Release()
		}
	}
	weird := add(1, "", nil, math.MaxInt64) // whatever becomes of it, no panic
	rowText(weird)
	weird.Release()
	// No record, an error of no known type, no place.
	l, err := NewDeadLetter(t.Context(), "mem://deadrow", "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{errors.New("plain"), nil, fault.Wrap(errTest, fault.Place{RowGroup: fault.N(3)})} {
		if err := l.Add(t.Context(), &exec.Skipped{Err: err, Origin: exec.Origin{Split: "range#1", Index: 1}, Row: 5}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if got := visible(t, "mem://deadrow"); !slices.Equal(got, []string{"dead-14f825b2.parquet"}) {
		t.Errorf("%v", got)
	}
}
