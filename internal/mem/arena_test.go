package mem

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

// TestNextPool: a pool takes over the pages of a closed one, as far as its own limit allows, and only of the same shape.
func TestNextPool(t *testing.T) {
	warm := func() {
		p := New(256 << 20)
		blocks := [][]byte{p.Allocate(8 << 20), p.Allocate(150 << 20), p.Allocate(5000)}
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
		if c > 128<<20 {
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
		memtest.Skip(t, "no memory outside the Go heap here")
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

// TestPoolsInTurn: blocks of pools that follow each other, live at the same time, are closed before their last block is freed and
// used afterwards keep their contents.
func TestPoolsInTurn(t *testing.T) {
	seed := rand.Uint64()
	limits := []int64{1 << 20, 33 << 20, 40 << 20, 100 << 20}
	var wg sync.WaitGroup
	for w := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, w))
			var old *Pool // closed, all its blocks freed
			for range 6 {
				p := New(limits[rng.IntN(len(limits))])
				var side sync.WaitGroup
				for range 2 {
					r := rand.New(rand.NewPCG(seed, rng.Uint64()))
					end := r.IntN(1500)
					side.Go(func() {
						if end < 700 {
							p.Close()
							p.Trim()
						}
						churnClosed(t, p, r)
						p.Outside(1 << 20)
						p.Outside(-1 << 20)
					})
				}
				if old != nil {
					old.Outside(1 << 30)
					old.Free(old.Allocate(1 << 20))
					old.Trim()
					old.Close()
				}
				p.Close()
				side.Wait()
				if n := p.Live(); n != 0 {
					t.Errorf("%d bytes live", n)
				}
				if old = p; rng.IntN(4) == 0 {
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

// churnClosed is churn for a pool that may be closed meanwhile: blocks may lie anywhere.
func churnClosed(t *testing.T, p *Pool, r *rand.Rand) {
	var all [][]byte
	pattern := func(b []byte) byte { return byte(len(b)*31) ^ byte(addr(b)>>6) }
	check := func(b []byte) {
		v := pattern(b)
		for i := 0; i < len(b); i += 509 {
			if b[i] != v {
				t.Errorf("a block of %d bytes changed at %d", len(b), i)
				return
			}
		}
	}
	for range 400 {
		if k := len(all); k > 0 && r.IntN(3) == 0 {
			i := r.IntN(k)
			check(all[i])
			p.Free(all[i])
			all[i] = all[k-1]
			all = all[:k-1]
			continue
		}
		b := p.Allocate(1 + int(r.ExpFloat64()*float64(int(64)<<r.IntN(14))))
		v := pattern(b)
		for i := range b {
			b[i] = v
		}
		all = append(all, b)
	}
	for _, b := range all {
		check(b)
		p.Free(b)
	}
}
