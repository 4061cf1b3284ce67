package kernel

import "unsafe"

// longRun is how many values of a run are worth a call of their own.
const longRun = 256

// Gather reads indexes and looks them up; false if one is outside the dictionary.
func Gather[T Word](h *Hybrid, dst, dict []T) bool {
	var block [blockLen]uint32
	for len(dst) > 0 {
		if h.left == 0 && !h.next() {
			return false
		}
		if !h.packed && h.left >= longRun {
			if uint64(h.value) >= uint64(len(dict)) {
				return h.fail()
			}
			n := min(len(dst), h.left)
			fill(dst[:n], dict[h.value])
			h.step(n)
			dst = dst[n:]
			continue
		}
		idx := block[:min(len(dst), blockLen)]
		if !h.Indexes(idx, len(dict)) {
			return false
		}
		gather(dst, dict, idx)
		dst = dst[len(idx):]
	}
	return true
}

// gather looks up indexes that are known to be in range; dst is as long or longer.
func gather[T any](dst, dict []T, idx []uint32) {
	n := gatherHead(dst, dict, idx)
	dst, idx = dst[n:len(idx)], idx[n:]
	for ; len(idx) >= 4; idx, dst = idx[4:], dst[4:] {
		a, b, c, d := *at(dict, int(idx[0])), *at(dict, int(idx[1])), *at(dict, int(idx[2])), *at(dict, int(idx[3]))
		dst[0], dst[1], dst[2], dst[3] = a, b, c, d
	}
	for i, x := range idx {
		dst[i] = *at(dict, int(x))
	}
}

// GatherBytes reads indexes and looks up values of width bytes each.
func GatherBytes(h *Hybrid, dst, dict []byte, width int) bool {
	if width <= 0 || len(dst)%width != 0 {
		return false
	}
	entries := len(dict) / width
	var block [blockLen]uint32
	for len(dst) > 0 {
		idx := block[:min(len(dst)/width, blockLen)]
		if !h.Indexes(idx, entries) {
			return false
		}
		for i, x := range idx {
			copy(dst[i*width:][:width], dict[int(x)*width:])
		}
		dst = dst[len(idx)*width:]
	}
	return true
}

// StringDict is a dictionary of byte strings.
type StringDict struct {
	Offsets []int32     // where each begins in Data, and where the last ends
	Data    []byte      // with capacity for Slack bytes behind it
	Cells   [][2]uint64 // the strings once more, or nil: see FillCells
}

// cellSize is the length of the longest strings that have cells.
const cellSize = 16

// FillCells copies the strings into cells of 16 bytes, which must be as many, if
// none is longer. Lookups are then faster. False if one is longer.
func (d *StringDict) FillCells(cells [][2]uint64) bool {
	d.Cells = nil
	for i := range d.Offsets[1:] {
		s := d.Data[d.Offsets[i]:d.Offsets[i+1]]
		if len(s) > cellSize {
			return false
		}
		cells[i] = [2]uint64{}
		copy((*[cellSize]byte)(unsafe.Pointer(&cells[i]))[:], s)
	}
	d.Cells = cells
	return true
}

// Size returns how long the strings of these indexes are together. The indexes are
// known to be in range.
func (d *StringDict) Size(idx []uint32) (size int64) {
	for _, x := range idx {
		size += int64(*at(d.Offsets, int(x)+1) - *at(d.Offsets, int(x)))
	}
	return size
}

// StringsAt looks up the strings of indexes that are known to be in range. String i
// goes to dst[offsets[i]:offsets[i+1]]; the caller sets offsets[0]. It may write up
// to Slack bytes behind the last. False if dst is too short.
func StringsAt[O int32 | int64](d *StringDict, offsets []O, dst []byte, idx []uint32) bool {
	if len(offsets) != len(idx)+1 {
		return false
	}
	dst = dst[:room[O](dst)]
	pos := int(offsets[0])
	if pos < 0 || pos > len(dst) {
		return false
	}
	offsets = offsets[1:]
	for len(idx) > 0 {
		n := min(len(idx), cellBlock)
		if d.Cells == nil || pos+cellBlock*cellSize > len(dst) {
			if d.Cells != nil {
				n = min(n, 4) // then look again
			}
			if pos = copyStrings(d, offsets, dst, pos, idx[:n]); pos < 0 {
				return false
			}
		} else {
			pos = copyCells(d, offsets, dst, pos, idx[:n])
		}
		offsets, idx = offsets[n:], idx[n:]
	}
	return true
}

// cellBlock is how many cells are copied without a look at the room that is left.
const cellBlock = 64

// copyCells writes the cells of up to cellBlock indexes, for which there is room, from
// pos on, and returns where the last value ends.
func copyCells[O int32 | int64](d *StringDict, offsets []O, dst []byte, pos int, idx []uint32) int {
	to, cells, begins := unsafe.Pointer(unsafe.SliceData(dst)), d.Cells, d.Offsets
	offsets = offsets[:len(idx)]
	for i, x := range idx {
		*(*[2]uint64)(unsafe.Add(to, pos)) = *at(cells, int(x))
		ends := (*[2]uint32)(unsafe.Pointer(at(begins, int(x))))
		pos += int(ends[1] - ends[0])
		offsets[i] = O(pos)
	}
	return pos
}

// copyStrings writes the values of indexes from pos on, and returns where the last
// ends; -1 if there is no room.
func copyStrings[O int32 | int64](d *StringDict, offsets []O, dst []byte, pos int, idx []uint32) int {
	data, begins := d.Data[:cap(d.Data)], d.Offsets
	offsets = offsets[:len(idx)]
	for i, x := range idx {
		ends := (*[2]uint32)(unsafe.Pointer(at(begins, int(x))))
		from, k := int(ends[0]), int(ends[1]-ends[0])
		if k <= 32 && from+32 <= len(data) && pos+32 <= len(dst) {
			copy32(unsafe.Pointer(at(dst, pos)), unsafe.Pointer(at(data, from)))
		} else {
			if k > len(dst)-pos {
				return -1
			}
			copy(dst[pos:pos+k], data[from:])
		}
		pos += k
		offsets[i] = O(pos)
	}
	return pos
}
