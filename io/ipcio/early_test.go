package ipcio

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// rowsOf reads a file and prints its rows, one a line.
func rowsOf(t *testing.T, path string) (string, error) {
	t.Helper()
	table, err := New(Options{Options: fileset.Options{Paths: []string{path}}}).Resolve(t.Context(), nil)
	if err != nil {
		return "", err
	}
	defer table.Close()
	return rowsOfTable(t, table, nil)
}

// rowsOfTable reads columns; nil means all.
func rowsOfTable(t *testing.T, table driver.Table, columns []string) (string, error) {
	t.Helper()
	var out strings.Builder
	for i := range table.Splits() {
		r, err := table.Open(t.Context(), i, &driver.ScanOptions{Columns: columns, Alloc: memtest.New(t), BatchRows: 3})
		if err != nil {
			return out.String(), err
		}
		defer r.Close()
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				return out.String(), err
			}
			for row := range int(b.Record.NumRows()) {
				for k, c := range b.Record.Columns() {
					if k > 0 {
						out.WriteByte(' ')
					}
					out.WriteString(c.ValueStr(row))
				}
				out.WriteByte('\n')
			}
			b.Record.Release()
		}
	}
	return out.String(), nil
}

// packed is a buffer as it lies in a file of this codec: its length in front, or -1 where it stays as it is.
func packed(t testing.TB, codec string, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	switch strings.ToLower(codec) {
	case "uncompressed":
		return b
	case "zstd":
		w, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		return append(le64s(int64(len(b))), w.EncodeAll(b, nil)...)
	case "raw":
		return append(le64s(-1), b...)
	}
	w := lz4.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(le64s(int64(len(b))), out.Bytes()...)
}

// earlyFile is a file of Arrow 0.17 with 4 rows in each of two batches: a dictionary of words, numbers, and texts of which the
// second is null.
func earlyFile(t testing.TB, stream bool, codec string) []byte {
	mark := [][2]string{{"other", "key"}, {"ARROW:experimental_compression", codec}, {"ARROW:experimental_compression", "snappy"}}
	p := func(b []byte) []byte { return packed(t, codec, b) }
	batches := []handBatch{{dict: 7, rows: 2, nodes: []int64{2, 0}, buffers: [][]byte{nil, p(le32s(0, 3, 8)), p([]byte("redgreen"))}, meta: mark}}
	for k := range int64(2) {
		batches = append(batches, handBatch{
			rows:  4,
			nodes: []int64{4, 0, 4, 0, 4, 1},
			buffers: [][]byte{nil, p([]byte{0, 1, 1, byte(k)}), nil, p(le64s(k, 1<<40, -1, 3)),
				p([]byte{0b1101}), p(le32s(0, 1, 1, 3, 6)), p([]byte("abbccc"))},
			meta: mark,
		})
	}
	return handFile(stream, []handField{{name: "w", typ: 5, dict: 7}, handInt(64).called("n"), handUTF8.called("s")}, batches...)
}

// Files of Arrow 0.17 name the codec of their buffers in the metadata of the messages.
func TestFilesOfArrow017(t *testing.T) {
	var want strings.Builder
	for k, w := range []string{"red", "green"} {
		fmt.Fprintf(&want, "red %d a\ngreen 1099511627776 (null)\ngreen -1 bb\n%s 3 ccc\n", k, w)
	}
	for _, codec := range []string{"LZ4", "lz4_frame", "ZSTD", "zstd", "uncompressed"} {
		for _, stream := range []bool{false, true} {
			path := handWrite(t, fmt.Sprintf("early-%s-%v.arrow", codec, stream), earlyFile(t, stream, codec))
			if got, err := rowsOf(t, path); err != nil || got != want.String() {
				t.Errorf("%s, stream %v: %v, rows\n%swant\n%s", codec, stream, err, got, want.String())
			}
		}
	}
	_, err := rowsOf(t, handWrite(t, "early.arrow", earlyFile(t, false, "brotli")))
	if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "early.arrow") || !strings.Contains(err.Error(), `"brotli"`) {
		t.Errorf("brotli: %v", err)
	}
}

// A buffer that does not become smaller is kept as it is, as in later files.
func TestBufferOfArrow017KeptAsItIs(t *testing.T) {
	file := handFile(false, []handField{handInt(64).called("n")}, handBatch{rows: 2, nodes: []int64{2, 0},
		buffers: [][]byte{nil, packed(t, "raw", le64s(5, 6))}, meta: [][2]string{{"ARROW:experimental_compression", "lz4"}}})
	if got, err := rowsOf(t, handWrite(t, "early-raw.arrow", file)); got != "5\n6\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// early is a record batch message of Arrow 0.17 that names this codec.
func early(name string) []byte {
	msg, head := handBatch{meta: [][2]string{{"ARROW:experimental_compression", name}}}.message()
	return msg[8:head]
}

// What later files say wins: the key means nothing in a message of today's version, or beside a BodyCompression.
func TestMarkOfArrow017InLaterFiles(t *testing.T) {
	b := early("zstd")
	m, _, err := messageOf(b)
	if err != nil || m.codec != codecZstd {
		t.Fatalf("codec %d, %v", m.codec, err)
	}
	var msg flatbuffers.Table
	msg.Bytes, msg.Pos = b, flatbuffers.GetUOffsetT(b)
	b[msg.Pos+flatbuffers.UOffsetT(msg.Offset(4))] = 4 // version 5
	if m, _, err = messageOf(b); err != nil || m.codec != codecNone {
		t.Errorf("version 5: codec %d, %v", m.codec, err)
	}
}

func TestDamagedMetadataIsNamed(t *testing.T) {
	err := guard("record batch 3", func() error { _, _, err := messageOf([]byte{255, 0, 0, 0}); return err })
	if err == nil || !strings.Contains(err.Error(), "record batch 3: the metadata is damaged: it points outside of itself") {
		t.Error(err)
	}
}
