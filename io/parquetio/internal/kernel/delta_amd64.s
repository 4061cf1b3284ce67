//go:build !purego

#include "textflag.h"

DATA iota32<>+0(SB)/8, $0x0000000100000000
DATA iota32<>+8(SB)/8, $0x0000000300000002
DATA iota32<>+16(SB)/8, $0x0000000500000004
DATA iota32<>+24(SB)/8, $0x0000000700000006
DATA iota32<>+32(SB)/8, $0x0000000900000008
DATA iota32<>+40(SB)/8, $0x0000000b0000000a
DATA iota32<>+48(SB)/8, $0x0000000d0000000c
DATA iota32<>+56(SB)/8, $0x0000000f0000000e
GLOBL iota32<>(SB), RODATA|NOPTR, $64

// func deltas32(dst *uint32, src *byte, n int, width uint, least, last uint32) uint32
//
// 16 values lie in 64 bytes: Z10 moves the bytes of each into its lane, Z11 shifts
// them to its begin, Z12 masks it. Then sums over 1, 2, 4, 8 lanes give all sums.
TEXT ·deltas32(SB), NOSPLIT, $0-44
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         n+16(FP), BX
	MOVQ         width+24(FP), CX
	MOVL         least+32(FP), AX
	MOVL         last+36(FP), DX
	VPBROADCASTD AX, Z13
	VPBROADCASTD DX, Z14
	VPBROADCASTD CX, Z0
	VPMULLD      iota32<>(SB), Z0, Z1  // where the bits of each begin
	VPSRLD       $3, Z1, Z10
	MOVL         $0x01010101, AX
	VPBROADCASTD AX, Z2
	VPMULLD      Z2, Z10, Z10
	MOVL         $0x03020100, AX
	VPBROADCASTD AX, Z2
	VPADDD       Z2, Z10, Z10
	MOVL         $7, AX
	VPBROADCASTD AX, Z2
	VPANDD       Z2, Z1, Z11
	MOVL         $1, AX
	SHLL         CX, AX
	DECL         AX
	VPBROADCASTD AX, Z12
	MOVL         $15, AX
	VPBROADCASTD AX, Z15               // the last lane
	VPXORD       Z16, Z16, Z16
	ADDQ         CX, CX                // bytes of 16 values

loop:
	VPERMB  (SI), Z10, Z0
	VPSRLVD Z11, Z0, Z0
	VPANDD  Z12, Z0, Z0
	VPADDD  Z13, Z0, Z0
	VALIGND $15, Z16, Z0, Z1
	VPADDD  Z1, Z0, Z0
	VALIGND $14, Z16, Z0, Z1
	VPADDD  Z1, Z0, Z0
	VALIGND $12, Z16, Z0, Z1
	VPADDD  Z1, Z0, Z0
	VALIGND $8, Z16, Z0, Z1
	VPADDD  Z1, Z0, Z0
	VPADDD  Z14, Z0, Z1
	VMOVDQU32 Z1, (DI)
	VPERMD  Z0, Z15, Z2                // off the path from sum to sum
	VPADDD  Z2, Z14, Z14
	ADDQ    CX, SI
	ADDQ    $64, DI
	SUBQ    $16, BX
	JNZ     loop
	VMOVD   X14, AX
	MOVL    AX, ret+40(FP)
	VZEROUPPER
	RET

// func deltas64(dst *uint64, src *byte, n int, width uint, least, last uint64) uint64
TEXT ·deltas64(SB), NOSPLIT, $0-56
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         n+16(FP), BX
	MOVQ         width+24(FP), CX
	MOVQ         least+32(FP), AX
	MOVQ         last+40(FP), DX
	VPBROADCASTQ AX, Z13
	VPBROADCASTQ DX, Z14
	VPBROADCASTQ CX, Z0
	VPMOVZXDQ    iota32<>(SB), Z1
	VPMULUDQ     Z0, Z1, Z1
	VPSRLQ       $3, Z1, Z10
	MOVQ         $0x0101010101010101, AX
	VPBROADCASTQ AX, Z2
	VPMULLQ      Z2, Z10, Z10
	MOVQ         $0x0706050403020100, AX
	VPBROADCASTQ AX, Z2
	VPADDQ       Z2, Z10, Z10
	MOVQ         $7, AX
	VPBROADCASTQ AX, Z15               // the last lane
	VPANDQ       Z15, Z1, Z11
	MOVQ         $1, AX
	SHLQ         CX, AX
	DECQ         AX
	VPBROADCASTQ AX, Z12
	VPXORQ       Z16, Z16, Z16

loop:
	VPERMB  (SI), Z10, Z0
	VPSRLVQ Z11, Z0, Z0
	VPANDQ  Z12, Z0, Z0
	VPADDQ  Z13, Z0, Z0
	VALIGNQ $7, Z16, Z0, Z1
	VPADDQ  Z1, Z0, Z0
	VALIGNQ $6, Z16, Z0, Z1
	VPADDQ  Z1, Z0, Z0
	VALIGNQ $4, Z16, Z0, Z1
	VPADDQ  Z1, Z0, Z0
	VPADDQ  Z14, Z0, Z1
	VMOVDQU64 Z1, (DI)
	VPERMQ  Z0, Z15, Z2
	VPADDQ  Z2, Z14, Z14
	ADDQ    CX, SI
	ADDQ    $64, DI
	SUBQ    $8, BX
	JNZ     loop
	VMOVQ   X14, AX
	MOVQ    AX, ret+48(FP)
	VZEROUPPER
	RET
