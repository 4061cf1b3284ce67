package textio_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/textio"
)

// line is what a row should be: a bad one where ok is false.
type line struct {
	at   int64 // byte of the file
	text string
	ok   bool
}

// model is what the package says of text, without splits and buffers.
func model(data []byte, keep bool) (rows []line) {
	for at := 0; at < len(data); {
		b := data[at:]
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		begin := at
		b, at = b[:n], at+n
		if begin == 0 {
			if b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")); len(b) == 0 {
				continue
			}
			begin = n - len(b)
		}
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		if len(b) > 0 || keep {
			rows = append(rows, line{int64(begin), string(b), utf8.Valid(b)})
		}
	}
	return rows
}

// scanned is what a scan of one split gives, bad rows at their places, with bytes counted from begin.
func scanned(t *testing.T, tab driver.Table, i int, begin int64, o driver.ScanOptions) (rows []line, numbers []int64) {
	o.Alloc = memtest.New(t)
	bad := map[int64]bool{}
	o.OnBadRow = func(err error) error {
		e, ok := err.(*fault.Error)
		if !ok || e.Code != fault.RowError {
			t.Fatalf("a bad row gives %v", err)
		}
		n, _ := e.Row.Get()
		bad[n] = true
		return nil
	}
	r, err := tab.Open(t.Context(), i, &o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		b, err := r.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		c := b.Record.Column(0).(*array.String)
		for k := range c.Len() {
			rows = append(rows, line{begin + b.Offsets[k], strings.Clone(c.Value(k)), true})
			numbers = append(numbers, b.Row+int64(k))
		}
		b.Record.Release()
	}
	for _, n := range numbers {
		if bad[n] {
			t.Fatalf("row %d is bad, and was given out", n)
		}
	}
	for n := range bad {
		at, _ := slices.BinarySearch(numbers, n)
		numbers = slices.Insert(numbers, at, n)
		rows = slices.Insert(rows, at, line{})
	}
	return rows, numbers
}

// FuzzRead compares rows, their numbers, their bytes and which are bad with a model, whatever the splits and batches, and where a split is
// entered in the middle.
func FuzzRead(f *testing.F) {
	for _, s := range []string{"", "a\nb\r\n\nccc", "\n\n\n", "\r\n\r\r\nx\r", "\xef\xbb\xbfa\nb", "\xef\xbb\xbf\n\xef\xbb\xbf", "ok\n\xff\nok\n\xc3", "é\n\xe2\x82\nb\x00c", "\xef\xbb\xbf"} {
		f.Add([]byte(s), int64(3), uint8(2), true)
		f.Add([]byte(s), int64(100), uint8(0), false)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, split int64, batch uint8, keep bool) {
		if len(data) > 2048 || split <= 0 || int64(len(data))/split > 50 {
			return
		}
		path := filepath.Join(dir, "x.txt")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		tab, err := textio.New(textio.Options{Options: fileset.Options{Paths: []string{path}}, KeepEmpty: keep, SplitBytes: split}).Resolve(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tab.Close()
		want := model(data, keep)
		begin := int64(0)
		for i, sp := range tab.Splits() {
			o := driver.ScanOptions{BatchRows: int(batch), BatchBytes: int64(batch), Offsets: true}
			rows, numbers := scanned(t, tab, i, begin, o)
			mine := 0 // lines whose first byte is in the split; that of a byte order mark is its line's
			for mine < len(want) && (want[mine].at < begin+sp.Bytes || mine == 0 && begin == 0 && want[0].at == 3 && bytes.HasPrefix(data, []byte("\xef\xbb\xbf"))) {
				mine++
			}
			same(t, fmt.Sprintf("split %d", i), rows, numbers, want[:mine], 0)
			if mine > 1 {
				k := int(batch) % mine
				o.FromByte = want[k].at - begin
				if o.FromByte <= sp.Bytes {
					rows, numbers = scanned(t, tab, i, begin, o)
					same(t, fmt.Sprintf("split %d from byte %d", i, o.FromByte), rows, numbers, want[k:mine], int64(k))
				}
			}
			want, begin = want[mine:], begin+sp.Bytes
		}
		if len(want) > 0 {
			t.Fatalf("%d lines are in no split", len(want))
		}
	})
}

func same(t *testing.T, what string, rows []line, numbers []int64, want []line, first int64) {
	t.Helper()
	if len(rows) != len(want) {
		t.Fatalf("%s: %d rows, want %d", what, len(rows), len(want))
	}
	for k, w := range want {
		if numbers[k] != first+int64(k) || rows[k].ok != w.ok || w.ok && rows[k] != w {
			t.Fatalf("%s: row %d is %+v with number %d, want %+v", what, k, rows[k], numbers[k], w)
		}
	}
}
