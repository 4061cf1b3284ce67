package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if cfg := os.Getenv("PENSTOCK_FEED_CHILD"); cfg != "" {
		child(cfg)
	}
	if cfg := os.Getenv("PENSTOCK_FEED_BENCH"); cfg != "" {
		var how, path string
		var size int
		_, err := fmt.Sscan(cfg, &how, &size, &path)
		if err == nil {
			err = benchProducer(how, size, path)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := mapped(); n > 0 && code == 0 {
			fmt.Fprintf(os.Stderr, "%d rings are still mapped\n", n)
			code = 1
		}
		os.Exit(code)
	}))
}

// socket is a path that is short enough, in a folder of its own.
func socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "feed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// serving runs Serve; wait gives what it returned.
func serving(t testing.TB, ctx context.Context, path string, its []*shard.Iterator, o *Options) (wait func() error) {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		err := Serve(ctx, l, its, o)
		l.Close()
		done <- err
	}()
	return sync.OnceValue(func() error { return <-done })
}

func dialTest(t testing.TB, path string, rank int, o *DialOptions) *Client {
	t.Helper()
	c, err := Dial(t.Context(), path, rank, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// columns of every kind that a batch in Arrow form may have.
func columns(t testing.TB, n int) *dataset.Dataset {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "x", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)},
		{Name: "f", Type: arrow.FixedSizeListOfNonNullable(3, arrow.PrimitiveTypes.Uint8)},
		{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
	}, nil)
	var recs []arrow.RecordBatch
	for at := 0; at < n; at += 500 {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for i := at; i < min(at+500, n); i++ {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
			b.Field(1).(*array.Float32Builder).Append(float32(i) / 3)
			if i%7 == 0 {
				b.Field(2).AppendNull()
				b.Field(3).AppendNull()
				b.Field(6).AppendNull()
			} else {
				b.Field(2).(*array.StringBuilder).Append(strings.Repeat("ä", i%5))
				b.Field(3).(*array.BooleanBuilder).Append(i%3 == 0)
				if err := b.Field(6).(*array.BinaryDictionaryBuilder).AppendString(fmt.Sprint("v", (i+at/500)%4)); err != nil {
					t.Fatal(err)
				}
			}
			l := b.Field(4).(*array.ListBuilder)
			l.Append(true)
			for k := range i % 4 {
				l.ValueBuilder().(*array.Int32Builder).Append(int32(i + k))
			}
			f := b.Field(5).(*array.FixedSizeListBuilder)
			f.Append(true)
			for k := range 3 {
				f.ValueBuilder().(*array.Uint8Builder).Append(uint8(i + k))
			}
		}
		recs = append(recs, b.NewRecordBatch())
		b.Release()
	}
	ds := dataset.FromRecords(schema, recs...)
	return ds
}

// Consumers of the feed get what iterators of this process give: the same bytes, numbers, lineage,
// ends of epochs and states, in both forms.
func TestSame(t *testing.T) {
	lists := map[string]shard.Column{"id": {}, "x": {DType: shard.BFloat16}, "f": {}, "l": {Lists: shard.ListsRagged}, "b": {}}
	delete(lists, "b") // has nulls
	forms := []shard.Form{{}, {Tensors: true, Columns: lists},
		{Tensors: true, Columns: map[string]shard.Column{"id": {DType: shard.Float64}, "l": {Lists: shard.ListsPadGlobal, Multiple: 2}}}}
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			ranks := 1 + rng.IntN(4)
			ds := columns(t, 3000+rng.IntN(500))
			if rng.IntN(2) == 0 {
				ds = ds.Filter("id % 3 != 0")
			}
			o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: seed}, Options: shard.Options{
				GlobalBatch: 20 + rng.IntN(300), Lineage: rng.IntN(2) == 0, Epochs: 2, Form: forms[rng.IntN(len(forms))],
				Tail: []shard.Tail{shard.TailDrop, shard.TailPad, shard.TailRepeat}[rng.IntN(3)], Prefetch: rng.IntN(4) - 1,
				Shuffle: &shard.Shuffle{Lanes: 1 + rng.IntN(3), WindowRows: int64(50 + rng.IntN(400))},
			}}
			local, err := ds.Shards(t.Context(), ranks, o)
			if err != nil {
				t.Fatal(err)
			}
			served, err := ds.Shards(t.Context(), ranks, o)
			if err != nil {
				t.Fatal(err)
			}
			path := socket(t)
			wait := serving(t, t.Context(), path, served, nil)
			var all sync.WaitGroup
			for r := range ranks {
				all.Go(func() {
					c, err := Dial(t.Context(), path, r, &DialOptions{Prefetch: int(seed) % 4})
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					if err := same(t.Context(), local[r], c); err != nil {
						t.Errorf("rank %d of %d: %v", r, ranks, err)
					}
				})
			}
			all.Wait()
			if err := wait(); err != nil {
				t.Error(err)
			}
			for _, it := range local {
				it.Close()
			}
		})
	}
}

