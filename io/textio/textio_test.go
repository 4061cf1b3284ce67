package textio_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/textio"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func schema() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}}, nil)
}

func gen(s *arrow.Schema, seed uint64, first, rows int64) arrow.RecordBatch {
	rec := drivertest.Records(s, seed, first, rows)
	defer rec.Release()
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	for i := range int(rows) {
		b.Append(strings.ReplaceAll(rec.Column(0).(*array.String).Value(i), "\n", " "))
	}
	a := b.NewArray()
	defer a.Release()
	return array.NewRecordBatch(s, []arrow.Array{a}, rows)
}

func lines(recs []arrow.RecordBatch) []byte {
	var b bytes.Buffer
	for _, r := range recs {
		for i := range int(r.NumRows()) {
			b.WriteString(r.Column(0).(*array.String).Value(i))
			b.WriteString([]string{"\n", "\r\n"}[i%2])
		}
	}
	return b.Bytes()
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	var b bytes.Buffer
	w, err := fileset.Compress(fileset.Compression(path), 0, &b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	for _, ext := range []string{".txt", ".txt.gz", ".txt.zst"} {
		t.Run(ext, func(t *testing.T) {
			drivertest.Run(t, drivertest.Harness{
				Ext:   ext,
				Write: func(t testing.TB, path string, recs []arrow.RecordBatch) { writeFile(t, path, lines(recs)) },
				Source: func(paths ...string) driver.Source {
					return textio.New(textio.Options{Options: fileset.Options{Paths: paths}, KeepEmpty: true, SplitBytes: 6000})
				},
				Open:     textio.Format().Open,
				Schema:   schema(),
				Gen:      gen,
				Shortens: ext == ".txt",
				Damage: func(t testing.TB, path string, rec arrow.RecordBatch, bad []int64) {
					ls := bytes.SplitAfter(lines([]arrow.RecordBatch{rec}), []byte("\n"))
					for _, r := range bad {
						ls[r] = []byte("caf\xe9\n")
					}
					writeFile(t, path, bytes.Join(ls, nil))
				},
			}, 0)
		})
	}
}

func read(t testing.TB, src driver.Source, o *driver.ScanOptions) (rows []string, err error) {
	t.Helper()
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		return nil, err
	}
	defer tab.Close()
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, o)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				return rows, err
			}
			for k := range int(b.Record.NumRows()) {
				v := ""
				for _, c := range b.Record.Columns() {
					v += c.ValueStr(k) + "|"
				}
				rows = append(rows, v)
			}
			b.Record.Release()
		}
	}
	return rows, nil
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		text string
		o    textio.Options
		want string
	}{
		{"a\nb\r\n\n\r\nc", textio.Options{}, "a| b| c|"},
		{"a\nb\r\n\n\r\nc", textio.Options{KeepEmpty: true}, "a| b| | | c|"},
		{"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", textio.Options{}, "a| \ufeffb|"},
		{"", textio.Options{KeepEmpty: true}, ""},
		{"\n", textio.Options{KeepEmpty: true}, "|"},
		{"x\n\ny\n", textio.Options{Options: fileset.Options{RowColumn: "n"}}, "x|0| y|1|"},
	} {
		p := filepath.Join(t.TempDir(), "x")
		writeFile(t, p, []byte(c.text))
		c.o.Paths = []string{p}
		for _, split := range []int64{0, 1, 2, 3} {
			if split > 0 && c.o.RowColumn != "" {
				continue
			}
			c.o.SplitBytes = split
			rows, err := read(t, textio.New(c.o), &driver.ScanOptions{Alloc: memtest.New(t)})
			if got := strings.Join(rows, " "); err != nil || got != c.want {
				t.Errorf("%q, split %d: %q, %v; want %q", c.text, split, got, err, c.want)
			}
		}
	}
}

func TestBadLines(t *testing.T) {
	p := filepath.Join(t.TempDir(), "x")
	writeFile(t, p, []byte("a\n\xff\nb\n\xfe\n"))
	src := textio.New(textio.Options{Options: fileset.Options{Paths: []string{p}}})
	_, err := read(t, src, nil)
	if fault.CodeOf(err) != fault.RowError || !strings.Contains(err.Error(), "row 1") || !strings.Contains(err.Error(), `line 2 of the file is not valid UTF-8`) || !strings.Contains(err.Error(), p) {
		t.Errorf("%v", err)
	}
	n := 0
	rows, err := read(t, src, &driver.ScanOptions{OnBadRow: func(error) error { n++; return nil }})
	if err != nil || n != 2 || strings.Join(rows, "") != "a|b|" {
		t.Errorf("%q, %d, %v", rows, n, err)
	}
	lines := textio.New(textio.Options{Options: fileset.Options{Paths: []string{p}, Types: map[string]string{"text": "binary"}}})
	if rows, err := read(t, lines, nil); err != nil || strings.Join(rows, "") != "YQ==|/w==|Yg==|/g==|" {
		t.Errorf("as bytes: %q, %v", rows, err)
	}
	stop := errors.New("stop")
	if _, err := read(t, src, &driver.ScanOptions{OnBadRow: func(error) error { return stop }}); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

func TestShakespeare(t *testing.T) {
	dir := datatest.Dir(t, "tinyshakespeare")
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	want, err := os.ReadFile(all[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, split := range []int64{0, 99_999, 4096} {
		rows, err := read(t, textio.New(textio.Options{Options: fileset.Options{Paths: all[:1]}, KeepEmpty: true, SplitBytes: split}), &driver.ScanOptions{Alloc: memtest.New(t)})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, r := range rows {
			b.WriteString(strings.TrimSuffix(r, "|"))
			b.WriteByte('\n')
		}
		if b.String() != string(want) && b.String() != string(want)+"\n" {
			t.Errorf("split %d: %d rows differ from the file", split, len(rows))
		}
	}
}

func ExampleNew() {
	src := textio.New(textio.Options{Options: fileset.Options{Paths: []string{"logs/**/*.log.gz"}}})
	config, err := src.Config()
	fmt.Println(string(config), err)
	// Output: {"paths":["logs/**/*.log.gz"]} <nil>
}

func BenchmarkRead(b *testing.B) {
	p := filepath.Join(b.TempDir(), "x.txt")
	data := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog, again and again\n"), 300_000)
	writeFile(b, p, data)
	tab, err := textio.New(textio.Options{Options: fileset.Options{Paths: []string{p}}}).Resolve(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tab.Close()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		for i := range tab.Splits() {
			r, err := tab.Open(b.Context(), i, nil)
			if err != nil {
				b.Fatal(err)
			}
			for {
				x, err := r.Next(b.Context())
				if err != nil {
					break
				}
				x.Record.Release()
			}
			r.Close()
		}
	}
}
