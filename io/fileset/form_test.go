package fileset

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// pack compresses with the tools that people have.
func pack(t *testing.T, data []byte, tool string, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skipf("%s is not here", tool)
	}
	c := exec.Command(path, append(args, "-c")...)
	c.Stdin = bytes.NewReader(data)
	out, err := c.Output()
	if err != nil {
		t.Fatal(tool, err)
	}
	return out
}

// textOf reads the text of the first file of s.
func textOf(s *Set, encoding string) ([]byte, error) {
	in := s.OpenStream(context.Background(), s.Begin(0, Text{encoding}, 1<<40), &driver.ScanOptions{})
	defer in.Close()
	return io.ReadAll(in)
}

// TestFirstBytes: a file is read as what it is, under every name.
func TestFirstBytes(t *testing.T) {
	data := bytes.Repeat([]byte("a line of text, and another\n"), 20_000)
	files := map[string][]byte{"plain": data, "empty": nil, "short": []byte("a\n"), "BZh": []byte("BZh9 is a text\n")}
	for _, kind := range []string{"gzip", "zstd"} {
		var b bytes.Buffer
		w, _ := Compress(kind, 0, &b)
		w.Write(data)
		w.Close()
		files[kind] = b.Bytes()
	}
	gz := files["gzip"]
	files["gzip, zeros"] = append(bytes.Clone(gz), make([]byte, 1000)...)
	files["gzip twice, zeros"] = append(append(append(bytes.Clone(gz), 0, 0), gz...), 0)
	for _, c := range [][]string{{"bzip2"}, {"bzip2", "-1"}, {"xz"}, {"xz", "-0", "--check=none"}, {"xz", "--check=crc32"}, {"xz", "--check=sha256", "-9"}, {"xz", "--block-size=100000", "-0"}, {"xz", "-T2", "--block-size=100000", "-0"}} {
		if _, err := exec.LookPath(c[0]); err == nil {
			files[strings.Join(c, " ")] = pack(t, data, c[0], c[1:]...)
		}
	}
	if x := files["xz"]; x != nil {
		files["xz, zeros"] = append(bytes.Clone(x), 0, 0, 0, 0)
		files["xz twice"] = append(append(bytes.Clone(x), 0, 0, 0, 0), x...)
	}
	for what, b := range files {
		want := data
		switch {
		case strings.Contains(what, "twice"):
			want = append(bytes.Clone(data), data...)
		case what == "short" || what == "empty" || what == "BZh":
			want = b
		}
		for _, name := range []string{"a.csv", "a.csv.gz", "a.csv.zst", "a.csv.bz2", "a.csv.xz", "a"} {
			if what == "empty" && Compression(name) != "" {
				continue // truncated, as TestChunksCompressed has it
			}
			s := fileOf(t, name, b)
			if got, err := textOf(s, ""); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s as %s: %d bytes of %d, %v", what, name, len(got), len(want), err)
			}
			_, parts, err := s.Parts(t.Context(), Text{}, 500, func(int) bool { return false })
			if err != nil {
				t.Fatal(err)
			}
			if one := len(parts) == 1; one != (len(b) < 700 || what != "plain" || Compression(name) != "") {
				t.Errorf("%s as %s has %d splits", what, name, len(parts))
			}
		}
		if what == "plain" || len(b) < 30 {
			continue
		}
		for _, cut := range []int{7, len(b) / 2, len(b) - 1} {
			if strings.Contains(what, "zeros") || strings.Contains(what, "twice") {
				continue
			}
			if _, err := textOf(fileOf(t, "a.csv", b[:cut]), ""); fault.CodeOf(err) != fault.Corrupt {
				t.Errorf("%s cut at %d of %d: %v", what, cut, len(b), err)
			}
		}
	}
	for _, o := range others {
		if _, err := textOf(fileOf(t, "a.csv", []byte(o.magic+"0123456789abcdef")), ""); fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("%s: %v", o.what, err)
		}
	}
}

// TestXZWindow: a dictionary is not taken on a file's word.
func TestXZWindow(t *testing.T) {
	b := pack(t, []byte("x\n"), "xz", "--lzma2=dict=128MiB")
	if _, err := textOf(fileOf(t, "a", b), ""); fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "dictionary is 128 MiB") {
		t.Error(err)
	}
	one := pack(t, []byte("x\n"), "xz", "-9")
	if _, err := textOf(fileOf(t, "a", bytes.Repeat(one, 1000)), ""); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") {
		t.Errorf("64 MiB for each of 1000 small streams: %v", err)
	}
}

// TestEncodings: text is decoded in one piece and in splits; what is none becomes no UTF-8.
func TestEncodings(t *testing.T) {
	for _, c := range []struct{ encoding, in, want string }{
		{"", "caf\xe9", "caf\xe9"},
		{"latin-1", "caf\xe9 \x80\xff", "café \u0080ÿ"},
		{"cp1252", "caf\xe9 \x80\x99\x81", "café €™\x81"},
		{"utf-8-lossy", "é\xff\xe2\x82\xe2\x82\xac\xed\xa0\x80\xf0\x9f\x99", "é\ufffd\ufffd€\ufffd\ufffd\ufffd\ufffd"},
		{"utf-16", "\xff\xfea\x00\n\x00", "a\n"},
		{"utf-16", "\xfe\xff\x00a\x00\n", "a\n"},
		{"utf-16", "a\x00=\xd8\x42\xde", "a🙂"},
		{"utf-16", "\x00a\xd8=\xde\x42", "a🙂"},
		{"utf-16", "a\x00=\xd8", "a\xed\xa0\xbd"},
		{"utf-16", "a\x00b", "a\xe2"},
		{"", "\xff\xfea\x00\n\x00", "a\n"},
		{"latin-1", "\xff\xfea\x00\n\x00", "a\n"},
		{"latin-1", "\xef\xbb\xbf\xc3\xa9", "\xef\xbb\xbfé"},
		{"utf-16", "\xef\xbb\xbf\xc3\xa9", "\xef\xbb\xbfé"},
	} {
		if got, err := textOf(fileOf(t, "a.csv", []byte(c.in)), c.encoding); err != nil || string(got) != c.want {
			t.Errorf("%q in %s is %q (%v), want %q", c.in, c.encoding, got, err, c.want)
		}
	}
	var in, want bytes.Buffer
	for i := range 5000 {
		fmt.Fprintf(&in, "%d caf\xe9 \x80\n", i)
		fmt.Fprintf(&want, "%d café €\n", i)
	}
	s := fileOf(t, "a.csv", in.Bytes())
	for _, split := range []int64{300, 1000, 1 << 20} {
		_, parts, err := s.Parts(t.Context(), Text{"cp1252"}, split, func(int) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		if split < 1<<20 && len(parts) < 50 {
			t.Errorf("splits of %d: %d", split, len(parts))
		}
		var got []byte
		for _, p := range parts {
			c := s.OpenChunks(t.Context(), p, 100, &driver.ScanOptions{Alloc: memory.DefaultAllocator})
			for {
				lines, _, err := c.Next(t.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, lines...)
			}
			c.Close()
		}
		if !bytes.Equal(got, want.Bytes()) {
			t.Errorf("splits of %d give %d bytes, want %d", split, len(got), want.Len())
		}
	}
	if err := (&Text{"klingon"}).Check(); fault.CodeOf(err) != fault.Invalid {
		t.Error(err)
	}
}
