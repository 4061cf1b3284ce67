//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// asm says whether assembly is used; tests clear it.
var asm = true

var hasAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL && cpu.X86.HasPOPCNT

func bmi2() bool   { return asm && cpu.X86.HasBMI2 }
func avx512() bool { return asm && hasAVX512 }
func vbmi() bool   { return avx512() && cpu.X86.HasAVX512VBMI }  // permutes bytes
func vbmi2() bool  { return avx512() && cpu.X86.HasAVX512VBMI2 } // expands bytes

// The functions below do what their Go twins do, for whole blocks: counts are
// multiples of what is said. They read and write no more than that.

// expand8 expands 64 values for each of words masks; for vbmi2.
//
//go:noescape
func expand8(dst, dense *uint8, masks *uint64, words int)

// expand16 expands 64 values for each of words masks; for vbmi2.
//
//go:noescape
func expand16(dst, dense *uint16, masks *uint64, words int)

// expand32 expands 64 values for each of words masks.
//
//go:noescape
func expand32(dst, dense *uint32, have int, masks *uint64, words int)

// expand64 expands 64 values for each of words masks.
//
//go:noescape
func expand64(dst, dense *uint64, have int, masks *uint64, words int)

// offsets32 writes the offset behind each of 64 rows for each of words masks; ranks has
// the set bits of every byte up to each of its bits. It reads up to 16 offsets from
// every eighth row on.
//
//go:noescape
func offsets32(dst, dense *int32, ranks *[256][8]uint8, masks *uint64, words int)

// gather32 looks up n values, n > 0 a multiple of 8.
//
//go:noescape
func gather32(dst, dict *uint32, idx *uint32, n int)

// gather64 looks up n values, n > 0 a multiple of 8.
//
//go:noescape
func gather64(dst, dict *uint64, idx *uint32, n int)

// gather128 looks up n values, n > 0 a multiple of 8.
//
//go:noescape
func gather128(dst, dict *[2]uint64, idx *uint32, n int)

// look32 looks up n values, n > 0 a multiple of 16, in a dictionary of 32.
//
//go:noescape
func look32(dst *uint32, dict *[32]uint32, idx *uint32, n int)

// look64 looks up n values, n > 0 a multiple of 8, in a dictionary of 16.
//
//go:noescape
func look64(dst *uint64, dict *[16]uint64, idx *uint32, n int)

// max32 returns the largest of n values, n > 0 a multiple of 32.
//
//go:noescape
func max32(v *uint32, n int) uint32

// deltas32 unpacks n values, n > 0 a multiple of 16, every 16 in step bytes as l says,
// adds least to each and sums them up from last on. It reads 64 bytes from where 16
// values begin.
//
//go:noescape
func deltas32(dst *uint32, src *byte, n, step int, l *lanes, least, last uint32) uint32

// deltas64 unpacks n values, n > 0 a multiple of 8, every 8 in step bytes as l says,
// adds least to each and sums them up from last on. It reads 64 bytes from where 8
// values begin.
//
//go:noescape
func deltas64(dst *uint64, src *byte, n, step int, l *lanes, least, last uint64) uint64

// zip4 interleaves 4 streams of n bytes, n > 0 a multiple of 16, stride apart.
//
//go:noescape
func zip4(dst, src *byte, stride, n int)

// zip8 interleaves 8 streams of n bytes, n > 0 a multiple of 16, stride apart.
//
//go:noescape
func zip8(dst, src *byte, stride, n int)

// unpack8 unpacks n values of width bits, n > 0 a multiple of 8, width 1 to 8. It
// reads 8 bytes from where 8 values begin.
//
//go:noescape
func unpack8(dst, src *byte, n int, width uint)

// atLeast8 compares 64 levels for each of words masks.
//
//go:noescape
func atLeast8(masks *uint64, levels *uint8, words int, least uint8)
