package sink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
)

// A file that was joined has the columns and the rows of the files that it was made of, in every format.
func TestJoinFormats(t *testing.T) {
	must := func(e driver.Encoding, err error) driver.Encoding {
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	parquet := func(o *parquetio.EncodingOptions) driver.Encoding {
		e, err := parquetio.NewEncoding(o)
		return must(e, err)
	}
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	coded := func(inner arrow.DataType) *arrow.Schema {
		return arrow.NewSchema([]arrow.Field{{Name: "x", Type: inner, Nullable: true}}, nil)
	}
	for _, layout := range []string{"file", "stream"} {
		e := must(ipcio.NewEncoding(&ipcio.EncodingOptions{Layout: layout})).(driver.JoiningEncoding)
		if e.Joins(coded(dict)) != (layout == "file") || e.Joins(coded(arrow.ListOf(dict))) != (layout == "file") || !e.Joins(drivertest.Schema()) {
			t.Errorf("ipc %s: dictionaries", layout)
		}
	}
	all := drivertest.Schema()
	meta := arrow.NewMetadata([]string{driver.PartitionTypes}, []string{`{"k":"string"}`})
	full := arrow.NewSchema(all.Fields(), &meta)
	scalars := arrow.NewSchema(all.Fields()[:10], nil)
	text := func(paths []string) fileset.Options { return fileset.Options{Paths: paths} }
	for name, c := range map[string]struct {
		enc    driver.Encoding
		schema *arrow.Schema
		read   func(paths []string) driver.Source
	}{
		"parquet":        {parquet(nil), full, func(p []string) driver.Source { return parquetio.New(parquetio.Options{Options: text(p)}) }},
		"parquet, bloom": {parquet(&parquetio.EncodingOptions{Bloom: []string{"str"}, RowGroupRows: 77}), full, func(p []string) driver.Source { return parquetio.New(parquetio.Options{Options: text(p)}) }},
		"ipc":            {must(ipcio.NewEncoding(&ipcio.EncodingOptions{Compression: "zstd"})), full, func(p []string) driver.Source { return ipcio.New(ipcio.Options{Options: text(p)}) }},
		"ipc stream":     {must(ipcio.NewEncoding(&ipcio.EncodingOptions{Layout: "stream"})), full, func(p []string) driver.Source { return ipcio.New(ipcio.Options{Options: text(p)}) }},
		"csv":            {must(csvio.NewEncoding(nil)), scalars, func(p []string) driver.Source { return csvio.New(csvio.Options{Options: text(p), Multiline: true}) }},
		"csv, gzip": {must(csvio.NewEncoding(&csvio.EncodingOptions{Compression: "gzip", Delimiter: "|"})), scalars, func(p []string) driver.Source {
			return csvio.New(csvio.Options{Options: text(p), Delimiter: "|", Multiline: true})
		}},
		"csv, no header": {must(csvio.NewEncoding(&csvio.EncodingOptions{NoHeader: true})), scalars, func(p []string) driver.Source {
			return csvio.New(csvio.Options{Options: text(p), NoHeader: true, Multiline: true})
		}},
		"json":       {must(jsonio.NewEncoding(nil)), full, func(p []string) driver.Source { return jsonio.New(jsonio.Options{Options: text(p)}) }},
		"json, zstd": {must(jsonio.NewEncoding(&jsonio.EncodingOptions{Compression: "zstd"})), full, func(p []string) driver.Source { return jsonio.New(jsonio.Options{Options: text(p)}) }},
		"names like globs": {parquet(nil), full, func(p []string) driver.Source {
			return parquetio.New(parquetio.Options{Options: fileset.Options{Paths: p, Exact: true}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			alloc := memtest.New(t)
			dir := t.TempDir()
			sub := "_in"
			if name == "names like globs" {
				sub = "_in[{*"
			}
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
				t.Fatal(err)
			}
			var paths []string
			o := &driver.JoinOptions{Schema: c.schema, Alloc: alloc, Most: 1 << 20}
			for i, n := range []int64{200, 1, 333} {
				rec := drivertest.Records(c.schema, 7, int64(i)*1000, n)
				var out bytes.Buffer
				enc, err := c.enc.NewEncoder(&out, c.schema, alloc)
				if err == nil {
					err = enc.Write(rec)
				}
				if err == nil {
					err = enc.Close()
				}
				rec.Release()
				path := filepath.Join(dir, sub, fmt.Sprintf("%d%s", i, c.enc.Extension()))
				if err == nil {
					err = os.WriteFile(path, out.Bytes(), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				paths = append(paths, path)
				o.Files = append(o.Files, driver.JoinFile{Path: path, Rows: n, Open: func(context.Context) io.ReadCloser {
					return io.NopCloser(bytes.NewReader(out.Bytes()))
				}})
			}
			join := func() []byte {
				var out bytes.Buffer
				if err := c.enc.(driver.JoiningEncoding).Join(t.Context(), &out, o); err != nil {
					t.Fatal(err)
				}
				return out.Bytes()
			}
			one := join()
			if !bytes.Equal(one, join()) {
				t.Error("other bytes the second time")
			}
			joined := filepath.Join(dir, "joined"+c.enc.Extension())
			if err := os.WriteFile(joined, one, 0o600); err != nil {
				t.Fatal(err)
			}
			wantSchema, want := tableText(t, c.read(paths))
			schema, got := tableText(t, c.read([]string{joined}))
			if schema != wantSchema {
				t.Errorf("columns %s, want %s", schema, wantSchema)
			}
			if got != want {
				t.Error("the rows differ")
			}
		})
	}
}

// tableText is the schema and the rows of a source.
func tableText(t *testing.T, src driver.Source) (schema, rows string) {
	t.Helper()
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	var b bytes.Buffer
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, nil)
		if err != nil {
			t.Fatal(err)
		}
		for {
			batch, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := array.RecordToJSON(batch.Record, &b); err != nil {
				t.Fatal(err)
			}
			batch.Record.Release()
		}
		r.Close()
	}
	return tab.Schema().String(), b.String()
}
