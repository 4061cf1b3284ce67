package kernel

import "encoding/binary"

// ASCII reports whether no byte has its highest bit set: such text is UTF-8, wherever it is cut.
func ASCII(b []byte) bool {
	const high = 0x8080808080808080
	for len(b) >= 64 {
		w := binary.LittleEndian.Uint64(b) | binary.LittleEndian.Uint64(b[8:]) |
			binary.LittleEndian.Uint64(b[16:]) | binary.LittleEndian.Uint64(b[24:]) |
			binary.LittleEndian.Uint64(b[32:]) | binary.LittleEndian.Uint64(b[40:]) |
			binary.LittleEndian.Uint64(b[48:]) | binary.LittleEndian.Uint64(b[56:])
		if w&high != 0 {
			return false
		}
		b = b[64:]
	}
	var w uint64
	for len(b) >= 8 {
		w |= binary.LittleEndian.Uint64(b)
		b = b[8:]
	}
	for _, x := range b {
		w |= uint64(x)
	}
	return w&high == 0
}
