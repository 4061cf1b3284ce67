//go:build !purego

#include "textflag.h"

// func expand32(dst, dense *uint32, have int, masks *uint64, words int)
TEXT ·expand32(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ dense+8(FP), SI
	MOVQ have+16(FP), R8
	MOVQ masks+24(FP), BX
	MOVQ words+32(FP), CX
	LEAQ (SI)(R8*4), R8
	SUBQ $256, R8             // whole loads up to here

word:
	MOVQ (BX), AX
	ADDQ $8, BX
	CMPQ SI, R8
	JGT  careful

#define EXPAND32(OFF) \
	KMOVW     AX, K1 \
	MOVWLZX   AX, DX \
	POPCNTL   DX, DX \
	VMOVDQU32 (SI), Z0 \
	VPEXPANDD.Z Z0, K1, Z1 \
	VMOVDQU32 Z1, OFF(DI) \
	LEAQ      (SI)(DX*4), SI \
	SHRQ      $16, AX

	EXPAND32(0)
	EXPAND32(64)
	EXPAND32(128)
	EXPAND32(192)
	ADDQ $256, DI
	DECQ CX
	JNZ  word
	VZEROUPPER
	RET

careful:
	MOVQ $4, R9

part:
	KMOVW       AX, K1
	MOVWLZX     AX, DX
	POPCNTL     DX, DX
	VPEXPANDD.Z (SI), K1, Z1
	VMOVDQU32   Z1, (DI)
	LEAQ        (SI)(DX*4), SI
	SHRQ        $16, AX
	ADDQ        $64, DI
	DECQ        R9
	JNZ         part
	DECQ        CX
	JNZ         word
	VZEROUPPER
	RET

// func expand64(dst, dense *uint64, have int, masks *uint64, words int)
TEXT ·expand64(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ dense+8(FP), SI
	MOVQ have+16(FP), R8
	MOVQ masks+24(FP), BX
	MOVQ words+32(FP), CX
	LEAQ (SI)(R8*8), R8
	SUBQ $512, R8

word:
	MOVQ (BX), AX
	ADDQ $8, BX
	CMPQ SI, R8
	JGT  careful

#define EXPAND64(OFF) \
	KMOVB     AX, K1 \
	MOVBLZX   AX, DX \
	POPCNTL   DX, DX \
	VMOVDQU64 (SI), Z0 \
	VPEXPANDQ.Z Z0, K1, Z1 \
	VMOVDQU64 Z1, OFF(DI) \
	LEAQ      (SI)(DX*8), SI \
	SHRQ      $8, AX

	EXPAND64(0)
	EXPAND64(64)
	EXPAND64(128)
	EXPAND64(192)
	EXPAND64(256)
	EXPAND64(320)
	EXPAND64(384)
	EXPAND64(448)
	ADDQ $512, DI
	DECQ CX
	JNZ  word
	VZEROUPPER
	RET

careful:
	MOVQ $8, R9

part:
	KMOVB       AX, K1
	MOVBLZX     AX, DX
	POPCNTL     DX, DX
	VPEXPANDQ.Z (SI), K1, Z1
	VMOVDQU64   Z1, (DI)
	LEAQ        (SI)(DX*8), SI
	SHRQ        $8, AX
	ADDQ        $64, DI
	DECQ        R9
	JNZ         part
	DECQ        CX
	JNZ         word
	VZEROUPPER
	RET

// func expand8(dst, dense *uint8, masks *uint64, words int)
TEXT ·expand8(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ dense+8(FP), SI
	MOVQ masks+16(FP), BX
	MOVQ words+24(FP), CX

word:
	MOVQ        (BX), AX
	KMOVQ       AX, K1
	POPCNTQ     AX, AX
	VPEXPANDB.Z (SI), K1, Z0
	VMOVDQU8    Z0, (DI)
	ADDQ        AX, SI
	ADDQ        $8, BX
	ADDQ        $64, DI
	DECQ        CX
	JNZ         word
	VZEROUPPER
	RET

// func expand16(dst, dense *uint16, masks *uint64, words int)
TEXT ·expand16(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ dense+8(FP), SI
	MOVQ masks+16(FP), BX
	MOVQ words+24(FP), CX
	ADDQ CX, CX

half:
	MOVL        (BX), AX
	KMOVD       AX, K1
	POPCNTL     AX, AX
	VPEXPANDW.Z (SI), K1, Z0
	VMOVDQU16   Z0, (DI)
	LEAQ        (SI)(AX*2), SI
	ADDQ        $4, BX
	ADDQ        $64, DI
	DECQ        CX
	JNZ         half
	VZEROUPPER
	RET

// func offsets32(dst, dense *int32, ranks *[256][8]uint8, masks *uint64, words int)
TEXT ·offsets32(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ dense+8(FP), SI
	MOVQ ranks+16(FP), R8
	MOVQ masks+24(FP), BX
	MOVQ words+32(FP), CX
	SHLQ $3, CX

rows:
	MOVBLZX   (BX), AX
	VPMOVZXBD (R8)(AX*8), Y1
	VMOVDQU32 (SI), Z0
	VPERMD    Z0, Z1, Z0
	VMOVDQU32 Y0, (DI)
	POPCNTL   AX, AX
	LEAQ      (SI)(AX*4), SI
	INCQ      BX
	ADDQ      $32, DI
	DECQ      CX
	JNZ       rows
	VZEROUPPER
	RET

// func gather32(dst, dict *uint32, idx *uint32, n int)
TEXT ·gather32(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ dict+8(FP), SI
	MOVQ idx+16(FP), BX
	MOVQ n+24(FP), CX

loop:
#define GATHER32(OFF) \
	MOVQ OFF(BX), AX \
	MOVL AX, DX \
	SHRQ $32, AX \
	MOVL (SI)(DX*4), DX \
	MOVL (SI)(AX*4), AX \
	MOVL DX, OFF(DI) \
	MOVL AX, (OFF+4)(DI)

	GATHER32(0)
	GATHER32(8)
	GATHER32(16)
	GATHER32(24)
	ADDQ $32, BX
	ADDQ $32, DI
	SUBQ $8, CX
	JNZ  loop
	RET

// func gather64(dst, dict *uint64, idx *uint32, n int)
TEXT ·gather64(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ dict+8(FP), SI
	MOVQ idx+16(FP), BX
	MOVQ n+24(FP), CX

loop:
#define GATHER64(OFF) \
	MOVQ OFF(BX), AX \
	MOVL AX, DX \
	SHRQ $32, AX \
	MOVQ (SI)(DX*8), DX \
	MOVQ (SI)(AX*8), AX \
	MOVQ DX, (2*OFF)(DI) \
	MOVQ AX, (2*OFF+8)(DI)

	GATHER64(0)
	GATHER64(8)
	GATHER64(16)
	GATHER64(24)
	ADDQ $32, BX
	ADDQ $64, DI
	SUBQ $8, CX
	JNZ  loop
	RET

// func gather128(dst, dict *[2]uint64, idx *uint32, n int)
TEXT ·gather128(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ dict+8(FP), SI
	MOVQ idx+16(FP), BX
	MOVQ n+24(FP), CX

loop:
#define GATHER128(OFF) \
	MOVQ OFF(BX), AX \
	MOVL AX, DX \
	SHRQ $32, AX \
	SHLQ $4, DX \
	SHLQ $4, AX \
	MOVOU (SI)(DX*1), X0 \
	MOVOU (SI)(AX*1), X1 \
	MOVOU X0, (4*OFF)(DI) \
	MOVOU X1, (4*OFF+16)(DI)

	GATHER128(0)
	GATHER128(8)
	GATHER128(16)
	GATHER128(24)
	ADDQ $32, BX
	ADDQ $128, DI
	SUBQ $8, CX
	JNZ  loop
	RET

// func look32(dst *uint32, dict *[32]uint32, idx *uint32, n int)
TEXT ·look32(SB), NOSPLIT, $0-32
	MOVQ      dst+0(FP), DI
	MOVQ      dict+8(FP), SI
	MOVQ      idx+16(FP), BX
	MOVQ      n+24(FP), CX
	VMOVDQU32 (SI), Z0
	VMOVDQU32 64(SI), Z1

loop:
	VMOVDQU32 (BX), Z2
	VPERMI2D  Z1, Z0, Z2
	VMOVDQU32 Z2, (DI)
	ADDQ      $64, BX
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func look64(dst *uint64, dict *[16]uint64, idx *uint32, n int)
TEXT ·look64(SB), NOSPLIT, $0-32
	MOVQ      dst+0(FP), DI
	MOVQ      dict+8(FP), SI
	MOVQ      idx+16(FP), BX
	MOVQ      n+24(FP), CX
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1

loop:
	VPMOVZXDQ (BX), Z2
	VPERMI2Q  Z1, Z0, Z2
	VMOVDQU64 Z2, (DI)
	ADDQ      $32, BX
	ADDQ      $64, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET

// func max32(v *uint32, n int) uint32
TEXT ·max32(SB), NOSPLIT, $0-20
	MOVQ  v+0(FP), SI
	MOVQ  n+8(FP), CX
	VPXORQ Z0, Z0, Z0
	VPXORQ Z1, Z1, Z1

loop:
	VPMAXUD (SI), Z0, Z0
	VPMAXUD 64(SI), Z1, Z1
	ADDQ    $128, SI
	SUBQ    $32, CX
	JNZ     loop
	VPMAXUD Z1, Z0, Z0
	VEXTRACTI64X4 $1, Z0, Y1
	VPMAXUD Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD X1, X0, X0
	VPSRLDQ $8, X0, X1
	VPMAXUD X1, X0, X0
	VPSRLDQ $4, X0, X1
	VPMAXUD X1, X0, X0
	VMOVD   X0, AX
	MOVL    AX, ret+16(FP)
	VZEROUPPER
	RET

// func zip4(dst, src *byte, stride, n int)
TEXT ·zip4(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ n+24(FP), CX
	LEAQ (SI)(DX*2), BX
	XORQ AX, AX

#define ZIP4(A, B, T0, T1, T2, T3) \
	VPMOVZXBD  (A)(AX*1), T0 \
	VPMOVZXBD  (A)(DX*1), T1 \
	VPMOVZXBD  (B)(AX*1), T2 \
	VPMOVZXBD  (B)(DX*1), T3 \
	VPSLLD     $8, T1, T1 \
	VPSLLD     $16, T2, T2 \
	VPSLLD     $24, T3, T3 \
	VPORD      T1, T0, T0 \
	VPTERNLOGD $0xfe, T3, T2, T0

loop:
	ZIP4(SI, BX, Z0, Z1, Z2, Z3)
	VMOVDQU32 Z0, (DI)
	ADDQ $16, SI
	ADDQ $16, BX
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ  loop
	VZEROUPPER
	RET

// func zip8(dst, src *byte, stride, n int)
TEXT ·zip8(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ n+24(FP), CX
	LEAQ (SI)(DX*2), BX
	LEAQ (BX)(DX*2), R8
	LEAQ (R8)(DX*2), R9
	XORQ AX, AX

loop:
	ZIP4(SI, BX, Z0, Z1, Z2, Z3)
	ZIP4(R8, R9, Z4, Z5, Z6, Z7)
	VPMOVZXDQ     Y0, Z1
	VPMOVZXDQ     Y4, Z2
	VEXTRACTI64X4 $1, Z0, Y3
	VEXTRACTI64X4 $1, Z4, Y5
	VPMOVZXDQ     Y3, Z3
	VPMOVZXDQ     Y5, Z5
	VPSLLQ        $32, Z2, Z2
	VPSLLQ        $32, Z5, Z5
	VPORQ         Z2, Z1, Z1
	VPORQ         Z5, Z3, Z3
	VMOVDQU64     Z1, (DI)
	VMOVDQU64     Z3, 64(DI)
	ADDQ $16, SI
	ADDQ $16, BX
	ADDQ $16, R8
	ADDQ $16, R9
	ADDQ $128, DI
	SUBQ $16, CX
	JNZ  loop
	VZEROUPPER
	RET

// func unpack8(dst, src *byte, n int, width uint)
TEXT ·unpack8(SB), NOSPLIT, $0-32
	MOVQ  dst+0(FP), DI
	MOVQ  src+8(FP), SI
	MOVQ  n+16(FP), BX
	MOVQ  width+24(FP), CX
	MOVQ  $1, AX
	SHLQ  CX, AX
	DECQ  AX
	MOVQ  $0x0101010101010101, DX
	IMULQ AX, DX                   // where the bits of each value go

loop:
	MOVQ  (SI), AX
	PDEPQ DX, AX, AX
	MOVQ  AX, (DI)
	ADDQ  CX, SI
	ADDQ  $8, DI
	SUBQ  $8, BX
	JNZ   loop
	RET

// func atLeast8(masks *uint64, levels *uint8, words int, least uint8)
TEXT ·atLeast8(SB), NOSPLIT, $0-25
	MOVQ         masks+0(FP), DI
	MOVQ         levels+8(FP), SI
	MOVQ         words+16(FP), CX
	MOVBLZX      least+24(FP), AX
	VPBROADCASTB AX, Z0

loop:
	VMOVDQU8 (SI), Z1
	VPCMPUB  $5, Z0, Z1, K1 // not less
	KMOVQ    K1, (DI)
	ADDQ     $64, SI
	ADDQ     $8, DI
	DECQ     CX
	JNZ      loop
	VZEROUPPER
	RET
