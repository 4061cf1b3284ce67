package kernel

// The functions here spread dense values over rows, those whose bit of valid, from
// bit at on, is set. They say false if dense holds fewer values than bits are set.
// dense may be the tail of dst: then they work in place.

// Expand fills dst: rows that are not valid become zero.
func Expand[T Word](dst, dense []T, valid []byte, at int) bool {
	set := CountBits(valid, at, len(dst))
	if set > len(dense) {
		return false
	}
	expand(dst, dense[:set], valid, at)
	return true
}

// expand is Expand where dense holds exactly the values needed.
func expand[T any](dst, dense []T, valid []byte, at int) {
	rows, used := expandHead(dst, dense, valid, at)
	dst, dense, at = dst[rows:], dense[used:], at+rows
	var zero T
	for len(dst) > 0 {
		n := min(len(dst), 64)
		switch m := word(valid, at) & ones(n); {
		case m == 0:
			clear(dst[:n])
		case m == ^uint64(0):
			copy(dst[:n], dense)
			dense = dense[n:]
		default: // without a branch for each row
			k, last := 0, len(dense)-1
			for i := range dst[:n] {
				v := dense[min(k, last)]
				if m&1 == 0 {
					v = zero
				}
				dst[i] = v
				k += int(m & 1)
				m >>= 1
			}
			dense = dense[k:]
		}
		dst, at = dst[n:], at+n
	}
}

// ExpandBytes fills dst with values of width bytes each: rows that are not valid
// become zero.
func ExpandBytes(dst, dense []byte, width int, valid []byte, at int) bool {
	if width <= 0 || len(dst)%width != 0 || CountBits(valid, at, len(dst)/width) > len(dense)/width {
		return false
	}
	for len(dst) > 0 {
		n := min(len(dst)/width, 64)
		for m := word(valid, at); n > 0; n, m = n-1, m>>1 {
			if m&1 != 0 {
				copy(dst[:width], dense)
				dense = dense[width:]
			} else {
				clear(dst[:width])
			}
			dst = dst[width:]
			at++
		}
	}
	return true
}

// ExpandOffsets fills dst, the offsets of one row less: rows that are not valid
// become empty. dense has an offset more than values.
func ExpandOffsets[O int32 | int64](dst, dense []O, valid []byte, at int) bool {
	if len(dst) == 0 || CountBits(valid, at, len(dst)-1) > len(dense)-1 {
		return false
	}
	dst[0] = dense[0]
	rows, k := offsetsHead(dst, dense, valid, at)
	dst, at = dst[rows+1:], at+rows
	for len(dst) > 0 {
		n := min(len(dst), 64)
		m := word(valid, at)
		for i := range dst[:n] {
			k += int(m & 1)
			dst[i] = dense[k]
			m >>= 1
		}
		dst, at = dst[n:], at+n
	}
	return true
}