// same reads both to their ends.
func same(ctx context.Context, it *shard.Iterator, c *Client) error {
	if a, b := it.State(), c.State(); !reflect.DeepEqual(a, b) {
		return fmt.Errorf("begins at %+v, not %+v", b, a)
	}
	batches, ends := 0, 0
	for ends < 4 { // two epochs, and twice more
		n, known := it.Len()
		if m, ok := c.Len(); m != n || ok != known {
			return fmt.Errorf("Len is %d, %v, not %d, %v", m, ok, n, known)
		}
		a, aerr := it.Next(ctx)
		b, berr := c.Next(ctx)
		if aerr != berr {
			return fmt.Errorf("after %d batches: %v, not %v", batches, berr, aerr)
		}
		sa, sb := it.State(), c.State()
		if !reflect.DeepEqual(sa, sb) {
			return fmt.Errorf("after %d batches: state %+v, not %+v", batches, sb, sa)
		}
		if c.Step() != it.Step() || c.Epoch() != it.Epoch() {
			return fmt.Errorf("after %d batches: epoch %d, step %d", batches, c.Epoch(), c.Step())
		}
		if aerr == io.EOF {
			ends++
			continue
		}
		if aerr != nil {
			return aerr
		}
		batches++
		switch {
		case a.Digest() != b.Digest():
			return fmt.Errorf("batch %d has other bytes", batches)
		case a.Rows() != b.Rows() || a.Real() != b.Real() || a.Step() != b.Step() || a.Epoch() != b.Epoch() || a.Rank() != b.Rank():
			return fmt.Errorf("batch %d: rows %d, real %d, step %d, epoch %d, rank %d", batches, b.Rows(), b.Real(), b.Step(), b.Epoch(), b.Rank())
		case !reflect.DeepEqual(a.Samples(), b.Samples()):
			return fmt.Errorf("batch %d: samples %v, not %v", batches, b.Samples(), a.Samples())
		case !reflect.DeepEqual(a.Lineage(), b.Lineage()):
			return fmt.Errorf("batch %d has another lineage", batches)
		case (a.Record() == nil) != (b.Record() == nil) || len(a.Tensors()) != len(b.Tensors()):
			return fmt.Errorf("batch %d has another form", batches)
		case a.Record() != nil && !a.Record().Schema().Equal(b.Record().Schema()):
			return fmt.Errorf("batch %d has the schema %v", batches, b.Record().Schema())
		}
		for i, x := range b.Tensors() {
			y := a.Tensors()[i]
			if x.Name != y.Name || len(x.Data) > 0 && address(x.Data)%64 != 0 {
				return fmt.Errorf("batch %d: tensor %q lies at %d", batches, x.Name, address(x.Data))
			}
		}
		a.Release()
		b.Release()
	}
	if batches == 0 {
		return errors.New("no batch")
	}
	return nil
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// drain reads until an error.
func drain(t testing.TB, c *Client) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range aheadMost + 1 { // of which all but one may be ahead
		b, err := c.Next(ctx)
		if err != nil {
			return err
		}
		b.Release()
	}
	return errors.New("it goes on and on")
}

func wantError(t testing.TB, err error, code fault.Code, texts ...string) {
	t.Helper()
	if err == nil || fault.CodeOf(err) != code {
		t.Errorf("got %v error %v, want %v", fault.CodeOf(err), err, code)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error %q does not say %q", err, s)
		}
	}
}

// What is ahead of a consumer that does not read is bounded, and so is what a consumer reads ahead.
func TestBackpressure(t *testing.T) {
	budget := int64(64 << 20)
	its, err := dataset.Range(4_000_000).Shards(t.Context(), 1, &dataset.ShardOptions{RunOptions: dataset.RunOptions{Memory: budget},
		Options: shard.Options{GlobalBatch: 100_000, Form: shard.Form{Tensors: true}}})
	if err != nil {
		t.Fatal(err)
	}
	path := socket(t)
	wait := serving(t, t.Context(), path, its, nil)
	c := dialTest(t, path, 0, &DialOptions{Prefetch: 3})
	for i := range 20 {
		b, err := c.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if i == 10 {
			for len(c.queue) < 3 { // fills up
				runtime.Gosched()
			}
			for range 10_000 {
				c.ring.mu.Lock()
				n := c.ring.views
				c.ring.mu.Unlock()
				if n > 3+1 { // 1 waits for room in the queue
					t.Fatalf("%d batches read ahead", n)
				}
				runtime.Gosched()
			}
			if at := its[0].Step(); at > 11+3 {
				t.Errorf("%d steps left the iterator for 11 read", at)
			}
		}
	}
	c.Close()
	if err := wait(); err != nil {
		t.Error(err)
	}
	_, err = Dial(t.Context(), path, 0, &DialOptions{Wait: -1})
	wantError(t, err, fault.Unavailable)
}

// A batch over the limit is refused.
func TestMaxBatch(t *testing.T) {
	for _, form := range []shard.Form{{}, {Tensors: true}} {
		its, err := dataset.Range(100_000).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10_000, Form: form}})
		if err != nil {
			t.Fatal(err)
		}
		path := socket(t)
		wait := serving(t, t.Context(), path, its, nil)
		c := dialTest(t, path, 0, &DialOptions{MaxBatch: 70_000})
		_, err = c.Next(t.Context())
		wantError(t, err, fault.Exhausted, "at most 70000", "MaxBatch")
		c.Close()
		if err := wait(); err != nil {
			t.Error(err)
		}
	}
}
