package parquetio

import (
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/memtest"
)

// TestUniqueColumns: a column without repeated values gets no dictionary, also
// where the first batches are small, and what is held of 100,000 rows is what
// they are encoded, not a hash table. Bloom filters have the size of their groups.
func TestUniqueColumns(t *testing.T) {
	alloc := memtest.New(t)
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "few", Type: arrow.PrimitiveTypes.Int64}}, nil)
	enc, err := NewEncoding(&EncodingOptions{RowGroupRows: 20_000, Bloom: []string{"id"}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := enc.NewEncoder(io.Discard, schema, alloc)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(alloc, schema)
	defer b.Release()
	next := int64(0)
	for _, n := range []int64{8, 8, 1000, 98_984} {
		for range n {
			b.Field(0).(*array.Int64Builder).Append(next * 0x9e3779b9)
			b.Field(1).(*array.Int64Builder).Append(next % 50)
			next++
		}
		rec := b.NewRecordBatch()
		err := e.Write(rec)
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := e.(*encoder)
	if len(p.dicts) != 1 || p.dicts[0] != 100 {
		t.Errorf("dictionaries of %d entries, want one of 100", p.dicts)
	}
	if held := p.Held(); held > 1<<20 {
		t.Errorf("%d bytes are held", held)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
