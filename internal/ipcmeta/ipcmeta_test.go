package ipcmeta_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/ipcmeta"
	"github.com/penstock-data/penstock/internal/memtest"
)

var limits = ipcmeta.Limits{Meta: 1 << 20, Body: 1 << 20}

// stream has a nested schema, a dictionary and two batches.
func stream(t testing.TB) []byte {
	alloc := memtest.New(t)
	md := arrow.NewMetadata([]string{"k"}, []string{"v"})
	s := arrow.NewSchema([]arrow.Field{
		{Name: "a", Type: arrow.PrimitiveTypes.Int64, Metadata: md},
		{Name: "l", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Float32})), Nullable: true},
		{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
		{Name: "u", Type: arrow.DenseUnionOf([]arrow.Field{{Name: "p", Type: arrow.PrimitiveTypes.Int8}}, []arrow.UnionTypeCode{7})},
	}, &md)
	b := array.NewRecordBuilder(alloc, s)
	defer b.Release()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s), ipc.WithAllocator(alloc))
	for i := range 2 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).AppendNull()
		if err := b.Field(2).(*array.BinaryDictionaryBuilder).AppendString("x"); err != nil {
			t.Fatal(err)
		}
		u := b.Field(3).(*array.DenseUnionBuilder)
		u.Append(7)
		u.Child(0).(*array.Int8Builder).Append(1)
		rec := b.NewRecordBatch()
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		rec.Release()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// read returns the values of column "a".
func read(t testing.TB, data []byte) ([]int64, error) {
	alloc := memtest.New(t)
	mr := ipcmeta.NewReader(bytes.NewReader(data), limits, alloc)
	defer mr.Release()
	r, err := ipc.NewReaderFromMessageReader(mr, ipc.WithAllocator(alloc))
	if err != nil {
		return nil, err
	}
	defer r.Release()
	var out []int64
	for r.Next() {
		if a, ok := r.RecordBatch().Column(0).(*array.Int64); ok {
			out = append(out, a.Int64Values()...)
		}
	}
	return out, r.Err()
}

func TestReader(t *testing.T) {
	data := stream(t)
	got, err := read(t, data)
	if err != nil || len(got) != 2 || got[1] != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, n := range []int{1, 3, 4, 7, 9, 100, len(data) - 20} {
		if got, err := read(t, data[:n]); len(got) == 2 && err == nil {
			t.Errorf("%d bytes of %d: %v", n, len(data), got)
		}
	}
	// A body and metadata over the limit.
	for _, l := range []ipcmeta.Limits{{Meta: 100, Body: 1 << 20}, {Meta: 1 << 20, Body: 1}} {
		mr := ipcmeta.NewReader(bytes.NewReader(data), l, memtest.New(t))
		var err error
		for err == nil {
			_, err = mr.Message()
		}
		if !strings.Contains(err.Error(), "at most") {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// No claim of any 4 bytes of metadata makes it allocate without bound or panic.
func TestClaims(t *testing.T) {
	data := stream(t)
	for at := 8; at+4 <= len(data); at++ {
		for _, v := range []uint32{0xffffffff, 0x7fffffff, 0x10000000, 0} {
			bad := bytes.Clone(data)
			binary.LittleEndian.PutUint32(bad[at:], v)
			mr := ipcmeta.NewReader(bytes.NewReader(bad), limits, memtest.New(t))
			for {
				if _, err := mr.Message(); err != nil {
					break
				}
			}
			mr.Release()
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(stream(f))
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, data []byte) {
		alloc := ipcmeta.Bounded{Allocator: memory.NewGoAllocator(), Max: 1 << 20}
		mr := ipcmeta.NewReader(bytes.NewReader(data), limits, alloc)
		r, err := ipc.NewReaderFromMessageReader(mr, ipc.WithAllocator(alloc))
		if err != nil {
			return
		}
		for r.Next() {
		}
		r.Release()
	})
}
