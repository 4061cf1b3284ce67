package blobio_test

import (
	"os"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
)

func TestSplit(t *testing.T) {
	t.Chdir("/tmp")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	rel := "file://" + wd + "?relative=true"
	for _, c := range []struct{ path, bucket, key string }{
		{"/data/x.csv", "file:///", "data/x.csv"},
		{"/data/**/*.parquet", "file:///", "data/**/*.parquet"},
		{"/data/part-?.csv", "file:///", "data/part-?.csv"},
		{"/data/x?a=b", "file:///", "data/x?a=b"},
		{"/data//./y/../x/", "file:///", "data/x/"},
		{"/", "file:///", ""},
		{".", rel, ""},
		{"./", rel, ""},
		{"data/x.csv", rel, "data/x.csv"},
		{"./data/", rel, "data/"},
		{"..", rel, ".."},
		{"../x/", rel, "../x/"},
		{"a:b", rel, "a:b"},
		{"s3:/x", rel, "s3:/x"},
		{"file:///data/x%20y.csv", "file:///", "data/x y.csv"},
		{"file://localhost/data/x", "file:///", "data/x"},
		{"FILE:///x", "file:///", "x"},
		{"s3://b", "s3://b", ""},
		{"s3://b/", "s3://b", ""},
		{"s3://b/k", "s3://b", "k"},
		{"s3://b//k", "s3://b", "/k"},
		{"s3://b/x/*.parquet?region=r", "s3://b?region=r", "x/*.parquet"},
		{"s3://b/x?region=r&endpoint=http://127.0.0.1:1/y", "s3://b?region=r&endpoint=http://127.0.0.1:1/y", "x"},
		{"s3://b?region=r", "s3://b?region=r", ""},
		{"s3://b/part-?.csv", "s3://b", "part-?.csv"},
		{"s3://b/part-?.csv?region=r", "s3://b?region=r", "part-?.csv"},
		{"s3://b/day=?/x", "s3://b", "day=?/x"},
		{"s3://b/k?a=b?", "s3://b", "k?a=b"},
		{"s3://b/a%20b", "s3://b", "a%20b"},
		{"gs://b/a b", "gs://b", "a b"},
		{"azblob://c/k", "azblob://c", "k"},
		{"mem://n/k", "mem://n", "k"},
		{"hdfs://n/k", "hdfs://n", "k"},
	} {
		bucket, key, err := blobio.Split(c.path)
		if err != nil || bucket != c.bucket || key != c.key {
			t.Errorf("Split(%q) = %q, %q, %v; want %q, %q", c.path, bucket, key, err, c.bucket, c.key)
		}
	}
	for p, code := range map[string]fault.Code{"": fault.Invalid, "s3://": fault.Invalid, "gopher://b/k": fault.Unsupported, "a/b": fault.Unknown, "file:///a": fault.Unknown, "mem://b/k": fault.Unknown} {
		if err := blobio.Check(p); fault.CodeOf(err) != code || (err == nil) != (code == fault.Unknown) {
			t.Errorf("Check(%q): %v, want %v", p, err, code)
		}
	}
	for _, p := range []string{"", "s3://", "s3:///k", "s3://?region=r", "file://host/x", "file://x", "file:///%zz", "a\x00b"} {
		if b, k, err := blobio.Split(p); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("Split(%q) = %q, %q, %v", p, b, k, err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	for _, c := range []struct {
		url  string
		code fault.Code
		text string
	}{
		{"gopher://b", fault.Unsupported, "unknown scheme"},
		{"s3://b/key", fault.Invalid, "blobio.Split"},
		{"s3://b?nosuch=1", fault.Invalid, "nosuch"},
		{"s3://b?prefix=x", fault.Invalid, "as a path"},
		{"mem://b?x=1", fault.Invalid, "no options"},
		{"mem://", fault.Invalid, "lacks"},
		{"data/x.csv", fault.Invalid, "lacks a scheme"},
		{"file://host/x", fault.Invalid, "no host"},
		{"file:x", fault.Invalid, "file:///path"},
		{"file:///x?y=z", fault.Invalid, "file:///path"},
		{"s3://b\x7f", fault.Invalid, "bucket URL"},
	} {
		_, err := blobio.Open(t.Context(), c.url, nil)
		if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("Open(%q): %v, want %v with %q", c.url, err, c.code, c.text)
		}
	}
}

// What Path writes, Split reads.
func FuzzPath(f *testing.F) {
	for _, k := range oddKeys {
		f.Add(k)
	}
	f.Add("k?")
	f.Add("k??a=b&c=d")
	f.Add("..//./x/")
	mem, err := blobio.Open(f.Context(), "mem://fuzz", nil)
	if err != nil {
		f.Fatal(err)
	}
	root, err := blobio.Open(f.Context(), "file:///", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if strings.IndexByte(key, 0) >= 0 {
			return
		}
		u, back, err := blobio.Split(mem.Path(key))
		if err != nil || u != "mem://fuzz" || back != key {
			t.Errorf("%q: path %q is %q, %q, %v", key, mem.Path(key), u, back, err)
		}
		// Local keys are cleaned once, and then stay.
		_, clean, err := blobio.Split("/" + key)
		if err != nil {
			t.Fatal(err)
		}
		if u, back, err := blobio.Split(root.Path(clean)); err != nil || u != "file:///" || back != clean {
			t.Errorf("%q: path %q is %q, %q, %v", key, root.Path(clean), u, back, err)
		}
	})
}
