package mem

import "sync"

// paceBytes is how much the collector lets a process allocate between two collections at least, times GOGC/100.
const paceBytes = 16 << 20

// pace slows the collector down. What a pool hands out is not in the Go heap, which is therefore so small that it would be collected
// for every 4 MiB of small objects: a tenth of the CPU time of a scan, and more where row groups are small. The collector goes by
// the size of the heap, of which a block counts that is never written, and so takes addresses and no memory. GOGC stays the
// user's. The process has up to so much more garbage.
var pace = sync.OnceValue(func() []byte { return make([]byte, paceBytes) })
