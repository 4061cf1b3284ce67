package feed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"golang.org/x/sys/unix"
)

// wide has one column of width float32 per row; the same record, over and over.
func wide(rows, width, times int) *dataset.Dataset {
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
	recs := make([]arrow.RecordBatch, times)
	recs[0] = rb.NewRecordBatch()
	for i := range recs {
		recs[i] = recs[0]
	}
	return dataset.FromRecords(schema, recs...)
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const benchWidth = 1024 // float32 of a row

// benchProducer is the other process of a benchmark: "pipeline", "records", "copy" or "place", then the bytes of a batch and the socket. It
// ends with the connection.
func benchProducer(how string, size int, path string) error {
	ctx := context.Background()
	rows := size / 4 / benchWidth
	it, err := wide(rows, benchWidth, 64).Iterator(ctx, &dataset.ShardOptions{RunOptions: dataset.RunOptions{BatchRows: rows},
		Options: shard.Options{GlobalBatch: rows, Endless: true, Form: shard.Form{Tensors: how != "records"}}})
	if err != nil {
		return err
	}
	l, err := Listen(path)
	if err != nil {
		return err
	}
	defer l.Close()
	if how == "pipeline" || how == "records" {
		return Serve(ctx, l, []*shard.Iterator{it}, nil)
	}
	// Batches that need no work but, perhaps, a copy: what the hand-off itself takes.
	c, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := readHello(c); err != nil {
		return err
	}
	w := &sender{w: c}
	if w.ring, err = newRing(it); err != nil {
		return err
	}
	w.write(preamble(nil))
	st := &seat{it: it, wanted: make(chan struct{}, maxAhead)}
	s := &server{ranks: []int{0}, seats: map[int]*seat{0: st}, started: make(chan struct{}), end: func(error) {}}
	if err := w.welcome(c, s.welcome(st, w.ring.mem.Size())); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		s.listen(c, st, w, func() {})
		close(gone)
	}()
	src, at := make([]byte, size), it.State()
	for i := range src {
		src[i] = byte(i)
	}
	for {
		select {
		case <-st.wanted:
		case <-gone:
			return nil
		}
		buf := memory.NewResizableBuffer(w.ring.mem)
		buf.Resize(size)
		if how == "copy" {
			copy(buf.Bytes(), src)
		}
		b := shard.NewBatch(shard.Parts{Rows: rows, Real: rows, Tensors: []shard.Tensor{{Name: "x", DType: shard.Float32, Shape: []int{rows, benchWidth}, Data: buf.Bytes()}}, Buffer: buf})
		err := w.batch(b, &at, 0)
		b.Release()
		if err != nil {
			return nil // the consumer is gone
		}
	}
}

// BenchmarkHandoff gives batches from one process to another; the consumer looks at a byte of every page. memcpy is the same loop in
// one process, a copy into a ring of 8. In "copy" the producer copies each batch from one place, in "place" it does nothing
// at all, and "pipeline" and "records" are iterators over rows in memory.
func BenchmarkHandoff(b *testing.B) {
	sum := 0
	look := func(p []byte) {
		for i := 0; i < len(p); i += 4096 {
			sum += int(p[i])
		}
	}
	for _, size := range []int{64 << 10, 4 << 20} {
		for _, how := range []string{"memcpy", "copy", "place", "pipeline", "records", "memcpy again"} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, how), func(b *testing.B) {
				b.SetBytes(int64(size))
				if strings.HasPrefix(how, "memcpy") {
					src, ring := make([]byte, size), make([][]byte, 8)
					for i := range ring {
						ring[i] = make([]byte, size)
						copy(ring[i], src)
					}
					before, i := cpu(), 0
					for b.Loop() {
						copy(ring[i&7], src)
						look(ring[i&7])
						i++
					}
					b.ReportMetric(float64((cpu()-before).Microseconds())/float64(i), "cpu-us/batch")
					return
				}
				path := socket(b)
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), fmt.Sprintf("PENSTOCK_FEED_BENCH=%s %d %s", how, size, path))
				cmd.Stderr = os.Stderr
				must(b, cmd.Start())
				before, batches := cpu(), 0
				defer func() {
					cmd.Wait()
					own := cpu() - before
					b.ReportMetric(float64(own.Microseconds())/float64(batches), "cpu-us/batch")
					b.ReportMetric(float64((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Microseconds())/float64(batches), "producer-us/batch")
				}()
				c, err := Dial(b.Context(), path, 0, nil)
				must(b, err)
				defer c.Close()
				b.ReportAllocs()
				for warm := 20; b.Loop(); {
					x, err := c.Next(b.Context())
					must(b, err)
					if rec := x.Record(); rec != nil {
						look(rec.Column(0).(*array.FixedSizeList).ListValues().Data().Buffers()[1].Bytes())
					} else {
						look(x.Buffer())
					}
					x.Release()
					batches++
					if warm--; warm == 0 {
						b.ResetTimer() // the ring's pages are there
					}
				}
			})
		}
	}
	if sum < 0 {
		b.Log(sum)
	}
}
