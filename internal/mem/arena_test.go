package mem

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestNextPool: a pool takes over the pages of a closed one, as far as its own limit allows, and only of the same shape.
func TestNextPool(t *testing.T) {
	warm := func() {
		p := New(256 << 20)
		blocks := [][]byte{p.Allocate(8 << 20), p.Allocate(80 << 20), p.Allocate(5000)}
		p.Close()
		for _, b := range blocks {
			p.Free(b)
		}
	}
	taken := false
	for i := 0; i < 100 && !taken; i++ { // sync.Pool promises nothing of a single turn
		warm()
		p := New(256 << 20)
		c := p.Cached()
		if c > keepBytes {
			t.Fatalf("%d bytes were kept", c)
		}
		if c > 0 {
			taken = true
			b := p.Allocate(8 << 20)
			if p.Cached() >= c {
				t.Fatalf("8 MiB of %d kept bytes were not used", c)
			}
			clear(b)
			p.Free(b)
		}
		p.Close()
		warm()
		if p = New(64 << 20); p.Cached() != 0 {
			t.Fatalf("a pool of 64 MiB took %d bytes of one of 256 MiB", p.Cached())
		}
		p.Close()
	}
	if !taken && New(1).OffHeap() {
		t.Fatal("no pool took over what another left")
	}
}

// TestSpareIsUnmapped: addresses that no pool takes over are given back by the garbage collector.
func TestSpareIsUnmapped(t *testing.T) {
	p := New(48 << 20)
	if !p.OffHeap() {
		t.Skip("no memory outside the Go heap here")
	}
	at := fmt.Sprintf("%x-", p.base)
	mapped := func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains("\n"+string(maps), "\n"+at)
	}
	if !mapped() {
		t.Fatalf("no mapping at %s", at)
	}
	p.Free(p.Allocate(1 << 20))
	p.Close()
	for range 1000 {
		if !mapped() {
			return
		}
		runtime.GC()
	}
	t.Fatalf("the mapping at %s is still there after 1,000 collections", at)
}
