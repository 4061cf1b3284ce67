package store

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/zeebo/xxh3"
)

// Manifest is a checkpoint. Its files are there, whole, for as long as the manifest is.
type Manifest struct {
	Number  int             `json:"number"`
	Attempt int             `json:"attempt"`
	Try     string          `json:"try"`    // names the folder of its files: RUN/checkpoints/TRY
	Report  int64           `json:"report"` // that it belongs to
	Time    time.Time       `json:"time"`
	World   int             `json:"world"` // workers when it was made
	Metrics Metrics         `json:"metrics,omitempty"`
	Data    map[string]Data `json:"data,omitempty"` // training data sets by name
	Bytes   int64           `json:"bytes"`          // of Files
	Files   []File          `json:"files"`          // by path
}

// File of a checkpoint.
type File struct {
	Path string `json:"path"` // below the checkpoint's folder, '/' separated
	Size int64  `json:"size"`
	Sum  string `json:"sum"`
	Rank int    `json:"rank"` // that gave it
}

// Data is where a data set stood.
type Data struct {
	State json.RawMessage `json:"state"` // docs/order.md
	// Ledger of the data set's job; nil: none. Commit uploads it as a file, and a manifest that was read has LedgerFile instead: Run.Ledger reads it.
	Ledger     []byte `json:"-"`
	LedgerFile *File  `json:"ledger,omitempty"` // Path is below the folder of the try
}

// Sums are XXH3 of 128 bits: they find damage (torn, swapped or flipped bytes; one in 2^128 is missed) at the speed of memory, so that they cost an upload nothing. They do not hold against
// somebody who forges a file; who may write to the storage can forge manifests as well.
const sumPrefix = "xxh3:"

func sumText(h *xxh3.Hasher) string {
	s := h.Sum128().Bytes()
	return fmt.Sprintf("%s%x", sumPrefix, s)
}

var (
	sumRE = regexp.MustCompile(`^xxh3:[0-9a-f]{32}$`)
	tryRE = regexp.MustCompile(`^([0-9]{6,10})-([0-9]{1,10})-[0-9a-f]{8}$`)
)

// tryName names a try to commit checkpoint number: with the attempt, so that it is known whose it is, and a random part.
func tryName(number, attempt int) string {
	return fmt.Sprintf("%s-%d-%s", numbered(number), attempt, randomHex(4))
}

func parseTry(name string) (number, attempt int, ok bool) {
	m := tryRE.FindStringSubmatch(name)
	if m == nil {
		return 0, 0, false
	}
	number, err1 := strconv.Atoi(m[1])
	attempt, err2 := strconv.Atoi(m[2])
	return number, attempt, err1 == nil && err2 == nil
}

func (m *Manifest) check() error {
	bad := func(format string, args ...any) error { return fault.New(fault.Corrupt, format, args...) }
	if m.Number < 1 || m.Attempt < 1 || m.Report < 0 || m.World < 1 {
		return bad("a number is out of range")
	}
	if n, a, ok := parseTry(m.Try); !ok || n > m.Number || a != m.Attempt {
		return bad("%q is not a try of checkpoint %d", m.Try, m.Number)
	}
	total, last := int64(0), ""
	for _, f := range m.Files {
		if err := f.check(); err != nil {
			return err
		}
		if f.Path <= last {
			return bad("file %q is there twice, or in the wrong place", f.Path)
		}
		last, total = f.Path, total+f.Size
	}
	if a, _, ok := clash(m.Files); ok {
		return bad("%q is a file and a folder", a.Path)
	}
	if total != m.Bytes {
		return bad("the files have %d bytes, not %d", total, m.Bytes)
	}
	for name, d := range m.Data {
		if f := d.LedgerFile; f != nil {
			if err := f.check(); err != nil {
				return err
			}
			if f.Path != ledgerName(name) {
				return bad("the ledger of data set %q is %q", name, f.Path)
			}
		}
	}
	return nil
}

// clash finds a file, and another one that lies below it as if it were a folder. files are sorted by path.
func clash(files []File) (file, below *File, found bool) {
	for i := range files {
		for dir := path.Dir(files[i].Path); dir != "."; dir = path.Dir(dir) {
			j, ok := slices.BinarySearchFunc(files, dir, func(f File, p string) int { return strings.Compare(f.Path, p) })
			if ok {
				return &files[j], &files[i], true
			}
		}
	}
	return nil, nil, false
}

func (f *File) check() error {
	if !fs.ValidPath(f.Path) || f.Path == "." || strings.IndexByte(f.Path, 0) >= 0 {
		return fault.New(fault.Corrupt, "bad path %q", f.Path)
	}
	if f.Size < 0 || f.Rank < 0 || !sumRE.MatchString(f.Sum) {
		return fault.New(fault.Corrupt, "file %q: size, rank or sum is out of range", f.Path)
	}
	return nil
}

// ledgerName is where the ledger of a data set is, below the folder of a try.
func ledgerName(data string) string {
	return "data/" + strings.ReplaceAll(escape(data), "/", "%2F") + ".ledger"
}

// objectName is where a file of users is, below the folder of a try.
func objectName(path string) string { return "files/" + escape(path) }

// escape writes as %XX what object stores, their drivers or listings of local folders treat in a special way, and nothing else: control
// characters, % ? # * \, a dot at the end of a name, and the one before names of files that are being written. It has an inverse: no two paths become one.
func escape(p string) string {
	plain := true
	for i := range len(p) {
		plain = plain && !special(p, i)
	}
	if plain {
		return p
	}
	var b strings.Builder
	for i := range len(p) {
		if special(p, i) {
			fmt.Fprintf(&b, "%%%02X", p[i])
		} else {
			b.WriteByte(p[i])
		}
	}
	return b.String()
}

func special(p string, i int) bool {
	switch c := p[i]; c {
	case '%', '?', '#', '*', '\\', 0x7f:
		return true
	case '.':
		return i == len(p)-1 || p[i+1] == '/' || (i == 0 || p[i-1] == '/') && strings.HasPrefix(p[i:], ".penstock-tmp-")
	default:
		return c < 0x20
	}
}
