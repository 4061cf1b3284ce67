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

var tryRE = regexp.MustCompile(`^([0-9]{6,10})-([0-9]{1,10})-[0-9a-f]{8}$`)

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

// checkManifest of this run, which the caller may have from elsewhere.
func (r *Run) checkManifest(m *Manifest) error {
	err := m.check()
	if err == nil && r.key != nil {
		err = m.strongSums()
	}
	return err
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
	if !fs.ValidPath(f.Path) || f.Path == "." || len(f.Path) > maxText || strings.IndexByte(f.Path, 0) >= 0 {
		return corrupt("files", "has a bad path %.200q", f.Path)
	}
	if f.Size < 0 || f.Rank < 0 || f.Rank >= maxWorkers || !sumRE.MatchString(f.Sum) {
		return corrupt("files", "has %.200q with a size, rank or sum that is out of range", f.Path)
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
