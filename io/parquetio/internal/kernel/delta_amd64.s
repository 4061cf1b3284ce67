//go:build !purego

#include "textflag.h"

// In both, unpacking takes three instructions: the bytes of every value move into its
// lane (Z10), are shifted to its begin (Z11), and masked (Z12). Sums over 1, 2, 4 and
// 8 lanes then give all sums.

// func deltas32(dst *uint32, src *byte, n, step int, l *lanes, least, last uint32) uint32
TEXT ·deltas32(SB), NOSPLIT, $0-52
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         n+16(FP), BX
	MOVQ         step+24(FP), CX
	MOVQ         l+32(FP), R8
	MOVL         least+40(FP), AX
	MOVL         last+44(FP), DX
	VMOVDQU32    (R8), Z10
	VMOVDQU32    64(R8), Z11
	VMOVDQU32    128(R8), Z12
	VPBROADCASTD AX, Z13
	VPBROADCASTD DX, Z14
	MOVL         $15, AX
	VPBROADCASTD AX, Z15 // the last lane
	VPXORD       Z16, Z16, Z16

loop:
	VPERMB    (SI), Z10, Z0
	VPSRLVD   Z11, Z0, Z0
	VPANDD    Z12, Z0, Z0
	VPADDD    Z13, Z0, Z0
	VALIGND   $15, Z16, Z0, Z1
	VPADDD    Z1, Z0, Z0
	VALIGND   $14, Z16, Z0, Z1
	VPADDD    Z1, Z0, Z0
	VALIGND   $12, Z16, Z0, Z1
	VPADDD    Z1, Z0, Z0
	VALIGND   $8, Z16, Z0, Z1
	VPADDD    Z1, Z0, Z0
	VPADDD    Z14, Z0, Z1
	VMOVDQU32 Z1, (DI)
	VPERMD    Z0, Z15, Z2  // off the path from sum to sum
	VPADDD    Z2, Z14, Z14
	ADDQ      CX, SI
	ADDQ      $64, DI
	SUBQ      $16, BX
	JNZ       loop
	VMOVD     X14, AX
	MOVL      AX, ret+48(FP)
	VZEROUPPER
	RET

// func deltas64(dst *uint64, src *byte, n, step int, l *lanes, least, last uint64) uint64
TEXT ·deltas64(SB), NOSPLIT, $0-64
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         n+16(FP), BX
	MOVQ         step+24(FP), CX
	MOVQ         l+32(FP), R8
	MOVQ         least+40(FP), AX
	MOVQ         last+48(FP), DX
	VMOVDQU64    (R8), Z10
	VMOVDQU64    64(R8), Z11
	VMOVDQU64    128(R8), Z12
	VPBROADCASTQ AX, Z13
	VPBROADCASTQ DX, Z14
	MOVL         $7, AX
	VPBROADCASTQ AX, Z15 // the last lane
	VPXORQ       Z16, Z16, Z16

loop:
	VPERMB    (SI), Z10, Z0
	VPSRLVQ   Z11, Z0, Z0
	VPANDQ    Z12, Z0, Z0
	VPADDQ    Z13, Z0, Z0
	VALIGNQ   $7, Z16, Z0, Z1
	VPADDQ    Z1, Z0, Z0
	VALIGNQ   $6, Z16, Z0, Z1
	VPADDQ    Z1, Z0, Z0
	VALIGNQ   $4, Z16, Z0, Z1
	VPADDQ    Z1, Z0, Z0
	VPADDQ    Z14, Z0, Z1
	VMOVDQU64 Z1, (DI)
	VPERMQ    Z0, Z15, Z2
	VPADDQ    Z2, Z14, Z14
	ADDQ      CX, SI
	ADDQ      $64, DI
	SUBQ      $8, BX
	JNZ       loop
	VMOVQ     X14, AX
	MOVQ      AX, ret+56(FP)
	VZEROUPPER
	RET
