package mem

import (
	"runtime/debug"
	"sync"
)

// paceBytes is how much the collector lets a process allocate between two collections at least, times GOGC/100.
const paceBytes = 8 << 20

// pace slows the collector down. What a pool hands out is not in the Go heap, which is therefore so small that it would be collected
// for every 4 MiB of small objects, which costs most where row groups are small. The collector goes by
// the size of the heap, of which a block counts that is never written, and so takes addresses and no memory. GOGC stays the
// user's. The process has up to so much more garbage. Under a limit (GOMEMLIMIT) that is not far above the block, it
// would have the collector run more often: there is none then.
var pace = sync.OnceValue(newPace)

func newPace() []byte {
	if debug.SetMemoryLimit(-1) < 64*paceBytes {
		return nil
	}
	b := make([]byte, paceBytes)
	discard(addr(b), paceBytes) // where the heap was larger before, it has been written
	return b
}
