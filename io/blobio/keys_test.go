package blobio_test

import (
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
)

// hostileKeys are names that services hold and file systems, URLs and drivers have trouble with.
var hostileKeys = []string{
	"d/a.bin", "d//b.bin", "d/x//y/c.bin", "d///e.bin", "//lead.bin", "/one.bin", "d/tab\there", "d/t\tb/in", "d/new\nline", "d/car\rriage",
	"d/sp ace/ ", "d/plus+", "d/pct%41", "d/pct%2F%", "d/q?x=1", "d/hash#f", "d/ümläut/日本語", "d/../up", "d/..", "d/.", "d/./dot", "d/a../b", "../x",
	"d/__0x2f__lit", "d/__0x41__", "d/__0x5f__0x41__", "d/amp&<>\"'", "d/back\\slash",
}

// What another program stored under any name is listed, found and read, by that name; and what is
// written here has that name there.
func TestKeysOfS3(t *testing.T) {
	m, url := testserver.S3Memory(t, "penstock-test")
	want := slices.Clone(hostileKeys)
	slices.Sort(want)
	for _, k := range want {
		m.Put("penstock-test", k, []byte(k))
	}
	b := open(t, url, nil)
	checkKeys(t, b, want)
	for _, k := range want {
		if err := b.Copy(t.Context(), "copy/"+k, k); err != nil {
			t.Errorf("%q: copy: %v", k, err)
		}
		if err := b.Delete(t.Context(), k); err != nil {
			t.Errorf("%q: delete: %v", k, err)
		}
		if err := b.Put(t.Context(), "put/"+k, []byte(k), &blobio.PutOptions{IfNotExist: true}); err != nil {
			t.Errorf("%q: put: %v", k, err)
		}
		wantCode(t, b.Put(t.Context(), "put/"+k, []byte(k), &blobio.PutOptions{IfNotExist: true}), fault.Exists, b.Path("put/"+k))
	}
	var have []string
	for _, to := range []string{"copy/", "put/"} {
		for _, k := range want {
			have = append(have, to+k)
		}
	}
	slices.Sort(have)
	if got := m.Keys("penstock-test"); !slices.Equal(got, have) {
		t.Errorf("stored\n got %q\nwant %q", got, have)
	}
}

// checkKeys checks that b holds objects of these keys, in order, each of which contains its key.
func checkKeys(t *testing.T, b *blobio.Bucket, want []string) {
	t.Helper()
	if got := keys(t, b.List(t.Context(), "")); !slices.Equal(got, want) {
		t.Errorf("List\n got %q\nwant %q", got, want)
	}
	var walked []string
	var walk func(prefix string)
	walk = func(prefix string) {
		for info, err := range b.ListDir(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if info.Dir {
				walk(info.Key)
			} else {
				walked = append(walked, info.Key)
			}
		}
	}
	walk("")
	if slices.Sort(walked); !slices.Equal(walked, want) {
		t.Errorf("ListDir\n got %q\nwant %q", walked, want)
	}
	for listed, err := range b.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		k := listed.Key
		got := make([]byte, len(k))
		if _, err := b.Object(listed, nil).ReadAt(t.Context(), got, 0); err != nil || string(got) != k {
			t.Errorf("%q: read %q, %v", k, got, err)
		}
		info, err := b.Stat(t.Context(), k)
		if err != nil || info.Size != listed.Size || info.ETag != listed.ETag || info.ModTime.Unix() != listed.ModTime.Unix() {
			t.Errorf("%q: stat %+v, listed %+v, %v", k, info, listed, err)
		}
		if _, back, err := blobio.Split(b.Path(k)); err != nil || back != k {
			t.Errorf("Split(Path(%q)) = %q, %v", k, back, err)
		}
	}
}

// Other services: what is written is listed and found, in memory and in GCS; what others stored there
// under a name that cannot be asked for is an error that names it.
func TestKeysOfOthers(t *testing.T) {
	for name, b := range map[string]*blobio.Bucket{
		"mem": open(t, "mem://keys-of-others", nil),
		"gcs": open(t, bucketURL(t, testserver.GCS(t)), nil),
	} {
		t.Run(name, func(t *testing.T) {
			want := slices.DeleteFunc(slices.Clone(hostileKeys), func(k string) bool {
				return name == "gcs" && (strings.HasSuffix(k, "/.") || strings.HasSuffix(k, "/..") || strings.Contains(k, "./")) // no names of objects there
			})
			slices.Sort(want)
			for _, k := range want {
				put(t, b, k, []byte(k))
			}
			checkKeys(t, b, want)
		})
	}
}

func TestKeysThatCannotBeAskedFor(t *testing.T) {
	s := testserver.GCS(t)
	b := open(t, bucketURL(t, s), nil)
	put(t, b, "d/a", nil)
	for _, name := range []string{"d/x../b", "d/y__0x41__", "e../b"} {
		resp, err := http.Post("http://"+s.Addr()+"/upload/storage/v1/b/penstock-test/o?uploadType=media&name="+url.QueryEscape(name), "text/plain", strings.NewReader("x"))
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		for prefix, list := range map[string]func() iter.Seq2[blobio.Info, error]{
			name[:1]: func() iter.Seq2[blobio.Info, error] { return b.List(t.Context(), name[:1]) },
			"":       func() iter.Seq2[blobio.Info, error] { return b.List(t.Context(), "") },
		} {
			var err error
			for _, err = range list() {
				if err != nil {
					break
				}
			}
			if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("%q", name)) {
				t.Errorf("%q below %q: %v", name, prefix, err)
			}
		}
		if err := b.Delete(t.Context(), name); err != nil { // not what is stored under that name
			t.Error(err)
		}
		req, _ := http.NewRequest("DELETE", "http://"+s.Addr()+"/storage/v1/b/penstock-test/o/"+url.PathEscape(name), nil)
		if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode/100 != 2 {
			t.Fatal(resp, err)
		}
	}
}

// XML has no form for most control characters.
func TestKeysThatXMLCannotHold(t *testing.T) {
	m, url := testserver.S3Memory(t, "penstock-test")
	want := []string{"a+b c%", "d/bell\x07", "d/del\x7f", "e\x01/x", "z&"}
	for _, k := range want {
		m.Put("penstock-test", k, []byte(k))
	}
	checkKeys(t, open(t, url, nil), want)
}
