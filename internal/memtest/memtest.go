// Package memtest is the allocator of tests: it counts every byte, checks at the
// end that all came back, and overwrites freed memory so that use after release
// is seen.
package memtest

import (
	"os"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// New returns an allocator for one test; the test fails if it ends with memory
// still allocated. Safe for concurrent use.
func New(t testing.TB) *memory.CheckedAllocator {
	t.Helper()
	a := memory.NewCheckedAllocator(mangler{memory.NewGoAllocator()})
	t.Cleanup(func() {
		if !t.Failed() {
			a.AssertSize(t, 0)
		}
	})
	return a
}

// Skip skips a test for which this machine lacks something; where CI=true, which has it, the test fails.
func Skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Poll asks ok again and again, every 5 ms, until it is true or the time is over, and reports whether it is true. It is for what says nothing by itself: files, and processes of somebody else.
func Poll(most time.Duration, ok func() bool) bool {
	for end := time.Now().Add(most); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

type mangler struct{ memory.Allocator }

func (m mangler) Allocate(n int) []byte {
	b := m.Allocator.Allocate(n)
	fill(b, 0xAA) // Allocate promises nothing about the contents
	return b
}

// Reallocate always moves, so that an old slice is never right by luck.
func (m mangler) Reallocate(n int, old []byte) []byte {
	b := m.Allocate(n)
	copy(b, old)
	m.Free(old)
	return b
}

func (m mangler) Free(b []byte) {
	fill(b[:cap(b)], 0xCC)
	m.Allocator.Free(b)
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}
