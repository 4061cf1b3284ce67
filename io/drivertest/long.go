package drivertest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// counting is a pool that knows the most it had handed out.
type counting struct {
	*mem.Pool
	most atomic.Int64
}

func (c *counting) Allocate(n int) []byte {
	b := c.Pool.Allocate(n)
	for l := c.Live(); ; {
		if m := c.most.Load(); l <= m || c.most.CompareAndSwap(m, l) {
			return b
		}
	}
}

func (c *counting) Reallocate(n int, b []byte) []byte {
	p := c.Allocate(n)
	copy(p, b)
	c.Free(b)
	return p
}

// LongRow checks that a text format holds a long row in memory of the allocator, and little else in Go memory, from Resolve on, and gives it back where there is none for more: the file,
// plain and compressed, is head, row of a long value, and tail, which are rows as well. source reads the file at a path, in one
// split. values are those of column that the file has: short ones, the long one at place long. times is how often the long row may be in memory at once.
func LongRow(t *testing.T, name string, file []byte, column string, values []string, times float64, source func(path string) driver.Source) {
	const heap = 8 << 20
	longest := 0
	for _, v := range values {
		longest = max(longest, len(v))
	}
	if longest < 3*heap {
		t.Fatalf("a value of %d bytes is not long", longest)
	}
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, 1)
	w.Write(file)
	w.Close()
	for ext, data := range map[string][]byte{"": file, ".gz": packed.Bytes()} {
		t.Run(name+ext, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name+ext)
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
			alloc := &counting{Pool: mem.New(1 << 30)}
			defer alloc.Close()
			if !alloc.OffHeap() {
				memtest.Skip(t, "no memory outside the Go heap here")
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			row := 0
			tab, err := source(path).Resolve(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tab.Close()
			r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Alloc: alloc})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for {
				b, err := r.Next(t.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				c := b.Record.Column(b.Record.Schema().FieldIndices(column)[0]).(*array.String)
				for i := range c.Len() {
					if row >= len(values) || c.Value(i) != values[row] {
						t.Errorf("row %d is not as it was written", row)
					}
					row++
				}
				check(t, c)
				b.Record.Release()
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if row != len(values) {
				t.Errorf("%d rows, want %d", row, len(values))
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > heap {
				t.Errorf("a row of %d MiB took %d MiB of Go memory", longest>>20, n>>20)
			}
			if n := float64(alloc.most.Load()); n < float64(longest) || n > times*float64(longest) {
				t.Errorf("a row of %d MiB took %.0f MiB of the allocator at once", longest>>20, n/(1<<20))
			}
			if n := alloc.Live(); n != 0 {
				t.Errorf("%d bytes were not given back", n)
			}
			if ext == "" {
				outOfMemory(t, tab)
			}
		})
	}
}

// check looks at the layout: offsets from 0 on, no more text than there is.
func check(t *testing.T, c *array.String) {
	bufs := c.Data().Buffers()
	if o := arrow.Int32Traits.CastFromBytes(bufs[1].Bytes()); c.Len() > 0 && (c.Data().Offset() == 0 && o[0] != 0 || int(o[c.Data().Offset()+c.Len()]) > bufs[2].Len()) {
		t.Errorf("offsets %v of %d bytes", o, bufs[2].Len())
	}
}

// errNoMemory is what short panics with.
var errNoMemory = errors.New("no memory")

// short is a pool whose large allocation number left fails, as the budget's do when the run that waits for memory is given up.
type short struct {
	*mem.Pool
	left int
}

func (s *short) Allocate(n int) []byte {
	if n >= 8<<20 {
		if s.left--; s.left == 0 {
			panic(errNoMemory)
		}
	}
	return s.Pool.Allocate(n)
}

func (s *short) Reallocate(n int, b []byte) []byte {
	p := s.Allocate(n)
	copy(p, b)
	s.Free(b)
	return p
}

// outOfMemory reads a split, for which there is no memory at one place after another: nothing stays allocated.
func outOfMemory(t *testing.T, tab driver.Table) {
	for failed := 1; failed <= 5; failed++ {
		alloc := &short{Pool: mem.New(1 << 30), left: failed}
		r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Alloc: alloc})
		if err != nil {
			t.Fatal(err)
		}
		through := func() (through bool) {
			defer func() {
				if p := recover(); p != nil && p != any(errNoMemory) {
					panic(p)
				}
			}()
			for {
				b, err := r.Next(t.Context())
				if err == io.EOF {
					return true
				}
				if err != nil {
					t.Fatal(err)
				}
				b.Record.Release()
			}
		}()
		r.Close()
		if n := alloc.Live(); n != 0 {
			t.Errorf("%d bytes were not given back after allocation %d failed", n, failed)
		}
		alloc.Close()
		if through {
			if failed < 3 {
				t.Errorf("only %d large allocations", failed-1)
			}
			return
		}
	}
}

// LongText is text of n bytes that is no number, without quotes or line breaks.
func LongText(n int) string { return strings.Repeat("some text ", n/10+1)[:n] }
