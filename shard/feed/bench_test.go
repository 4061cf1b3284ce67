package feed

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
)

// wide has one column of width float32 per row.
func wide(b *testing.B, rows, width int) *dataset.Dataset {
	b.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.FixedSizeListOfNonNullable(int32(width), arrow.PrimitiveTypes.Float32)}}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer rb.Release()
	l := rb.Field(0).(*array.FixedSizeListBuilder)
	for i := range rows {
		l.Append(true)
		for k := range width {
			l.ValueBuilder().(*array.Float32Builder).Append(float32(i * k))
		}
	}
	return dataset.FromRecords(schema, rb.NewRecordBatch())
}

// BenchmarkFeed compares batches of 1024 x 100 float32 from an iterator of this process, and over the
// socket; the two take turns.
func BenchmarkFeed(b *testing.B) {
	const rows, width = 1024, 100
	for _, form := range []shard.Form{{Tensors: true}, {}} {
		name := "arrow"
		if form.Tensors {
			name = "tensors"
		}
		open := func(b *testing.B) *shard.Iterator {
			its, err := wide(b, 16*rows, width).Shards(context.Background(), 1, &dataset.ShardOptions{Options: shard.Options{
				GlobalBatch: rows, Endless: true, Form: form, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}})
			must(b, err)
			return its[0]
		}
		next := map[string]func(context.Context) (*shard.Batch, error){}
		for _, where := range []string{"local", "socket", "local again"} {
			b.Run(fmt.Sprint(name, "/", where), func(b *testing.B) {
				if next[where] == nil {
					it := open(b)
					if where == "socket" {
						path := socket(b)
						l, err := Listen(path)
						must(b, err)
						done := make(chan error, 1)
						go func() { done <- Serve(context.Background(), l, []*shard.Iterator{it}, nil) }()
						c, err := Dial(context.Background(), path, 0, nil)
						must(b, err)
						defer func() { c.Close(); <-done; l.Close() }()
						next[where] = c.Next
					} else {
						defer it.Close()
						next[where] = it.Next
					}
					defer delete(next, where)
				}
				b.SetBytes(rows * width * 4)
				b.ReportAllocs()
				for b.Loop() {
					x, err := next[where](b.Context())
					must(b, err)
					x.Release()
				}
			})
		}
	}
}

// BenchmarkFrames is the socket alone: one batch sent over and over.
func BenchmarkFrames(b *testing.B) {
	const rows, width = 1024, 100
	for _, form := range []shard.Form{{Tensors: true}, {}} {
		name := "arrow"
		if form.Tensors {
			name = "tensors"
		}
		b.Run(name, func(b *testing.B) {
			its, err := wide(b, rows, width).Shards(b.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: rows, Form: form, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}})
			must(b, err)
			defer its[0].Close()
			x, err := its[0].Next(b.Context())
			must(b, err)
			defer x.Release()
			at := its[0].State()
			path := socket(b)
			l, err := Listen(path)
			must(b, err)
			defer l.Close()
			c, err := net.Dial("unix", path)
			must(b, err)
			s, err := l.Accept()
			must(b, err)
			go func() {
				w := newSender(s, memory.DefaultAllocator)
				for w.batch(x, &at) == nil {
				}
				s.Close()
			}()
			alloc := mem.New(64 << 20)
			defer alloc.Close()
			r := newReader(c, 0, alloc, 1<<30)
			r.base = at
			b.SetBytes(rows * width * 4)
			b.ReportAllocs()
			for b.Loop() {
				y, err := r.next()
				must(b, err)
				y.batch.Release()
			}
			r.close()
			c.Close()
		})
	}
}
