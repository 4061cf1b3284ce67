package ipcio

import "sync"

// known says of which columns of which frames all rows were checked, so that another pass need not
// look at them: a file that is another than the one that was listed is an error of whoever reads
// it. Safe for concurrent use.
type known struct {
	mu     sync.Mutex
	frames map[int][]uint64 // a bit per column
}

func (k *known) has(frame, column int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	bits := k.frames[frame]
	return column/64 < len(bits) && bits[column/64]>>(column%64)&1 != 0
}

func (k *known) add(frame int, columns []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.frames == nil {
		k.frames = map[int][]uint64{}
	}
	bits := k.frames[frame]
	for _, c := range columns {
		for c/64 >= len(bits) {
			bits = append(bits, 0)
		}
		bits[c/64] |= 1 << (c % 64)
	}
	k.frames[frame] = bits
}
