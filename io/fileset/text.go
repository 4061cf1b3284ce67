package fileset

import (
	"strconv"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// Part is the place of a split of a text format: a byte range of a file.
type Part struct {
	File  int // index in Set.Files
	Range blobio.Range
}

// Parts cuts every file into splits of about splitBytes (0: the default). A
// compressed file, or any where whole is set, is one split. Rows are unknown; a row column
// over a file of several splits is an Unsupported error.
func (s *Set) Parts(splitBytes int64, whole bool) ([]driver.Split, []Part, error) {
	var splits []driver.Split
	var parts []Part
	for i := range s.Files {
		f := &s.Files[i]
		rs := []blobio.Range{{Len: f.Info.Size}}
		if !whole && Compression(f.Info.Key) == "" {
			rs = Ranges(f.Info.Size, splitBytes)
		}
		if err := s.CheckRows(i, len(rs)); err != nil {
			return nil, nil, err
		}
		for k, r := range rs {
			splits = append(splits, driver.Split{ID: f.Rel + "#" + strconv.Itoa(k), File: f.Path, Index: int64(k), Rows: -1, Bytes: r.Len})
			parts = append(parts, Part{i, r})
		}
	}
	return splits, parts, nil
}

// CheckBytes refuses scans by byte of a split whose rows have no known place in its
// bytes: offsets is what driver.Offsetter says of it.
func CheckBytes(o *driver.ScanOptions, offsets bool, split *driver.Split) error {
	if offsets || o.FromByte == 0 && !o.Offsets {
		return nil
	}
	return fault.New(fault.Invalid, "the split can only be read from its begin: it is compressed, or its rows are not lines; leave out FromByte and Offsets").
		At(fault.Place{File: split.File, RowGroup: fault.N(split.Index)})
}
