package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/dataset"
)

// scanner reads a whole file once and returns the rows that arrived.
type scanner func(path string) (rows int64, err error)

// scanServer answers a file per line with the cost of a pass, as py/scan.py does.
//
//	scan ours|pqarrow|limit CORES
func scanServer(args []string) error {
	cores, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(cores)
	var scan scanner
	switch args[0] {
	case "ours":
		scan = func(path string) (rows int64, err error) {
			for rec, err := range dataset.ReadParquet(path).Records(context.Background(), &dataset.RunOptions{CPUs: cores}) {
				if err != nil {
					return 0, err
				}
				rows += rec.NumRows()
			}
			return rows, nil
		}
	case "pqarrow":
		scan = func(path string) (int64, error) { return scanStock(path, cores) }
	case "limit":
		l := &limit{copied: map[string]int64{}}
		scan = l.scan
	default:
		return fmt.Errorf("no scanner %q", args[0])
	}
	fmt.Println("@start")
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != ""; {
		f, err := passes(scan, in.Text())
		if err != nil {
			fmt.Printf("@fail %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		b, err := json.Marshal(f)
		if err != nil {
			return err
		}
		fmt.Printf("@end %s\n", b)
	}
	return nil
}

// passes measures scan over at least 0.3 s, after a pass that does not count.
func passes(scan scanner, path string) (figures, error) {
	if _, err := scan(path); err != nil {
		return nil, err
	}
	start, cpu := time.Now(), cpuSeconds()
	n, rows := 0, int64(0)
	for n == 0 || n < 12 && time.Since(start) < 300*time.Millisecond {
		var err error
		if rows, err = scan(path); err != nil {
			return nil, err
		}
		n++
	}
	return figures{"rows": float64(rows), "wall": time.Since(start).Seconds() / float64(n), "cpu": (cpuSeconds() - cpu) / float64(n), "passes": float64(n)}, nil
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return seconds(u.Utime) + seconds(u.Stime)
}

// scanStock is arrow-go's own reader as its documentation shows it.
func scanStock(path string, cores int) (int64, error) {
	f, err := file.OpenParquetFile(path, true)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{BatchSize: 64 << 10, Parallel: cores > 1}, memory.DefaultAllocator)
	if err != nil {
		return 0, err
	}
	rr, err := r.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		return 0, err
	}
	defer rr.Release()
	rows := int64(0)
	for rr.Next() {
		rows += rr.RecordBatch().NumRows()
	}
	if err := rr.Err(); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return rows, nil
}

// limit is what no reader that hands out its own memory can beat: every page decompressed (or copied,
// where it is not compressed) into one scratch, and as many bytes copied as the file's columns take in
// Arrow form, from the cache to a ring of 64 MiB.
type limit struct {
	copied  map[string]int64 // Arrow bytes by file
	scratch []byte
	from    []byte
	to      []byte
	zstd    *zstd.Decoder
}

func (l *limit) scan(path string) (int64, error) {
	if l.from == nil {
		var err error
		if l.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.IgnoreChecksum(true)); err != nil {
			return 0, err
		}
		l.from, l.to = make([]byte, 512<<10), make([]byte, 64<<20)
	}
	size, ok := l.copied[path]
	if !ok {
		var err error
		if size, err = arrowBytes(path); err != nil {
			return 0, err
		}
		l.copied[path] = size
	}
	f, err := file.OpenParquetFile(path, true)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data, unmap, err := mapFile(path)
	if err != nil {
		return 0, err
	}
	defer unmap()
	meta := f.MetaData()
	for g := range f.NumRowGroups() {
		rg := meta.RowGroup(g)
		for c := range rg.NumColumns() {
			cc, err := rg.ColumnChunk(c)
			if err != nil {
				return 0, err
			}
			start := cc.DataPageOffset()
			if d := cc.DictionaryPageOffset(); cc.HasDictionaryPage() && d > 0 && d < start {
				start = d
			}
			if err := l.chunk(data[start:start+cc.TotalCompressedSize()], cc.Compression()); err != nil {
				return 0, fmt.Errorf("row group %d, column %d: %w", g, c, err)
			}
		}
	}
	for at := 0; size > 0; size -= int64(len(l.from)) {
		copy(l.to[at:], l.from[:min(size, int64(len(l.from)))])
		at = (at + len(l.from)) % len(l.to)
	}
	return meta.NumRows, nil
}

// chunk decompresses the pages of a column chunk.
func (l *limit) chunk(b []byte, codec compress.Compression) error {
	for len(b) > 0 {
		p, n, err := pageHeader(b)
		if err != nil {
			return err
		}
		if n+p.compressed > len(b) || p.levels > p.compressed {
			return errors.New("a page that is longer than its chunk")
		}
		body := b[n+p.levels : n+p.compressed]
		b = b[n+p.compressed:]
		want := p.plain - p.levels
		if cap(l.scratch) < want {
			l.scratch = make([]byte, want)
		}
		switch {
		case !p.packed || codec == compress.Codecs.Uncompressed:
			copy(l.scratch[:cap(l.scratch)], body)
		case codec == compress.Codecs.Snappy:
			if _, err = snappy.Decode(l.scratch[:cap(l.scratch)], body); err != nil {
				return err
			}
		case codec == compress.Codecs.Zstd:
			if _, err = l.zstd.DecodeAll(body, l.scratch[:0]); err != nil {
				return err
			}
		default:
			return fmt.Errorf("codec %v", codec)
		}
	}
	return nil
}

