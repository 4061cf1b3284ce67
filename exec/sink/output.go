package sink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/trust"
	"github.com/penstock-data/penstock/io/blobio"
	"golang.org/x/sys/unix"
)

// recordsPrefix and the name of an output's folder are the name of the one beside it that holds its records.
const recordsPrefix = "_penstock-"

// output is a folder of data files, which never holds anything else, and rec, the folder of its records beside it.
// Both are in one bucket; in a local one, on one file system.
type output struct {
	*root
	rec *root
}

// openOutput changes nothing.
func openOutput(ctx context.Context, p string, o *blobio.Options) (*output, error) {
	r, err := openRoot(ctx, p, o)
	if err != nil {
		return nil, err
	}
	folder := r.b.Within(r.prefix, true) // others may have been here
	rec, err := recordsOf(r, folder)
	if err != nil {
		r.b.Close()
		return nil, err
	}
	r.b.Within(rec, false)
	return &output{root: r, rec: &root{b: r.b, url: r.url, prefix: rec}}, nil
}

// checkName refuses p where an output's records would lie.
func checkName(p string) error {
	names, err := blobio.Names(p)
	if err != nil {
		return err
	}
	for _, name := range names {
		for seg := range strings.SplitSeq(name, "/") {
			if strings.HasPrefix(seg, recordsPrefix) {
				return fault.New(fault.Invalid, "output path %q: folders called %s... hold the records of outputs: name another", p, recordsPrefix)
			}
		}
	}
	return nil
}

// Records is where the records of an output lie, both as a user writes them; "" of "".
func Records(output string) string {
	place, _, _ := strings.Cut(output, "?")
	at := strings.LastIndexByte(strings.TrimRight(place, "/"), '/') + 1
	if place == "" {
		return ""
	}
	return place[:at] + recordsPrefix + strings.TrimRight(place[at:], "/")
}

// recordsOf is the prefix of the records of the output in r. They lie beside the folder itself, where r is a link to it.
func recordsOf(r *root, folder string) (string, error) {
	nowhere := func() error {
		return fault.New(fault.Invalid, "the records of an output lie beside it, and beside this is nothing: name a folder in it, such as %s", r.path("rows")).
			At(fault.Place{File: r.path("")})
	}
	if folder == "" {
		dir, name := path.Split(strings.TrimSuffix(r.prefix, "/"))
		if name == "" {
			return "", nowhere()
		}
		return dir + recordsPrefix + name + "/", nil
	}
	if folder == "/" {
		return "", nowhere()
	}
	base, _ := r.b.Local("")
	rel, err := filepath.Rel(base, path.Join(path.Dir(folder), recordsPrefix+path.Base(folder)))
	if err != nil {
		return "", fault.New(fault.Internal, "the records of %s: %w", folder, err)
	}
	return rel + "/", nil
}

// check: a local folder may be missing, but not be a file, nor lie below one; and files can be renamed into it from its records, which nobody
// else has put there.
func (o *output) check() error {
	if err := o.checkDir(); err != nil {
		return err
	}
	recPath, local := o.rec.b.Local(o.rec.prefix)
	if !local {
		return nil
	}
	p, _ := o.b.Local(o.prefix)
	var out, up, rec unix.Stat_t
	there := unix.Stat(p, &out) == nil
	beside := path.Dir(recPath)
	fi, err := os.Stat(beside)
	if err != nil || unix.Stat(beside, &up) != nil {
		return nil // it is made; or it cannot be, which making it says
	}
	if there && out.Dev != up.Dev {
		return fault.New(fault.Invalid, "this folder is a mount point, and the records of an output lie beside it, on the same file system: name a folder in it, such as %s", o.path("rows")).
			At(fault.Place{File: o.path("")})
	}
	if trust.Judge(fi, beside, false) == nil || unix.Lstat(recPath, &rec) != nil {
		return nil
	}
	if mine := rec.Uid == uint32(os.Geteuid()); !mine && !(there && rec.Uid == out.Uid) {
		return fault.New(fault.Denied, "in a folder that others may write to, these records belong neither to this user nor to the owner of the output: write elsewhere").
			At(fault.Place{File: o.rec.path("")})
	}
	return nil
}

// advise says with err, if it is that the records may not be written or read, why they are where they are.
func (o *output) advise(err error) error {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Code != fault.Denied || !strings.HasPrefix(e.Place.File, strings.TrimSuffix(o.rec.path(""), "/")) {
		return err
	}
	told := *e
	told.Err = fmt.Errorf("%w; the records of an output lie beside it, so that it holds nothing but data: allow this folder, or name an output in %s", e.Err, o.path(""))
	return &told
}

// vacated reports that m, the newest manifest, lists files, and none of them is there: somebody has removed the output.
func (o *output) vacated(ctx context.Context, m *Manifest) (bool, error) {
	if m == nil || len(m.Files) == 0 {
		return false, nil
	}
	listed := make(map[string]struct{}, len(m.Files))
	for _, f := range m.Files {
		listed[f.Path] = struct{}{}
	}
	for info, err := range o.list(ctx, "") {
		if err != nil {
			return false, err
		}
		if _, ok := listed[strings.TrimPrefix(info.Key, o.prefix)]; ok && !info.Dir {
			return false, nil
		}
	}
	return true, nil
}

// vacate is m without what it lists.
func (m *Manifest) vacate() *Manifest {
	v := *m
	v.Jobs, v.Files, v.Rows, v.Bytes = nil, nil, 0, 0
	return &v
}
