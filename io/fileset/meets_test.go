package fileset

import "testing"

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
		{"s3://b/in/*.csv?region=r", "s3://b/in", "s3://b/in"},
		{"s3://b/in/**/*.csv?region=r", "s3://b/in/x", "s3://b/in"},
		{"s3://b/*.csv", "s3://b/x", ""},
		{"s3://b/**", "s3://b/x", "s3://b"},
		{"/data/{a,b}/*.csv", "/data/a", "/data"},
		{"/data/{a,b}/*.csv", "/data/c", ""},
		{"file:///data/in", "/data/in/x", "/data/in"},
	} {
		o := Options{Paths: []string{"/elsewhere/x.csv", c.path}}
		path, root := o.Meets(c.out)
		if root != c.root || (path != "") != (c.root != "") || path != "" && path != c.path {
			t.Errorf("%s, %s: %q, %q", c.path, c.out, path, root)
		}
	}
}
