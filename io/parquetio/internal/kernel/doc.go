// Package kernel decodes the bytes of Parquet pages into memory laid out as
// Arrow has it. Its functions are pure: no I/O, no Arrow types, memory of the caller.
//
// Sources are outside bytes and may be damaged: nothing is read outside them, nothing
// written outside what a function is given, and a bool says false; the destination
// then holds anything. Destinations are filled: the number of values asked for is
// their length. Decoders are plain values: a copy looks ahead and is thrown away,
// or put back. After a false a decoder has no more values.
//
// Bitmaps are numbered from the lowest bit of the first byte. Multi-byte values are
// little endian, as the machine must be. Loops that gain from it have assembly for
// amd64, chosen at run time; the build tag purego leaves it out.
package kernel

import "unsafe"

// Slack is how many bytes behind its result a function may write, where it says so,
// as far as the destination reaches. With that much room it is fastest.
const Slack = 64

// Word is a value of fixed width that is copied as a whole.
type Word interface {
	uint8 | uint16 | uint32 | uint64 | [2]uint64 | [4]uint64
}

// Cast returns the bytes as values over the same memory, at any alignment. Bytes
// left over at the end are left out.
func Cast[T Word](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// at returns a pointer to element i, unchecked.
func at[T any](s []T, i int) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(s)), uintptr(i)*unsafe.Sizeof(*new(T))))
}

// fill sets all of dst to v.
func fill[T any](dst []T, v T) {
	if len(dst) == 0 {
		return
	}
	if len(dst) <= 16 {
		for i := range dst {
			dst[i] = v
		}
		return
	}
	for i := range dst[:16] {
		dst[i] = v
	}
	for n := 16; n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}
