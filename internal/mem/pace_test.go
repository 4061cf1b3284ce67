package mem

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

var garbage []byte

// A process with a pool is not collected for each 4 MiB of small objects.
func TestPace(t *testing.T) {
	p := New(1 << 20)
	defer p.Close()
	if p.base == 0 {
		memtest.Skip(t, "no addresses can be reserved here")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	const all = 16 * paceBytes
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range all >> 12 {
		garbage = make([]byte, 1<<12)
	}
	runtime.ReadMemStats(&after)
	if n, most := after.NumGC-before.NumGC, uint32(all/paceBytes); n > most {
		t.Errorf("%d collections for %d MiB of garbage, want %d at most", n, all>>20, most)
	}
}
