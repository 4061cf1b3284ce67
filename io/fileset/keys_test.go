package fileset

import (
	"context"
	"slices"
	"testing"

	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
)

// Slashes in buckets are characters of keys: two of them are a folder without a name between, and
// "." and ".." name no other folders.
func TestKeysOfBuckets(t *testing.T) {
	all := []string{"d/a.bin", "d//b.bin", "d/x//y/c.bin", "d//k=1//e.bin", "d/./f.bin", "d/../g.bin", "/lead.bin", "//lead2.bin", "d/t\tab.bin", "d/new\nline.bin",
		"d/ sp ace .bin", "d/p+%41.bin", "d/q?x=1.bin", "d/h#x.bin", "d/ümläut.bin", "d/_hid/x.bin", "d//_hid2/y.bin", "d/marker.bin/"}
	mem, s3 := "mem://keys-of-buckets", ""
	m, url := testserver.S3Memory(t, "b")
	s3 = url
	b, err := blobio.Open(t.Context(), mem, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		m.Put("b", k, []byte(k))
		if k != "d/marker.bin/" {
			if err := b.Put(t.Context(), k, []byte(k), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	below := []string{"d/ sp ace .bin", "d/../g.bin", "d/./f.bin", "d//b.bin", "d//k=1//e.bin", "d/a.bin", "d/h#x.bin", "d/new\nline.bin", "d/p+%41.bin",
		"d/q?x=1.bin", "d/t\tab.bin", "d/x//y/c.bin", "d/ümläut.bin"}
	// "." and ".." are hidden names, as all that begin with a dot.
	visible := slices.DeleteFunc(slices.Clone(below), func(k string) bool { return k == "d/../g.bin" || k == "d/./f.bin" })
	for _, c := range []struct {
		path string
		want []string
	}{
		{"d/", visible},
		{"d", visible},
		{"d/**", visible},
		{"d/**/*.bin", visible},
		{"d//*.bin", []string{"d//b.bin"}},
		{"d//", []string{"d//b.bin", "d//k=1//e.bin"}},
		{"d//b.bin", []string{"d//b.bin"}},
		{"d/*/b.bin", []string{"d//b.bin"}},
		{"d/*.bin", slices.DeleteFunc(slices.Clone(visible), func(k string) bool { return k == "d//b.bin" || k == "d//k=1//e.bin" || k == "d/x//y/c.bin" })},
		{"d/x//y/", []string{"d/x//y/c.bin"}},
		{"d/x/", []string{"d/x//y/c.bin"}},
		{"d/x//*/c.bin", []string{"d/x//y/c.bin"}},
		{"d/x/**/c.bin", []string{"d/x//y/c.bin"}},
		{"/", []string{"//lead2.bin", "/lead.bin"}},
		{"/*.bin", []string{"/lead.bin"}},
		{"//*.bin", []string{"//lead2.bin"}},
		{"/lead.bin", []string{"/lead.bin"}},
		{"d/./f.bin", []string{"d/./f.bin"}},
		{"d/../g.bin", []string{"d/../g.bin"}},
		{"d/../*.bin", []string{"d/../g.bin"}},
		{"d/../", []string{"d/../g.bin"}},
		{"d/t\tab.bin", []string{"d/t\tab.bin"}},
		{"d/t*.bin", []string{"d/t\tab.bin"}},
		{"d/new\nline.bin", []string{"d/new\nline.bin"}},
		{"d/p+%41.bin", []string{"d/p+%41.bin"}},
		{"d/_hid/", []string{"d/_hid/x.bin"}},
		{"d//_hid2/*", []string{"d//_hid2/y.bin"}},
		{"", append([]string{"//lead2.bin", "/lead.bin"}, visible...)},
	} {
		for name, url := range map[string]string{"mem": mem, "s3": s3} {
			s, err := list(t, &Options{Paths: []string{withKey(url, c.path)}}, []string{".bin"}, nil)
			if err != nil {
				t.Errorf("%s %q: %v", name, c.path, err)
				continue
			}
			var got []string
			seen := map[string]bool{}
			for i, f := range s.Files {
				got = append(got, f.Info.Key)
				seen[f.Rel] = true
				data := make([]byte, f.Info.Size)
				if _, err := s.Object(i, nil).ReadAt(context.Background(), data, 0); err != nil || string(data) != f.Info.Key {
					t.Errorf("%s %q: %q: read %q, %v", name, c.path, f.Info.Key, data, err)
				}
				// What is shown of a file finds it again.
				again, err := list(t, &Options{Paths: []string{withKey(url, f.Info.Key)}}, []string{".bin"}, nil)
				if err != nil || len(again.Files) != 1 || again.Files[0].Info.Key != f.Info.Key {
					t.Errorf("%s: %q is listed and not found: %v", name, f.Info.Key, err)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s %q:\n got %q\nwant %q", name, c.path, got, c.want)
			}
			if len(seen) != len(s.Files) {
				t.Errorf("%s %q: names are not unique: %s", name, c.path, rels(s))
			}
			if want := c.path == "d/" || c.path == "d//"; want && !slices.Equal(s.PartitionColumns(), []string{"k"}) {
				t.Errorf("%s %q: partitions %q", name, c.path, s.PartitionColumns())
			}
		}
	}
}

// withKey puts a key into a bucket's URL, before its query.
func withKey(url, key string) string {
	for i := range len(url) {
		if url[i] == '?' {
			return url[:i] + "/" + key + url[i:]
		}
	}
	return url + "/" + key + "?"
}

// Local names are not URLs: any that a file can have is read.
func TestNamesOfFiles(t *testing.T) {
	names := []string{" sp ace .bin", "a+b.bin", "h#x.bin", "k=a%2Fb/x.bin", "new\nline.bin", "p%41.bin", "q?x=1.bin", "t\tab.bin", "x:y//z.bin", "ümläut.bin"}
	dir := tree(t, names...)
	t.Chdir(dir)
	for _, p := range []string{".", dir, dir + "//.//", "**", "file://" + dir} {
		s, err := list(t, &Options{Paths: []string{p}}, []string{".bin"}, nil)
		if err != nil {
			t.Errorf("%q: %v", p, err)
		} else if len(s.Files) != len(names) {
			t.Errorf("%q: %q", p, rels(s))
		}
	}
	for _, n := range names {
		if s, err := list(t, &Options{Paths: []string{n}}, []string{".bin"}, nil); err != nil || len(s.Files) != 1 {
			t.Errorf("%q: %v", n, err)
		}
	}
}
