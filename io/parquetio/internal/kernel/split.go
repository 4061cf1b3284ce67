package kernel

import "encoding/binary"

// ByteStreamSplit reads values of width bytes each, from value from on, of a page of
// total values, which holds the first bytes of all, then the second bytes, and so on.
func ByteStreamSplit(dst, src []byte, width, total, from int) bool {
	if width <= 0 || total < 0 || total > len(src)/width || len(dst)%width != 0 {
		return false
	}
	n := len(dst) / width
	if from < 0 || n > total-from {
		return false
	}
	if n == 0 {
		return true
	}
	src = src[from : (width-1)*total+from+n]
	done := zipHead(dst, src, width, total)
	dst, src = dst[done*width:], src[min(done, len(src)):]
	n -= done
	switch width {
	case 2:
		split2(dst, src, total)
	case 4:
		split4(dst, src, total)
	case 8:
		split8(dst, src, total)
	default:
		b := 0
		for ; b+4 <= width; b += 4 { // four bytes at a time
			s0, s1, s2, s3 := src[b*total:][:n], src[(b+1)*total:][:n], src[(b+2)*total:][:n], src[(b+3)*total:][:n]
			to := dst[b:]
			for i, c := range s0 {
				binary.LittleEndian.PutUint32(to[i*width:], uint32(c)|uint32(s1[i])<<8|uint32(s2[i])<<16|uint32(s3[i])<<24)
			}
		}
		for ; b < width; b++ {
			to := b
			for _, c := range src[b*total:][:n] {
				dst[to] = c
				to += width
			}
		}
	}
	return true
}

func split2(dst, src []byte, stride int) {
	d := Cast[uint16](dst)
	a, b := src[:len(d)], src[stride:][:len(d)]
	for i := range d {
		d[i] = uint16(a[i]) | uint16(b[i])<<8
	}
}

func split4(dst, src []byte, stride int) {
	d := Cast[uint32](dst)
	a, b, c, e := src[:len(d)], src[stride:][:len(d)], src[2*stride:][:len(d)], src[3*stride:][:len(d)]
	for i := range d {
		d[i] = uint32(a[i]) | uint32(b[i])<<8 | uint32(c[i])<<16 | uint32(e[i])<<24
	}
}

func split8(dst, src []byte, stride int) {
	d := Cast[uint64](dst)
	n := len(d)
	s0, s1, s2, s3 := src[:n], src[stride:][:n], src[2*stride:][:n], src[3*stride:][:n]
	s4, s5, s6, s7 := src[4*stride:][:n], src[5*stride:][:n], src[6*stride:][:n], src[7*stride:][:n]
	for i := range d {
		lo := uint32(s0[i]) | uint32(s1[i])<<8 | uint32(s2[i])<<16 | uint32(s3[i])<<24
		hi := uint32(s4[i]) | uint32(s5[i])<<8 | uint32(s6[i])<<16 | uint32(s7[i])<<24
		d[i] = uint64(lo) | uint64(hi)<<32
	}
}
