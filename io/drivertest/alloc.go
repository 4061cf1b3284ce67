package drivertest

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// located knows where lies what it has given and not got back.
type located struct {
	memory.Allocator
	mu    sync.Mutex
	given map[uintptr]uintptr // begins and ends
	sum   int
}

func (l *located) Allocate(n int) []byte {
	b := l.Allocator.Allocate(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		l.given[at] = at + uintptr(n)
		l.sum += n
	}
	return b
}

func (l *located) Reallocate(n int, b []byte) []byte {
	p := l.Allocate(n)
	copy(p, b)
	l.Free(b)
	return p
}

func (l *located) Free(b []byte) {
	l.mu.Lock()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if end, ok := l.given[at]; ok {
		delete(l.given, at)
		l.sum -= int(end - at)
	}
	l.mu.Unlock()
	l.Allocator.Free(b)
}

// inside reports whether the allocator has given b.
func (l *located) inside(b []byte) bool {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	to := from + uintptr(len(b))
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, end := range l.given {
		if at <= from && to <= end {
			return true
		}
	}
	return false
}

// buffers calls f with what d holds.
func buffers(d arrow.ArrayData, f func([]byte)) {
	for _, b := range d.Buffers() {
		if b != nil && b.Len() > 0 {
			f(b.Bytes())
		}
	}
	for _, c := range d.Children() {
		buffers(c, f)
	}
	if d := d.Dictionary(); d != nil && d.(*array.Data) != nil {
		buffers(d, f)
	}
}

// alloc: all memory of columns is of ScanOptions.Alloc, as that is what a task pays with, and not much more of it stays than the batches need.
func (s *suite) alloc(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	s.allocOf(t, tab, false)
	s.allocOf(t, tab, true)
}

func (s *suite) allocOf(t *testing.T, tab driver.Table, own bool) {
	for i, split := range tab.Splits() {
		l := &located{Allocator: memtest.New(t), given: map[uintptr]uintptr{}}
		var held []arrow.RecordBatch
		err := scan(t.Context(), tab, i, &driver.ScanOptions{Alloc: l, Own: own}, func(b driver.Batch) error {
			b.Record.Retain()
			held = append(held, b.Record)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		sum, seen := 0, map[*byte]bool{}
		for _, rec := range held {
			for c, col := range rec.Columns() {
				buffers(col.Data(), func(b []byte) {
					switch {
					case seen[&b[0]]:
					case l.inside(b):
						sum += len(b)
					case !s.Shares && (own || !s.Maps):
						t.Errorf("split %s, column %q: %d bytes are not of ScanOptions.Alloc (Own: %t)", split.ID, rec.ColumnName(c), len(b), own)
					}
					seen[&b[0]] = true
				})
			}
		}
		if most := sum*3/2 + len(seen)*128; l.sum > most { // buffers have multiples of 64 bytes
			t.Errorf("split %s: %d bytes of ScanOptions.Alloc are kept for batches of %d bytes", split.ID, l.sum, sum)
		}
		for _, rec := range held {
			rec.Release()
		}
	}
}
