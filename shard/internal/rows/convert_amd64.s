//go:build !purego

#include "textflag.h"

// The kernels convert 16 values a turn, or 8 where those are of 64 bits on one side; n is a multiple of 16.

#define BEGIN \
	MOVQ dst+0(FP), DI  \
	MOVQ src+8(FP), SI  \
	MOVQ n+16(FP), CX

// NEXT ends a turn: in and out are the bytes that it read and wrote.
#define NEXT(values, in, out) \
	ADDQ $in, SI     \
	ADDQ $out, DI    \
	SUBQ $values, CX \
	JNZ  turn        \
	VZEROUPPER       \
	RET

// FLOAT32 is a kernel that converts integers of in bytes each 16; wide makes 32-bit integers of them.
#define FLOAT32(name, in, wide) \
TEXT name(SB), NOSPLIT, $0-24 \
	BEGIN                 \
turn:                     \
	wide (SI), Z0         \
	VCVTDQ2PS Z0, Z0      \
	VMOVUPS   Z0, (DI)    \
	NEXT(16, in, 64)

// FLOAT32W is one whose instruction does it all, 8 values a turn where it makes half a register of one.
#define FLOAT32W(name, values, in, out, convert, to) \
TEXT name(SB), NOSPLIT, $0-24 \
	BEGIN                 \
turn:                     \
	convert (SI), to      \
	VMOVUPS to, (DI)      \
	NEXT(values, in, out)

FLOAT32(·float32Int8, 16, VPMOVSXBD)
FLOAT32(·float32Uint8, 16, VPMOVZXBD)
FLOAT32(·float32Int16, 32, VPMOVSXWD)
FLOAT32(·float32Uint16, 32, VPMOVZXWD)
FLOAT32W(·float32Int32, 16, 64, 64, VCVTDQ2PS, Z0)
FLOAT32W(·float32Uint32, 16, 64, 64, VCVTUDQ2PS, Z0)
FLOAT32W(·float32Int64, 8, 64, 32, VCVTQQ2PS, Y0)
FLOAT32W(·float32Uint64, 8, 64, 32, VCVTUQQ2PS, Y0)
FLOAT32W(·float32Float64, 8, 64, 32, VCVTPD2PS, Y0)

// FLOAT64 is a kernel that makes float64 of 8 values, times scale, plus offset, in two steps as Go does it. load brings
// them to 64 or 32 bits, convert makes them floats.
#define FLOAT64(name, in, load, at, convert) \
TEXT name(SB), NOSPLIT, $0-40 \
	BEGIN                            \
	VBROADCASTSD scale+24(FP), Z30   \
	VBROADCASTSD offset+32(FP), Z31  \
turn:                                \
	load    (SI), at                 \
	convert at, Z0                   \
	VMULPD  Z30, Z0, Z0              \
	VADDPD  Z31, Z0, Z0              \
	VMOVUPD Z0, (DI)                 \
	NEXT(8, in, 64)

FLOAT64(·float64Int8, 8, VPMOVSXBD, Y0, VCVTDQ2PD)
FLOAT64(·float64Uint8, 8, VPMOVZXBD, Y0, VCVTDQ2PD)
FLOAT64(·float64Int16, 16, VPMOVSXWD, Y0, VCVTDQ2PD)
FLOAT64(·float64Uint16, 16, VPMOVZXWD, Y0, VCVTDQ2PD)
FLOAT64(·float64Int32, 32, VMOVDQU, Y0, VCVTDQ2PD)
FLOAT64(·float64Uint32, 32, VMOVDQU, Y0, VCVTUDQ2PD)
FLOAT64(·float64Int64, 64, VMOVUPD, Z0, VCVTQQ2PD)
FLOAT64(·float64Uint64, 64, VMOVUPD, Z0, VCVTUQQ2PD)
FLOAT64(·float64Float32, 32, VMOVUPS, Y0, VCVTPS2PD)
FLOAT64(·float64Float64, 64, VMOVUPD, Z0, VMOVAPD)

// func float32Odd(dst, src unsafe.Pointer, n int)
//
// Cut off towards zero, with the last bit set where something was lost: see narrow. NaN differs from itself, but not
// in order.
TEXT ·float32Odd(SB), NOSPLIT, $0-24
	BEGIN
	MOVL $1, AX
	VPBROADCASTD AX, Y31

turn:
	VMOVUPD (SI), Z0
	VCVTPD2PS.RZ_SAE Z0, Y1
	VCVTPS2PD Y1, Z2
	VCMPPD $0x0c, Z0, Z2, K1
	VPORD Y31, Y1, K1, Y1
	VMOVUPS Y1, (DI)
	NEXT(8, 64, 32)

// func float16Float32(dst, src unsafe.Pointer, n int)
//
// NaN becomes the one of half.
TEXT ·float16Float32(SB), NOSPLIT, $0-24
	BEGIN
	MOVL $0x8000, AX
	VPBROADCASTD AX, Z30
	MOVL $0x7e00, AX
	VPBROADCASTD AX, Z31

turn:
	VMOVUPS (SI), Z0
	VCVTPS2PH $0, Z0, Y1
	VCMPPS $3, Z0, Z0, K1
	VPSRLD $16, Z0, Z2
	VPANDD Z30, Z2, Z2
	VPORD Z31, Z2, Z2
	VPMOVDW Z2, Y2
	VPMOVZXWD Y1, Z1
	VPMOVZXWD Y2, Z2
	VMOVDQU32 Z2, K1, Z1
	VPMOVDW Z1, Y1
	VMOVDQU Y1, (DI)
	NEXT(16, 64, 32)

// func bfloat16Float32(dst, src unsafe.Pointer, n int)
TEXT ·bfloat16Float32(SB), NOSPLIT, $0-24
	BEGIN
	MOVL $0x7fff, AX
	VPBROADCASTD AX, Z29
	MOVL $1, AX
	VPBROADCASTD AX, Z30
	MOVL $0x40, AX
	VPBROADCASTD AX, Z31

turn:
	VMOVUPS (SI), Z0
	VCMPPS $3, Z0, Z0, K1
	VPSRLD $16, Z0, Z1
	VPANDD Z30, Z1, Z2
	VPADDD Z29, Z2, Z2
	VPADDD Z0, Z2, Z2
	VPSRLD $16, Z2, Z2
	VPORD Z31, Z1, K1, Z2
	VPMOVDW Z2, Y2
	VMOVDQU Y2, (DI)
	NEXT(16, 64, 32)
