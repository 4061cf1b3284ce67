//go:build !amd64 || purego

package kernel

// asm says whether there is assembly for this machine.
const asm = false

// Without it no head of the work is done by it.

func expandHead[T any](dst, dense []T, valid []byte, at int) (rows, used int) { return 0, 0 }

func offsetsHead[O int32 | int64](dst, dense []O, valid []byte, at int) (rows, used int) {
	return 0, 0
}

func gatherHead[T any](dst, dict []T, idx []uint32) int { return 0 }

func maximumHead(v []uint32) (n int, top uint32) { return 0, 0 }

func unpack8Head(dst, src []byte, width uint) int { return 0 }

func atLeastHead[L uint8 | uint16](dst []byte, at int, levels []L, least L) (n, set int) {
	return 0, 0
}

func deltasHead[T int32 | int64](d *Delta, dst []T) int { return 0 }

func zipHead(dst, src []byte, width, stride int) int { return 0 }
