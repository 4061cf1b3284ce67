//go:build !purego

#include "textflag.h"

// func copyRowsAVX2(dst *byte, from *unsafe.Pointer, n, width, ahead, fetch int)
//
// A row is copied 32 bytes at a time, the last 32 overlapping those before; rows shorter than that in two halves of 16.
TEXT ·copyRowsAVX2(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ width+24(FP), DX
	MOVQ ahead+32(FP), R8
	MOVQ fetch+40(FP), R9
	TESTQ CX, CX
	JZ   done
	CMPQ DX, $32
	JB   short
	LEAQ -32(DX), R11

row:
	MOVQ (SI)(R8*8), AX
	LEAQ (AX)(R9*1), R10

fetch:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	CMPQ AX, R10
	JB   fetch
	PREFETCHT0 -1(R10)
	MOVQ (SI), AX
	XORQ BX, BX
	TESTQ R11, R11
	JZ   last

chunk:
	VMOVDQU (AX)(BX*1), Y0
	VMOVDQU Y0, (DI)(BX*1)
	ADDQ $32, BX
	CMPQ BX, R11
	JB   chunk

last:
	VMOVDQU (AX)(R11*1), Y0
	VMOVDQU Y0, (DI)(R11*1)
	ADDQ $8, SI
	ADDQ DX, DI
	DECQ CX
	JNZ  row
	VZEROUPPER
	RET

short:
	MOVQ (SI)(R8*8), AX
	PREFETCHT0 (AX)
	PREFETCHT0 -1(AX)(DX*1)
	MOVQ (SI), AX
	MOVOU (AX), X0
	MOVOU -16(AX)(DX*1), X1
	MOVOU X0, (DI)
	MOVOU X1, -16(DI)(DX*1)
	ADDQ $8, SI
	ADDQ DX, DI
	DECQ CX
	JNZ  short

done:
	RET
