package mem

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestZeroed(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	col := array.MakeArrayOfNull(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64, 100)
	rec := array.NewRecordBatch(s, []arrow.Array{col}, 100)
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s), ipc.WithAllocator(Zeroed{memtest.New(t)}))
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
	z := Zeroed{memtest.New(t)}
	b := z.Allocate(10)
	b = z.Reallocate(100, b)
	if !bytes.Equal(b, make([]byte, 100)) {
		t.Error("not zero")
	}
	z.Free(b)
}
