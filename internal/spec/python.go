package spec

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/trust"
	"github.com/penstock-data/penstock/ops/expr"
)

// Python is a function in Python, in processes of its own: an [Exec] of `python -m penstock.serve`.
type Python struct {
	Function    string   `json:"function" doc:"module:function, or module:Class, which is constructed once in each process and called; modules are found in the spec's folder too" required:"true"`
	Format      string   `json:"format,omitempty" doc:"what it gets: a dict of numpy arrays, or a pyarrow.RecordBatch; default: arrow where its parameter is annotated as that, else numpy" enum:"numpy|arrow"`
	Interpreter string   `json:"python,omitempty" doc:"the interpreter, with the packages penstock and pyarrow; default: $PENSTOCK_PYTHON, else python3"`
	Env         []string `json:"env,omitempty" doc:"variables to pass on (NAME) or set (NAME=value), beside those that Python, CUDA and Hugging Face read"`
	Workers     int      `json:"workers,omitempty" doc:"processes; default: one per CPU"`
	BatchRows   int      `json:"batch_rows,omitempty" doc:"most rows per batch; default 1024"`
	Timeout     Duration `json:"timeout,omitempty" doc:"per batch, the first one with what the module loads; default 5m"`
	Flat        bool     `json:"flat,omitempty" doc:"the function may change the number of rows; it returns column __parent: the row of its batch that each comes from, ascending"`
	Schema      Ordered  `json:"schema,omitempty" doc:"columns that it returns: name to type; default: those of its input"`
}

// passedOn are variables of this process that a function gets, where they are set.
var passedOn = []string{"VIRTUAL_ENV", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME"}

var functionName = regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*:[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*$`)

// options of the step, for a spec in this folder.
func (p *Python) options(folder string) (o dataset.ExecOptions, err error) {
	if !functionName.MatchString(p.Function) {
		return o, fault.New(fault.Invalid, "function %q: write module:function, such as my.module:tokenize", p.Function)
	}
	o = dataset.ExecOptions{Verb: "python", Env: p.Env, Workers: p.Workers, BatchRows: p.BatchRows, Timeout: time.Duration(p.Timeout), Flat: p.Flat}
	if o.Schema, err = p.Schema.schema(); err != nil {
		return o, err
	}
	o.Command = []string{"python", "-m", "penstock.serve"}
	if p.Format != "" {
		o.Command = append(o.Command, "--format", p.Format)
	}
	o.Command = append(o.Command, p.Function)

	// What may be another on another machine.
	o.Program = cmp.Or(p.Interpreter, os.Getenv("PENSTOCK_PYTHON"), "python3")
	if folder, err = filepath.Abs(folder); err != nil {
		return o, fault.New(fault.Invalid, "the spec's folder: %w", err)
	}
	if more := os.Getenv("PYTHONPATH"); more != "" {
		folder += string(filepath.ListSeparator) + more
	}
	threads := 1
	if p.Workers > 0 {
		threads = max(1, runtime.NumCPU()/p.Workers)
	}
	o.Local = append([]string{"PYTHONPATH=" + folder, fmt.Sprintf("OMP_NUM_THREADS=%d", threads), "TOKENIZERS_PARALLELISM=false", "PYTHONUNBUFFERED=1"}, passedOn...)
	return o, nil
}

// imports refuses a spec that is to be run, and would import modules that others can have put
// there: a spec may be this user's own in a folder that is not, by a link or as the folder is
// sticky. The same goes for the working directory, where Python looks too.
func (s *Spec) imports(t *Trust) error {
	if t.Looks || t.Given || !s.callsPython() {
		return nil
	}
	folder := s.folder()
	for _, dir := range []string{folder, "."} {
		real, err := trust.Folder(dir)
		switch {
		case fault.CodeOf(err) == fault.NotFound: // nor are there modules
		case err != nil:
			return fault.New(fault.Denied, "%s: a function in Python is looked for in %s, where others may put what is then run as you (%w): have the spec in a folder of your own and start from one, or give --trust", s.doc.file, dir, err)
		case dir == folder:
			s.modules = real
		}
	}
	return nil
}

// callsPython reports whether a step is a function in Python, also of a union or a mix.
func (s *Spec) callsPython() bool {
	var in func(src Source, steps []Step) bool
	in = func(src Source, steps []Step) bool {
		if m := src.Mix; m != nil && slices.ContainsFunc(m.Sources, func(x MixSource) bool { return in(x.Source, x.Steps) }) {
			return true
		}
		return slices.ContainsFunc(steps, func(st Step) bool {
			return st.Python != nil || slices.ContainsFunc(st.Union, func(b Branch) bool { return in(b.Source, b.Steps) })
		})
	}
	return in(s.Source, s.Steps)
}

// folder is that of the spec's file.
func (s *Spec) folder() string {
	if s.modules != "" {
		return s.modules
	}
	if s.doc == nil {
		return "."
	}
	return filepath.Dir(filepath.FromSlash(s.doc.file))
}

// schema is that of names and types; nil for none.
func (o Ordered) schema() (*arrow.Schema, error) {
	if o == nil {
		return nil, nil
	}
	var fs []arrow.Field
	for _, e := range o {
		t, err := expr.ParseType(e.Value)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Column: e.Key})
		}
		fs = append(fs, arrow.Field{Name: e.Key, Type: t, Nullable: true})
	}
	return arrow.NewSchema(fs, nil), nil
}
