//go:build !purego

#include "textflag.h"

// Z0 to Z15 are 16 vectors of 16 values. After PAIRS and QUADS, 128-bit lane L of Z(4g+j) holds value 4L+j of vectors
// 4g to 4g+3.
#define PAIRS \
	VUNPCKLPS Z1, Z0, Z16 \
	VUNPCKHPS Z1, Z0, Z17 \
	VUNPCKLPS Z3, Z2, Z18 \
	VUNPCKHPS Z3, Z2, Z19 \
	VUNPCKLPS Z5, Z4, Z20 \
	VUNPCKHPS Z5, Z4, Z21 \
	VUNPCKLPS Z7, Z6, Z22 \
	VUNPCKHPS Z7, Z6, Z23 \
	VUNPCKLPS Z9, Z8, Z24 \
	VUNPCKHPS Z9, Z8, Z25 \
	VUNPCKLPS Z11, Z10, Z26 \
	VUNPCKHPS Z11, Z10, Z27 \
	VUNPCKLPS Z13, Z12, Z28 \
	VUNPCKHPS Z13, Z12, Z29 \
	VUNPCKLPS Z15, Z14, Z30 \
	VUNPCKHPS Z15, Z14, Z31

#define QUADS \
	VUNPCKLPD Z18, Z16, Z0 \
	VUNPCKHPD Z18, Z16, Z1 \
	VUNPCKLPD Z19, Z17, Z2 \
	VUNPCKHPD Z19, Z17, Z3 \
	VUNPCKLPD Z22, Z20, Z4 \
	VUNPCKHPD Z22, Z20, Z5 \
	VUNPCKLPD Z23, Z21, Z6 \
	VUNPCKHPD Z23, Z21, Z7 \
	VUNPCKLPD Z26, Z24, Z8 \
	VUNPCKHPD Z26, Z24, Z9 \
	VUNPCKLPD Z27, Z25, Z10 \
	VUNPCKHPD Z27, Z25, Z11 \
	VUNPCKLPD Z30, Z28, Z12 \
	VUNPCKHPD Z30, Z28, Z13 \
	VUNPCKLPD Z31, Z29, Z14 \
	VUNPCKHPD Z31, Z29, Z15

// LANES(a, b, c, d), the Z(4g+j) of one j for g from 0 to 3, leaves in Z20 to Z23 values j, 4+j, 8+j and 12+j of all vectors.
#define LANES(a, b, c, d) \
	VSHUFF32X4 $0x44, b, a, Z16   \
	VSHUFF32X4 $0xee, b, a, Z17   \
	VSHUFF32X4 $0x44, d, c, Z18   \
	VSHUFF32X4 $0xee, d, c, Z19   \
	VSHUFF32X4 $0x88, Z18, Z16, Z20 \
	VSHUFF32X4 $0xdd, Z18, Z16, Z21 \
	VSHUFF32X4 $0x88, Z19, Z17, Z22 \
	VSHUFF32X4 $0xdd, Z19, Z17, Z23

// COLUMN reads the next 16 values of column k.
#define COLUMN(k, z) \
	MOVQ (8*k)(SI), AX       \
	VMOVDQU32 (AX)(BX*1), z

// ROWS writes every fourth row from that at DI on, and moves DI to the one behind it. R9 is the size of a row, R12
// twelve times that.
#define ROWS(a, b, c, d) \
	VMOVDQU32 a, K1, (DI)         \
	VMOVDQU32 b, K1, (DI)(R9*4)   \
	VMOVDQU32 c, K1, (DI)(R9*8)   \
	VMOVDQU32 d, K1, (DI)(R12*1)  \
	ADDQ R9, DI

