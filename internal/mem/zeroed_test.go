package mem

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// dirty gives out memory that is not zero.
type dirty struct{ memory.Allocator }

func (d dirty) Allocate(n int) []byte {
	b := d.Allocator.Allocate(n)
	for i := range b {
		b[i] = 0xff
	}
	return b
}

func (d dirty) Reallocate(n int, b []byte) []byte {
	c := d.Allocate(n)
	copy(c, b)
	d.Free(b)
	return c
}

func TestZeroed(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	col := array.MakeArrayOfNull(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64, 100)
	rec := array.NewRecordBatch(s, []arrow.Array{col}, 100)
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s), ipc.WithAllocator(Zeroed{dirty{memory.DefaultAllocator}}))
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := ipc.NewReader(&buf)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	back, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if !back.Column(0).IsNull(i) {
			t.Fatalf("row %d is not null any more", i)
		}
	}
	z := Zeroed{dirty{memory.DefaultAllocator}}
	b := z.Allocate(10)
	b = z.Reallocate(100, b)
	if !bytes.Equal(b, make([]byte, 100)) {
		t.Error("not zero")
	}
}
