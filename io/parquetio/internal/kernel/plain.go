package kernel

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// room is how much of dst offsets of type O can name.
func room[O int32 | int64](dst []byte) int {
	if unsafe.Sizeof(O(0)) == 4 {
		return min(len(dst), math.MaxInt32)
	}
	return len(dst)
}

// copy32 copies 32 bytes in two loads and two stores: no call.
func copy32(dst, src unsafe.Pointer) {
	a, b := *(*[2]uint64)(src), *(*[2]uint64)(unsafe.Add(src, 16))
	*(*[2]uint64)(dst) = a
	*(*[2]uint64)(unsafe.Add(dst, 16)) = b
}

// PlainBytesSize walks over n byte strings, each behind its length in 4 bytes: size
// is what they have together, used how much of src they take.
func PlainBytesSize(src []byte, n int) (size int64, used int, ok bool) {
	for range n {
		if len(src)-used < 4 {
			return 0, 0, false
		}
		k := int(binary.LittleEndian.Uint32(src[used:]))
		used += 4
		if k > len(src)-used {
			return 0, 0, false
		}
		used += k
	}
	return int64(used) - 4*int64(n), used, true
}

// PlainBytes reads byte strings, each behind its length in 4 bytes. String i goes to
// dst[offsets[i]:offsets[i+1]]; the caller sets offsets[0]. It may write up to Slack
// bytes behind the last, and returns how much of src it read.
func PlainBytes[O int32 | int64](offsets []O, dst, src []byte) (used int, ok bool) {
	if len(offsets) == 0 {
		return 0, false
	}
	dst = dst[:room[O](dst)]
	pos := int(offsets[0])
	if pos < 0 || pos > len(dst) {
		return 0, false
	}
	offsets = offsets[1:]
	for i := range offsets {
		if len(src)-used < 4 {
			return 0, false
		}
		k := int(binary.LittleEndian.Uint32(src[used:]))
		used += 4
		if k <= 32 && used+32 <= len(src) && pos+32 <= len(dst) {
			copy32(unsafe.Pointer(at(dst, pos)), unsafe.Pointer(at(src, used)))
		} else {
			if k > len(src)-used || k > len(dst)-pos {
				return 0, false
			}
			copy(dst[pos:pos+k], src[used:])
		}
		used += k
		pos += k
		offsets[i] = O(pos)
	}
	return used, true
}