// func interleave16(dst *byte, size int, srcs *[16]unsafe.Pointer, n, mask int)
TEXT ·interleave16(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ size+8(FP), R9
	MOVQ srcs+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ mask+32(FP), AX
	KMOVW AX, K1
	IMUL3Q $12, R9, R12
	XORQ BX, BX

rows:
	COLUMN(0, Z0)
	COLUMN(1, Z1)
	COLUMN(2, Z2)
	COLUMN(3, Z3)
	COLUMN(4, Z4)
	COLUMN(5, Z5)
	COLUMN(6, Z6)
	COLUMN(7, Z7)
	COLUMN(8, Z8)
	COLUMN(9, Z9)
	COLUMN(10, Z10)
	COLUMN(11, Z11)
	COLUMN(12, Z12)
	COLUMN(13, Z13)
	COLUMN(14, Z14)
	COLUMN(15, Z15)
	PAIRS
	QUADS
	LANES(Z0, Z4, Z8, Z12)
	ROWS(Z20, Z21, Z22, Z23)
	LANES(Z1, Z5, Z9, Z13)
	ROWS(Z20, Z21, Z22, Z23)
	LANES(Z2, Z6, Z10, Z14)
	ROWS(Z20, Z21, Z22, Z23)
	LANES(Z3, Z7, Z11, Z15)
	ROWS(Z20, Z21, Z22, Z23)
	ADDQ R12, DI
	ADDQ $64, BX
	SUBQ $16, CX
	JNZ  rows
	VZEROUPPER
	RET

// FIELDS reads the next row.
#define FIELDS(z) \
	VMOVDQU32.Z (SI), K1, z \
	ADDQ R9, SI

// VALUES writes the next 16 values of column k.
#define VALUES(k, z) \
	MOVQ (8*k)(DI), AX       \
	VMOVDQU32 z, (AX)(BX*1)

// func deinterleave16(dsts *[16]unsafe.Pointer, src *byte, size, n, mask int)
TEXT ·deinterleave16(SB), NOSPLIT, $0-40
	MOVQ dsts+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ size+16(FP), R9
	MOVQ n+24(FP), CX
	MOVQ mask+32(FP), AX
	KMOVW AX, K1
	XORQ BX, BX

rows:
	FIELDS(Z0)
	FIELDS(Z1)
	FIELDS(Z2)
	FIELDS(Z3)
	FIELDS(Z4)
	FIELDS(Z5)
	FIELDS(Z6)
	FIELDS(Z7)
	FIELDS(Z8)
	FIELDS(Z9)
	FIELDS(Z10)
	FIELDS(Z11)
	FIELDS(Z12)
	FIELDS(Z13)
	FIELDS(Z14)
	FIELDS(Z15)
	PAIRS
	QUADS
	LANES(Z0, Z4, Z8, Z12)
	VALUES(0, Z20)
	VALUES(4, Z21)
	VALUES(8, Z22)
	VALUES(12, Z23)
	LANES(Z1, Z5, Z9, Z13)
	VALUES(1, Z20)
	VALUES(5, Z21)
	VALUES(9, Z22)
	VALUES(13, Z23)
	LANES(Z2, Z6, Z10, Z14)
	VALUES(2, Z20)
	VALUES(6, Z21)
	VALUES(10, Z22)
	VALUES(14, Z23)
	LANES(Z3, Z7, Z11, Z15)
	VALUES(3, Z20)
	VALUES(7, Z21)
	VALUES(11, Z22)
	VALUES(15, Z23)
	ADDQ $64, BX
	SUBQ $16, CX
	JNZ  rows
	VZEROUPPER
	RET

// SQUARES(a, b, c, d) transposes the 4 by 4 values in each 128-bit lane of Ya to Yd: what a, b, c and d held first is in Y8,
// second in Y9, and so on.
#define SQUARES(a, b, c, d) \
	VUNPCKLPS b, a, Y12    \
	VUNPCKHPS b, a, Y13    \
	VUNPCKLPS d, c, Y14    \
	VUNPCKHPS d, c, Y15    \
	VUNPCKLPD Y14, Y12, Y8  \
	VUNPCKHPD Y14, Y12, Y9  \
	VUNPCKLPD Y15, Y13, Y10 \
	VUNPCKHPD Y15, Y13, Y11

// ROW8 writes a row of 8 values.
#define ROW8(y) \
	VMOVUPS y, (DI) \
	ADDQ R13, DI

// COLUMNS8 holds the addresses of 8 columns, of which a table is at R14.
#define COLUMNS8 \
	MOVQ (R14), AX    \
	MOVQ 8(R14), DX   \
	MOVQ 16(R14), R8  \
	MOVQ 24(R14), R9  \
	MOVQ 32(R14), R10 \
	MOVQ 40(R14), R11 \
	MOVQ 48(R14), R12 \
	MOVQ 56(R14), R14

// func interleave8(dst *byte, size int, srcs *[8]unsafe.Pointer, n int)
//
// Columns 0 to 3 are the low lanes, 4 to 7 the high ones: a square of both is a row of 8.
TEXT ·interleave8(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ size+8(FP), R13
	MOVQ srcs+16(FP), R14
	MOVQ n+24(FP), CX
	COLUMNS8
	XORQ BX, BX

rows:
	VMOVUPS (AX)(BX*1), X0
	VMOVUPS (DX)(BX*1), X1
	VMOVUPS (R8)(BX*1), X2
	VMOVUPS (R9)(BX*1), X3
	VINSERTF128 $1, (R10)(BX*1), Y0, Y0
	VINSERTF128 $1, (R11)(BX*1), Y1, Y1
	VINSERTF128 $1, (R12)(BX*1), Y2, Y2
	VINSERTF128 $1, (R14)(BX*1), Y3, Y3
	SQUARES(Y0, Y1, Y2, Y3)
	ROW8(Y8)
	ROW8(Y9)
	ROW8(Y10)
	ROW8(Y11)
	ADDQ $16, BX
	SUBQ $4, CX
	JNZ  rows
	VZEROUPPER
	RET

// LOW8 reads a row of 8 values as the low lanes of a and b, HIGH8 the one 4 behind it as the high ones.
#define LOW8(a, b) \
	VMOVUPS (SI), a   \
	VMOVUPS 16(SI), b \
	ADDQ R13, SI

#define HIGH8(a, b) \
	VINSERTF128 $1, (SI), a, a   \
	VINSERTF128 $1, 16(SI), b, b \
	ADDQ R13, SI

// func deinterleave8(dsts *[8]unsafe.Pointer, src *byte, size, n int)
TEXT ·deinterleave8(SB), NOSPLIT, $0-32
	MOVQ dsts+0(FP), R14
	MOVQ src+8(FP), SI
	MOVQ size+16(FP), R13
	MOVQ n+24(FP), CX
	COLUMNS8
	XORQ BX, BX

rows:
	LOW8(X0, X4)
	LOW8(X1, X5)
	LOW8(X2, X6)
	LOW8(X3, X7)
	HIGH8(Y0, Y4)
	HIGH8(Y1, Y5)
	HIGH8(Y2, Y6)
	HIGH8(Y3, Y7)
	SQUARES(Y0, Y1, Y2, Y3)
	VMOVUPS Y8, (AX)(BX*1)
	VMOVUPS Y9, (DX)(BX*1)
	VMOVUPS Y10, (R8)(BX*1)
	VMOVUPS Y11, (R9)(BX*1)
	SQUARES(Y4, Y5, Y6, Y7)
	VMOVUPS Y8, (R10)(BX*1)
	VMOVUPS Y9, (R11)(BX*1)
	VMOVUPS Y10, (R12)(BX*1)
	VMOVUPS Y11, (R14)(BX*1)
	ADDQ $32, BX
	SUBQ $8, CX
	JNZ  rows
	VZEROUPPER
	RET

// func scatterAVX2(dst *byte, places *int32, src *byte, n, size int)
//
// A row is copied 32 bytes at a time, the last 32 overlapping those before. Where row i+16 goes is fetched meanwhile: places has
// 16 more.
TEXT ·scatterAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ places+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ size+32(FP), DX
	LEAQ -32(DX), R11

row:
	MOVLQSX 64(R8), AX
	IMULQ DX, AX
	ADDQ DI, AX
	LEAQ (AX)(DX*1), R10

fetch:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	CMPQ AX, R10
	JB   fetch
	PREFETCHT0 -1(R10)
	MOVLQSX (R8), AX
	IMULQ DX, AX
	ADDQ DI, AX
	XORQ BX, BX
	TESTQ R11, R11
	JZ   last

chunk:
	VMOVDQU (SI)(BX*1), Y0
	VMOVDQU Y0, (AX)(BX*1)
	ADDQ $32, BX
	CMPQ BX, R11
	JB   chunk

last:
	VMOVDQU (SI)(R11*1), Y0
	VMOVDQU Y0, (AX)(R11*1)
	ADDQ $4, R8
	ADDQ DX, SI
	DECQ CX
	JNZ  row
	VZEROUPPER
	RET
