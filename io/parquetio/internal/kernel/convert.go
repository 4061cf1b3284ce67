package kernel

import (
	"encoding/binary"
	"math"
)

// Narrow converts integers: what does not fit loses its high bits, as Parquet keeps
// small and unsigned integers. dst is as long as src.
func Narrow[D int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64, S int32 | int64](dst []D, src []S) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = D(v)
	}
}

// Date64 converts days to milliseconds. dst is as long as days.
func Date64(dst []int64, days []int32) {
	dst = dst[:len(days)]
	for i, v := range days {
		dst[i] = int64(v) * 86_400_000
	}
}

const (
	julianUnixEpoch = 2_440_588
	nanosPerDay     = 86_400_000_000_000
)

// Int96 converts timestamps of 12 bytes, nanoseconds of a day and a Julian day, to units since 1970 of so many nanoseconds: 1,
// 1,000 or 1,000,000. It returns how many there are until one is out of range or has parts of a unit, or src ends.
func Int96(dst []int64, src []byte, unit int64) int {
	perDay := nanosPerDay / unit
	most := math.MaxInt64 / perDay // whole days
	for i := range dst {
		if len(src) < 12 {
			return i
		}
		nanos := binary.LittleEndian.Uint64(src)
		days := int64(binary.LittleEndian.Uint32(src[8:])) - julianUnixEpoch
		if nanos >= nanosPerDay || days < -most-1 || days > most {
			return i
		}
		units := int64(nanos)
		switch unit { // constants divide fast
		case 1_000:
			units = int64(nanos / 1_000)
		case 1_000_000:
			units = int64(nanos / 1_000_000)
		}
		if uint64(units*unit) != nanos {
			return i
		}
		v := days*perDay + units
		if days == most && v < 0 {
			return i
		}
		if days == -most-1 { // the first of these days do not fit
			v = (days+1)*perDay + (units - perDay)
			if v > 0 {
				return i
			}
		}
		dst[i] = v
		src = src[12:]
	}
	return len(dst)
}

// Decimal128Ints widens integers. dst is as long as src.
func Decimal128Ints[S int32 | int64](dst [][2]uint64, src []S) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = [2]uint64{uint64(v), uint64(int64(v) >> 63)}
	}
}

// Decimal256Ints widens integers. dst is as long as src.
func Decimal256Ints[S int32 | int64](dst [][4]uint64, src []S) {
	dst = dst[:len(src)]
	for i, v := range src {
		sign := uint64(int64(v) >> 63)
		dst[i] = [4]uint64{uint64(v), sign, sign, sign}
	}
}

// bigEndian returns the 64 bits that end at byte end of b, a signed number, which
// may begin before or within or behind them.
func bigEndian(b []byte, end int) uint64 {
	if end >= 8 {
		return binary.BigEndian.Uint64(b[end-8:])
	}
	v := uint64(int64(int8(b[0])) >> 63)
	for i := range max(end, 0) {
		v = v<<8 | uint64(b[i])
	}
	return v
}

func decimal128(b []byte) [2]uint64 {
	return [2]uint64{bigEndian(b, len(b)), bigEndian(b, len(b)-8)}
}

func decimal256(b []byte) [4]uint64 {
	n := len(b)
	return [4]uint64{bigEndian(b, n), bigEndian(b, n-8), bigEndian(b, n-16), bigEndian(b, n-24)}
}

// Decimal128Fixed converts signed big-endian numbers of width bytes, 1 to 16.
func Decimal128Fixed(dst [][2]uint64, src []byte, width int) bool {
	if width < 1 || width > 16 || len(dst) > len(src)/width {
		return false
	}
	n := 0
	switch {
	case width == 16:
		for n = range dst {
			b := src[n*16:][:16]
			dst[n] = [2]uint64{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b)}
		}
		return true
	case width <= 8: // whole words, whose last bytes belong to the next value
		for drop := uint(64 - 8*width); n < len(dst) && n*width+8 <= len(src); n++ {
			v := int64(binary.BigEndian.Uint64(src[n*width:])) >> drop
			dst[n] = [2]uint64{uint64(v), uint64(v >> 63)}
		}
	default:
		for drop := uint(128 - 8*width); n < len(dst) && n*width+8 <= len(src); n++ {
			b := src[n*width:][:width]
			high := int64(binary.BigEndian.Uint64(b)) >> drop
			dst[n] = [2]uint64{binary.BigEndian.Uint64(b[width-8:]), uint64(high)}
		}
	}
	for ; n < len(dst); n++ {
		dst[n] = decimal128(src[n*width:][:width])
	}
	return true
}

// Decimal256Fixed converts signed big-endian numbers of width bytes, 1 to 32.
func Decimal256Fixed(dst [][4]uint64, src []byte, width int) bool {
	if width < 1 || width > 32 || len(dst) > len(src)/width {
		return false
	}
	for i := range dst {
		dst[i] = decimal256(src[i*width:][:width])
	}
	return true
}

// Decimal128Bytes converts signed big-endian numbers of 1 to 16 bytes each, which
// offsets, one more than numbers, find in data.
func Decimal128Bytes(dst [][2]uint64, offsets []int32, data []byte) bool {
	for i := range dst {
		b := data[offsets[i]:offsets[i+1]]
		if len(b) < 1 || len(b) > 16 {
			return false
		}
		dst[i] = decimal128(b)
	}
	return true
}

// Decimal256Bytes converts signed big-endian numbers of 1 to 32 bytes each, which
// offsets, one more than numbers, find in data.
func Decimal256Bytes(dst [][4]uint64, offsets []int32, data []byte) bool {
	for i := range dst {
		b := data[offsets[i]:offsets[i+1]]
		if len(b) < 1 || len(b) > 32 {
			return false
		}
		dst[i] = decimal256(b)
	}
	return true
}
