package spec

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// A function in Python is an exec step whose module is found from the spec's folder.
func TestPython(t *testing.T) {
	t.Setenv("PENSTOCK_PYTHON", "")
	t.Setenv("PYTHONPATH", "/more")
	const text = "version: 1\nsource: {range: {n: 5}}\nsteps: [{python: {function: my.module:Tokenizer.run, workers: 1, schema: {id: int64, tokens: list<int32>}, batch_rows: 7, flat: true, env: [A=b]}}]\n"
	options := func(file string, sets ...string) []string {
		t.Helper()
		s, err := parse(t, file, []byte(text), sets)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Dataset(); err != nil {
			t.Fatal(err)
		}
		o, err := s.Steps[0].Python.options(s.folder())
		if err != nil {
			t.Fatal(err)
		}
		if o.Workers != 1 || o.BatchRows != 7 || !o.Flat || !slices.Equal(o.Env, []string{"A=b"}) || o.Schema.NumFields() != 2 {
			t.Errorf("%+v", o)
		}
		threads := "OMP_NUM_THREADS=1"
		if n := runtime.NumCPU(); n > 1 {
			threads = "OMP_NUM_THREADS=" + string(rune('0'+n%10))
		}
		if !slices.Contains(o.Local, threads) && runtime.NumCPU() < 10 {
			t.Errorf("%q, want %s", o.Local, threads)
		}
		return append([]string{o.Program, o.Local[0]}, o.Command...)
	}
	here, err := filepath.Abs("specs")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sets []string
		want []string
	}{
		{nil, []string{"python3", "PYTHONPATH=" + here + ":/more", "python", "-m", "penstock.serve", "my.module:Tokenizer.run"}},
		{[]string{"steps.1.python.format=arrow", "steps.1.python.python=/opt/venv/bin/python"}, []string{"/opt/venv/bin/python", "PYTHONPATH=" + here + ":/more", "python", "-m", "penstock.serve", "--format", "arrow", "my.module:Tokenizer.run"}},
	} {
		if got := options("specs/s.yaml", c.sets...); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.sets, got, c.want)
		}
	}
	t.Setenv("PENSTOCK_PYTHON", "/usr/bin/python3.12")
	if got := options("specs/s.yaml"); got[0] != "/usr/bin/python3.12" {
		t.Errorf("interpreter %s", got[0])
	}

	for _, c := range []struct{ from, to, want string }{
		{"my.module:Tokenizer.run", "my.module.run", `s.yaml:3:18: step 1: function "my.module.run": write module:function`},
		{"my.module:Tokenizer.run", "'my/module.py:run'", "write module:function"},
		{"my.module:Tokenizer.run", "'--help:x'", "write module:function"},
		{"function: my.module:Tokenizer.run, ", "", `key "function" is missing`},
		{"workers: 1", "format: pandas", `s.yaml:3:62: steps[1].python.format: want one of numpy, arrow, not "pandas"`},
		{"list<int32>", "lists", `s.yaml:3:18: step 1, column "tokens"`},
		{"workers: 1", "workers: -1", "step 1 (python): workers, batch_rows and timeout must not be negative"},
	} {
		s, err := parse(t, "s.yaml", []byte(strings.Replace(text, c.from, c.to, 1)), nil)
		if err == nil {
			err = check(t, s)
		}
		if err == nil || fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.to, err, c.want)
		}
	}
}
