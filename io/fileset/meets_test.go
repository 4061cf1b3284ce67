package fileset

import (
	"os"
	"path/filepath"
	"testing"
)

// Which outputs share files with which paths, in buckets.
func TestMeetsBuckets(t *testing.T) {
	for _, c := range []struct {
		path, out, root string // root "": they are apart
	}{
		{"s3://b/in", "s3://b/in/", "s3://b/in"},
		{"s3://b/in/", "s3://b/in?region=r", "s3://b/in"},
		{"s3://b/in?region=r", "s3://b/in/x", "s3://b/in"},
		{"s3://b/in", "s3://b/inner", ""},
		{"s3://b/in", "s3://c/in", ""},
		{"s3://b/in", "gs://b/in", ""},
		{"s3://b/in/x/a.csv", "s3://b/in", "s3://b/in/x"},
		{"s3://b", "s3://b/out", "s3://b"},
		{"s3://b/in/*.csv?region=r", "s3://b/in/x", ""},
		{"s3://b/in/*/*.csv", "s3://b/in/x", "s3://b/in"},
		{"s3://b/in/*/*.csv", "s3://b/in/x/y/z", ""},
		{"s3://b/in/x*/*.csv", "s3://b/in/y/z", ""},
		{"s3://b/in/*.csv", "s3://b/inner", ""},
		{"s3://b/in/*.csv?region=r", "s3://b/in", "s3://b/in"},
		{"s3://b/in/**/*.csv?region=r", "s3://b/in/x", "s3://b/in"},
		{"s3://b/*.csv", "s3://b/x", ""},
		{"s3://b/**", "s3://b/x", "s3://b"},
		{"/data/{a,b}/*.csv", "/data/a", "/data"},
		{"/data/{a,b}/*.csv", "/data/c", ""},
		{"/data/{a,b}/*.csv", "/data/b/c", ""},
		{"/data/**/*.csv", "/data/x/../out", "/data"},
		{"/data/*.csv", "/data/../out", ""},
		{"data/*.csv", "data/out", ""},
		{"./data/*.csv", "data", "data"},
		{"*.csv", "out", ""},
		{"file:///data/in", "/data/in/x", "/data/in"},
	} {
		o := Options{Paths: []string{"/elsewhere/x.csv", c.path}}
		path, root := o.Meets(c.out)
		if root != c.root || (path != "") != (c.root != "") || path != "" && path != c.path {
			t.Errorf("%s, %s: %q, %q", c.path, c.out, path, root)
		}
	}
}

// A link to a folder of the source, and one in it, is that folder.
func TestMeetsLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "data", "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "data"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	o := Options{Paths: []string{dir + "/data/**/*.csv"}}
	for out, want := range map[string]bool{"/link/out": true, "/data/in/out": true, "/link/../out": false, "/out": false, "/data/../link/in": true} {
		if path, _ := o.Meets(dir + out); (path != "") != want {
			t.Errorf("%s: %q", out, path)
		}
	}
	o.Paths = []string{dir + "/link/**/*.csv"}
	if path, _ := o.Meets(dir + "/data/out"); path == "" {
		t.Error("the folder behind a link is another")
	}
}
