package fileset

import (
	"bytes"
	"crypto/sha256"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/penstock-data/penstock/internal/fault"
)

// FuzzDecompress: what others compressed, in any encoding, becomes text or an error that says what is wrong with it, the same
// whatever reads give, and of no more bytes than may be.
func FuzzDecompress(f *testing.F) {
	kinds := []string{"gzip", "zstd", "bzip2", "xz"}
	encodings := []string{utf8Name, utf8Lossy, latin1, cp1252, utf16LE, utf16BE}
	for i, kind := range kinds[:2] {
		var b bytes.Buffer
		w, _ := Compress(kind, 0, &b)
		w.Write(bytes.Repeat([]byte("penstock \xff\xc3 "), 20))
		w.Close()
		f.Add(b.Bytes(), byte(i), byte(0))
	}
	f.Add([]byte("\x42\x5a\x68\x39\x31\x41\x59\x26\x53\x59\x73\xac\x54\xfe\x00\x00\x4f\x91\x84\xc0\x00\x0a\x09\xcc\x00\x08\x00\x00\x00\xa0\x00\x50\x80\x69\xa6\x80\xa5\x50\x32\x7a\x8c\x27\x64\xd1\x36\x4f\x09\xa2\x61\x36\x4f\x49\x84\xf8\x9d\x13\xf1\x77\x24\x53\x85\x09\x07\x3a\xc5\x4f\xe0"), byte(2), byte(1))
	f.Add([]byte("\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\xe5\xa3\xe0\x00\xef\x00\x13\x5d\x00\x38\x19\x4a\x22\x3b\x55\x62\xaa\x28\x99\xbc\xd6\x21\xac\xce\x9e\x3d\x20\x00\x00\x00\x55\x46\xa7\x54\x5c\x04\x2e\x11\x00\x01\x2f\xf0\x01\x00\x00\x00\x06\x54\x27\xc5\xb1\xc4\x67\xfb\x02\x00\x00\x00\x00\x04\x59\x5a"), byte(3), byte(2))
	f.Add([]byte("\xfd\x37\x7a\x58\x5a\x00\x00\x0a\xe1\xfb\x0c\xa1\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\xe5\xa3\xe0\x00\xef\x00\x13\x5d\x00\x38\x19\x4a\x22\x3b\x55\x62\xaa\x28\x99\xbc\xd6\x21\xac\xce\x9e\x3d\x20\x00\x00\x00\xd7\x23\x05\x13\xd4\x77\x42\xc9\x15\x75\x51\xab\x1a\x33\xb1\xaa\x22\x92\x9e\xa2\x4d\x9d\xc1\xe3\xe6\x95\x39\x72\x9c\xda\xed\x14\x00\x01\x47\xf0\x01\x00\x00\x00\x31\xd9\x80\x21\xb6\xe9\xdf\x1c\x02\x00\x00\x00\x00\x0a\x59\x5a"), byte(3), byte(3)) // of SHA-256
	f.Add([]byte("\xd8\x3d\xde\x00 \xd8"), byte(4), byte(5))
	const most = 100
	f.Fuzz(func(t *testing.T, data []byte, kind, encoding byte) {
		read := func(in io.Reader, to io.Writer) (int64, error) {
			if k := int(kind) % (len(kinds) + 1); k < len(kinds) {
				r, err := Decompress(kinds[k], in, most)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				in = r
			}
			if e := encodings[int(encoding)%len(encodings)]; e != utf8Name {
				in = newRecoder(e, in)
			}
			return io.Copy(to, in)
		}
		h := sha256.New()
		n, err := read(bytes.NewReader(data), h)
		if c := fault.CodeOf(err); err != nil && c != fault.Corrupt && c != fault.Unsupported {
			t.Fatalf("%v has the code %v", err, c)
		}
		if n > 3*(int64(len(data))*most+freeText+1<<20) {
			t.Fatalf("%d bytes have become %d", len(data), n)
		}
		if n > 1<<16 {
			return
		}
		again := sha256.New()
		m, err2 := read(iotest.OneByteReader(bytes.NewReader(data)), again)
		if m != n || fault.CodeOf(err) != fault.CodeOf(err2) || !bytes.Equal(h.Sum(nil), again.Sum(nil)) {
			t.Fatalf("%d bytes and %v; byte by byte %d and %v", n, err, m, err2)
		}
	})
}

// TestManyFrames: frames, members and streams of a few bytes each do not cost a read each.
func TestManyFrames(t *testing.T) {
	const n = 10_000
	for kind, one := range map[string]string{
		"zstd":  "\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00", // an empty frame
		"skip":  "\x50\x2a\x4d\x18\x00\x00\x00\x00",
		"bzip2": "\x42\x5a\x68\x39\x17\x72\x45\x38\x50\x90\x00\x00\x00\x00",
		"xz":    "\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x00\x00\x00\x00\x1c\xdf\x44\x21\x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04\x59\x5a",
	} {
		if kind == "skip" {
			kind, one = "zstd", one+one
		}
		in := &reads{r: strings.NewReader(strings.Repeat(one, n))}
		r, err := Decompress(kind, in, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.Copy(io.Discard, r)
		if most := n*len(one)/(32<<10) + 8; got != 0 || err != nil || in.n > most {
			t.Errorf("%s: %d bytes of %d reads, want at most %d; %v", kind, got, in.n, most, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// reads counts them.
type reads struct {
	r io.Reader
	n int
}

func (r *reads) Read(p []byte) (int, error) {
	r.n++
	return r.r.Read(p)
}
