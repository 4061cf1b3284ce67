package dataset_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "gocloud.dev/blob/azureblob"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
)

// A file that is replaced between listing and reading, by one of the same size and time, is an error in every
// format and store.
func TestChangedSinceListed(t *testing.T) {
	files := changing(t)
	stores := map[string]func(t *testing.T) (url string){
		"local": func(t *testing.T) string { return t.TempDir() + "/" },
		"mem":   func(*testing.T) string { return "mem://changed-since-listed/" },
		"s3": func(t *testing.T) string {
			s := testserver.S3(t)
			s.CreateBucket(t, "data")
			return s.URL("data")
		},
		"gs": func(t *testing.T) string {
			s := testserver.GCS(t)
			s.CreateBucket(t, "data")
			return s.URL("data")
		},
		"azblob": func(t *testing.T) string {
			s := testserver.Azure(t)
			s.CreateBucket(t, "data")
			return s.URL("data")
		},
	}
	for store, start := range stores {
		t.Run(store, func(t *testing.T) {
			url := start(t)
			for _, f := range files {
				place, query, has := strings.Cut(url, "?")
				if has {
					place, query = place+"/", "?"+query
				}
				path := place + f.name + query
				replace(t, path, f.data)
				ds := f.read(path)
				if _, err := ds.Schema(t.Context()); err != nil {
					t.Errorf("%s: %v", f.name, err)
					continue
				}
				replace(t, path, f.other)
				st, err := ds.Drain(t.Context(), nil)
				if fault.CodeOf(err) != fault.Changed || !strings.Contains(fault.PlaceOf(err).File, f.name) {
					t.Errorf("%s: %d rows, %v (code %v)", f.name, st.RowsOut, err, fault.CodeOf(err))
				}
				replace(t, path, f.data)
				if _, err := f.read(path).Drain(t.Context(), nil); err != nil {
					t.Errorf("%s: as it is now: %v", f.name, err)
				}
			}
		})
	}
}

type changingFile struct {
	name        string
	read        func(...string) *dataset.Dataset
	data, other []byte // of equal length
}

// changing are files of every format, and others of the same size.
func changing(t *testing.T) []changingFile {
	t.Helper()
	pack := func(b []byte) []byte { // to the same size, whatever is in it
		var out bytes.Buffer
		z, err := gzip.NewWriterLevel(&out, gzip.NoCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := z.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	var csv, json, text strings.Builder
	csv.WriteString("a,b\n")
	for i := range 50_000 {
		fmt.Fprintf(&csv, "%d,x%d\n", i, i)
		fmt.Fprintf(&json, "{\"a\":%d,\"b\":\"x%d\"}\n", i, i)
		fmt.Fprintf(&text, "line %d\n", i)
	}
	var all []changingFile
	add := func(name string, read func(...string) *dataset.Dataset, b []byte) {
		other := bytes.Clone(b)
		other[len(b)/2] ^= 1
		all = append(all, changingFile{name, read, b, other})
	}
	for name, f := range map[string]struct {
		text string
		read func(...string) *dataset.Dataset
	}{"f.csv": {csv.String(), dataset.ReadCSV}, "f.json": {json.String(), dataset.ReadJSON}, "f.txt": {text.String(), dataset.ReadText}} {
		add(name, f.read, []byte(f.text))
		add(name+".gz", f.read, pack([]byte(f.text)))
	}
	add("f.bin", func(paths ...string) *dataset.Dataset { return dataset.ReadBinary(paths...) }, []byte(text.String()))
	rows := dataset.Range(50_000).WithColumns("b = double(id)", `c = "x" + string(id)`)
	for _, f := range []struct {
		ext  string
		read func(...string) *dataset.Dataset
		to   func(ctx context.Context, dir string) error
	}{
		{"parquet", dataset.ReadParquet, func(ctx context.Context, dir string) error { _, err := rows.WriteParquet(ctx, dir, nil); return err }},
		{"arrow", dataset.ReadIPC, func(ctx context.Context, dir string) error { _, err := rows.WriteIPC(ctx, dir, nil); return err }},
	} {
		dir := filepath.Join(t.TempDir(), "rows")
		if err := f.to(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		written, err := filepath.Glob(dir + "/part-*")
		if err != nil || len(written) != 1 {
			t.Fatal(written, err)
		}
		b, err := os.ReadFile(written[0])
		if err != nil {
			t.Fatal(err)
		}
		add("f."+f.ext, f.read, b)
	}
	return all
}

// replace puts other bytes at a path. A local file keeps its time.
func replace(t *testing.T, path string, b []byte) {
	t.Helper()
	bucket, key, err := blobio.Split(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(bucket, "file:") {
		o, err := blobio.Open(t.Context(), bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if err := o.Put(t.Context(), key, b, nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	was, err := os.Stat(path)
	if os.IsNotExist(err) {
		was = nil
	} else if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"~", b, 0o644); err != nil {
		t.Fatal(err)
	}
	if was != nil {
		if err := os.Chtimes(path+"~", was.ModTime(), was.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
	// The clock of files moves on before anything else is written.
	tick := func() time.Time {
		if err := os.WriteFile(path+"~", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path + "~")
		if err != nil {
			t.Fatal(err)
		}
		return fi.ModTime()
	}
	for first := tick(); !tick().After(first); {
	}
	if err := os.Remove(path + "~"); err != nil {
		t.Fatal(err)
	}
}
