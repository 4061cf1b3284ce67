package spec

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/trust"
)

// Original is what a spec with a train section was made of: the text of its file and of those that it names, and what --set brought.
// As JSON it is what the record of a run keeps, and what a data process is started with: both parse what the user wrote, with its lines,
// also when the files have changed since. References are not replaced in it, so it holds no secrets that the files do not.
type Original struct {
	File string              `json:"file"` // path of the spec, as given
	Text string              `json:"text"`
	Sets []string            `json:"sets,omitempty"`
	Data map[string]Original `json:"data,omitempty"` // of train.data

	foreign error // why the file is not this user's own, if it was read from one
}

// maxOriginal bounds the JSON of an Original.
const maxOriginal = 64 << 20

// LoadOriginal reads and checks a spec, and the specs of its further data sets. t is as for Load.
func LoadOriginal(path string, sets []string, t Trust) (*Original, *Spec, error) {
	data, foreign, err := readSpec(path)
	if err != nil {
		return nil, nil, err
	}
	o := &Original{File: filepath.ToSlash(path), Text: string(data), Sets: sets, foreign: foreign}
	s, err := o.Spec(t)
	if err != nil || s.Train == nil {
		return o, s, err
	}
	for name, d := range s.Train.Data {
		file := d.Spec
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		at := "train.data." + name + ".spec"
		data, foreign, err := readSpec(file)
		if err != nil {
			return nil, nil, s.at(at, fault.New(fault.Invalid, "data set %q: %w", name, err))
		}
		if o.Data == nil {
			o.Data = map[string]Original{}
		}
		o.Data[name] = Original{File: filepath.ToSlash(file), Text: string(data), foreign: foreign}
		if _, err := o.DataSpec(name, t); err != nil {
			return nil, nil, err
		}
	}
	return o, s, nil
}

// Spec parses it. t.Foreign is of what was read from a record; files were looked at when they were
// read.
func (o *Original) Spec(t Trust) (*Spec, error) {
	if o.foreign != nil {
		t.Foreign = o.foreign
	}
	return Parse(o.File, []byte(o.Text), o.Sets, t)
}

// DataSpec parses the spec of a further data set.
func (o *Original) DataSpec(name string, t Trust) (*Spec, error) {
	d, ok := o.Data[name]
	if !ok {
		return nil, fault.New(fault.NotFound, "%s: the text of data set %q is not there", o.File, name)
	}
	s, err := d.Spec(t)
	if err != nil {
		return nil, err
	}
	if s.Shards == nil {
		return nil, fault.New(fault.Invalid, "%s: data set %q has no shards, which say how large its batches are: add `shards: {global_batch: 256}`", d.File, name)
	}
	return s, nil
}

// String is its JSON.
func (o *Original) String() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // of strings: cannot fail
	}
	return string(b)
}

// ParseOriginal reads what String wrote.
func ParseOriginal(text string) (*Original, error) {
	var o Original
	if len(text) > maxOriginal {
		return nil, fault.New(fault.Invalid, "the record of a spec has at most %d bytes", maxOriginal)
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return nil, fault.New(fault.Corrupt, "this is no record of a spec: %w", err)
	}
	return &o, nil
}

// readSpec reads a regular file, or what the shell gave to this process as a path (<(...),
// /dev/stdin), and says why it is not this user's own where it is not. A pipe in a folder, which
// may block who reads it, is refused.
func readSpec(path string) (data []byte, foreign, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fault.WithCode(fault.CodeOf(err), err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, fault.WithCode(fault.CodeOf(err), err)
	}
	if st.IsDir() {
		return nil, nil, fault.New(fault.Invalid, "it is a directory, and a spec is a regular file").At(fault.Place{File: path})
	}
	if !st.Mode().IsRegular() && !strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/proc/") {
		return nil, nil, fault.New(fault.Invalid, "a spec is a regular file, not one of mode %v", st.Mode()).At(fault.Place{File: path})
	}
	if data, err = io.ReadAll(io.LimitReader(f, maxSpec+1)); err != nil {
		return nil, nil, fault.Wrap(err, fault.Place{File: path})
	}
	return data, trust.Opened(f), nil
}