// page is what a page header says.
type page struct {
	plain, compressed, levels int // bytes; levels that precede the body of a V2 page are not compressed
	packed                    bool
}

// pageHeader reads a header in thrift's compact protocol and returns its length.
func pageHeader(b []byte) (p page, n int, err error) {
	r := bytes.NewReader(b)
	p.packed = true
	err = thriftStruct(r, func(id, typ byte) (bool, error) {
		switch id {
		case 2, 3:
			v, err := binary.ReadVarint(r)
			if id == 2 {
				p.plain = int(v)
			} else {
				p.compressed = int(v)
			}
			return true, err
		case 8: // DataPageHeaderV2
			return true, thriftStruct(r, func(id, typ byte) (bool, error) {
				switch id {
				case 5, 6:
					v, err := binary.ReadVarint(r)
					p.levels += int(v)
					return true, err
				case 7:
					p.packed = typ == 1
					return true, nil
				}
				return false, nil
			})
		}
		return false, nil
	})
	return p, len(b) - r.Len(), err
}

// thriftStruct calls f with each field, which reads it, or else it is skipped.
func thriftStruct(r *bytes.Reader, f func(id, typ byte) (bool, error)) error {
	id := byte(0)
	for {
		h, err := r.ReadByte()
		if err != nil || h == 0 {
			return err
		}
		if h>>4 == 0 {
			v, err := binary.ReadVarint(r)
			if err != nil {
				return err
			}
			id = byte(v)
		} else {
			id += h >> 4
		}
		read, err := f(id, h&15)
		if err == nil && !read {
			err = thriftSkip(r, h&15)
		}
		if err != nil {
			return err
		}
	}
}

func thriftSkip(r *bytes.Reader, typ byte) error {
	switch typ {
	case 1, 2: // booleans are their type
		return nil
	case 3:
		_, err := r.ReadByte()
		return err
	case 4, 5, 6:
		_, err := binary.ReadVarint(r)
		return err
	case 7:
		_, err := r.Seek(8, io.SeekCurrent)
		return err
	case 8:
		n, err := binary.ReadUvarint(r)
		if err == nil {
			_, err = r.Seek(int64(n), io.SeekCurrent)
		}
		return err
	case 12:
		return thriftStruct(r, func(byte, byte) (bool, error) { return false, nil })
	}
	return fmt.Errorf("thrift type %d in a page header", typ)
}

// arrowBytes is what the columns of a file take in Arrow form: values, offsets, and validity where
// there are nulls.
func arrowBytes(path string) (int64, error) {
	var sum int64
	for rec, err := range dataset.ReadParquet(path).Records(context.Background(), nil) {
		if err != nil {
			return 0, err
		}
		for _, c := range rec.Columns() {
			sum += dataBytes(c.Data(), c.Len())
		}
	}
	return sum, nil
}

func dataBytes(d arrow.ArrayData, n int) int64 {
	var sum int64
	if d.NullN() > 0 {
		sum += int64(n+7) / 8
	}
	switch t := d.DataType().(type) {
	case *arrow.StringType, *arrow.BinaryType:
		offs := arrow.Int32Traits.CastFromBytes(d.Buffers()[1].Bytes())[d.Offset():]
		return sum + 4*int64(n+1) + int64(offs[n]-offs[0])
	case *arrow.ListType:
		offs := arrow.Int32Traits.CastFromBytes(d.Buffers()[1].Bytes())[d.Offset():]
		return sum + 4*int64(n+1) + dataBytes(d.Children()[0], int(offs[n]-offs[0]))
	case arrow.FixedWidthDataType:
		return sum + int64(n)*int64(t.BitWidth())/8
	}
	for _, b := range d.Buffers() {
		if b != nil {
			sum += int64(b.Len())
		}
	}
	return sum
}

// mapFile maps a file into memory, as the reference must not pay for a copy that readers can avoid.
func mapFile(path string) ([]byte, func(), error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return b, func() { unix.Munmap(b) }, nil
}

// copyLimit copies batches of a size within the process: what no hand-off beats that copies once.
//
//	memcpy BYTES BATCHES
func copyLimit(args []string) (figures, error) {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, err
	}
	src, dst := bytes.Repeat([]byte{7}, size), make([][]byte, 8) // a ring of 8, as a queue would have
	for i := range dst {
		dst[i] = make([]byte, size)
	}
	f := figures{}
	var began time.Time
	for i := range n {
		d := dst[i%len(dst)]
		copy(d, src)
		watch.batch()
		for j := 0; j < len(d); j += 4000 {
			f["sum"] += float64(d[j])
		}
		f["bytes"] += float64(size)
		f["batches"]++
		if i == 0 {
			began = time.Now() // the first batch is not in the rate, as in a hand-off
		} else {
			f["steady_bytes"] += float64(size)
		}
	}
	f["steady"] = time.Since(began).Seconds()
	return f, nil
}
