package shard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// words is a source of documents of one token each: splits of the same record.
type words struct {
	rec    arrow.RecordBatch
	splits int
}

func newWords(splits, rows int) *words {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "t", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}}, nil))
	defer b.Release()
	for i := range rows {
		b.Field(0).(*array.ListBuilder).Append(true)
		b.Field(0).(*array.ListBuilder).ValueBuilder().(*array.Int32Builder).Append(int32(i))
	}
	return &words{b.NewRecordBatch(), splits}
}

func (w *words) Kind() string                     { return "words" }
func (w *words) Config() (json.RawMessage, error) { return json.Marshal(w.splits) }
func (w *words) Resolve(context.Context, *driver.ResolveOptions) (driver.Table, error) {
	return w, nil
}
func (w *words) Schema() *arrow.Schema                       { return w.rec.Schema() }
func (w *words) Close() error                                { return nil }
func (w *words) Fingerprint(context.Context) (string, error) { return fmt.Sprint(w.splits), nil }
func (w *words) Splits() (s []driver.Split) {
	for i := range w.splits {
		s = append(s, driver.Split{ID: fmt.Sprintf("words#%d", i), Index: int64(i), Rows: w.rec.NumRows(), Bytes: w.rec.NumRows()})
	}
	return s
}

func (w *words) Open(_ context.Context, _ int, o *driver.ScanOptions) (driver.Reader, error) {
	so := o.WithDefaults()
	return &wordsReader{w, int64(so.BatchRows), so.FromRow}, nil
}

type wordsReader struct {
	w    *words
	most int64
	at   int64
}

func (r *wordsReader) Close() error { return nil }
func (r *wordsReader) Next(context.Context) (driver.Batch, error) {
	n := min(r.w.rec.NumRows()-r.at, r.most)
	if n <= 0 {
		return driver.Batch{}, io.EOF
	}
	b := driver.Batch{Record: r.w.rec.NewSlice(r.at, r.at+n), Row: r.at}
	r.at += n
	return b, nil
}

// TestPackedShortDocuments: what windows of packed documents keep is paid for from the budget, however short these are, in memory and
// where windows wait on disk; of the Go heap they take little, but for lineage: 8 bytes a document, which count, too.
func TestPackedShortDocuments(t *testing.T) {
	const limit, window, lanes, length = 16 << 20, 1 << 16, 32, 256
	ds := dataset.Read(newWords(4*lanes, 1<<14))
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, c := range []struct {
		name    string
		method  string
		columns map[string]shard.Column
		lineage bool
		heap    int64
	}{
		{"concat", ops.PackConcat, map[string]shard.Column{"input_ids": {}}, false, 6 << 20},
		{"best_fit", ops.PackBestFit, map[string]shard.Column{"input_ids": {}}, false, 6 << 20},
		{"records", ops.PackConcat, nil, false, 6 << 20},
		{"lineage", ops.PackConcat, map[string]shard.Column{"input_ids": {}}, true, lanes*window*8 + 12<<20},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 3, Memory: limit}}
			o.Options = shard.Options{GlobalBatch: 64, Epochs: 1, Tail: shard.TailPad, Lineage: c.lineage, Form: shard.Form{Tensors: c.columns != nil, Columns: c.columns},
				Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, Lanes: lanes, WindowRows: window}}
			before := heap()
			it := open(t, ds.Pack("t", &dataset.PackOptions{Length: length, Method: c.method}), 1, o)[0]
			var most, rows int64
			for b, err := range it.All(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if rows%(16*64) == 0 {
					most = max(most, heap()-before)
				}
				rows += int64(b.Real())
			}
			s := it.Stats()
			t.Logf("held %d KiB at most, %d KiB more of the Go heap; %d of %d windows on disk", s.Engine.PeakBytes>>10, most>>10, s.Spilled, s.Windows)
			if want := int64(4*lanes) << 14 / length; rows < want || rows > want+lanes*4 {
				t.Errorf("%d samples, want about %d", rows, want)
			}
			if held := int64(limit*5/4 + 4<<20); s.Engine.PeakBytes > held {
				t.Errorf("%d KiB of the budget were held, want at most %d", s.Engine.PeakBytes>>10, held>>10)
			}
			if most > c.heap {
				t.Errorf("the Go heap grew by %d KiB, want at most %d", most>>10, c.heap>>10)
			}
		})
	}
}
