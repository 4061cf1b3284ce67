package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/io/fileset"
)

// load reads a spec that is run, or only looked at. A budget that the machine does not have is
// warned of. The spec beside an error, if there is one, is for Mistakes only.
func load(cmd *cobra.Command, path string, sets []string, p *permission, looks bool) (*spec.Spec, error) {
	t, err := p.trust(looks)
	if err != nil {
		return nil, err
	}
	s, err := spec.Load(path, sets, t)
	if f := formatOf(path); err != nil && !errors.Is(err, os.ErrNotExist) && f != "" && f != "json" && f != "text" {
		return nil, usageError{fault.New(fault.Invalid, "%s is data, and no spec: penstock show prints its first rows", path)}
	}
	if err != nil {
		return s, usageError{err}
	}
	if have := exec.AvailableMemory(); int64(s.Run.Memory) > have {
		fmt.Fprintf(cmd.ErrOrStderr(), "penstock: warning: run.memory is %s, but only %s are available here: the system may end the process\n",
			exec.Bytes(int64(s.Run.Memory)), exec.Bytes(have))
	}
	s.OnWarning(func(err error) { fmt.Fprintln(cmd.ErrOrStderr(), "penstock: warning:", err) })
	return s, nil
}

// target is what show, schema, count and explain look at: a spec, or plain paths.
type target struct {
	sets   []string
	format string
	may    permission
	spec   *spec.Spec // set by open; nil for paths
}

func (t *target) flags(c *cobra.Command) {
	c.Flags().StringArrayVar(&t.sets, "set", nil, "override a key of the spec: `key=value`")
	c.Flags().StringVar(&t.format, "format", "", "format of the paths: parquet, csv, json, ipc, text or binary; default: by extension")
	t.may.flags(c)
}

// open opens what is looked at; looks: no step of it is run.
func (t *target) open(cmd *cobra.Command, a []string, looks bool) (*dataset.Dataset, dataset.RunOptions, error) {
	if len(a) == 1 && t.format == "" && (strings.HasSuffix(a[0], ".yaml") || strings.HasSuffix(a[0], ".yml")) {
		s, err := load(cmd, a[0], t.sets, &t.may, looks)
		if err == nil {
			err = sighted(s)
		}
		if err != nil {
			return nil, dataset.RunOptions{}, err
		}
		tellWithheld(cmd, s)
		t.spec = s
		ds, err := s.Dataset()
		o := s.Options()
		o.DeadLetter = "" // who looks writes nothing
		return ds, o, err
	}
	if len(t.sets) > 0 {
		return nil, dataset.RunOptions{}, usageError{fault.New(fault.Invalid, "--set needs a spec")}
	}
	format := t.format
	if format == "" {
		var err error
		if format, err = guess(cmd, a); err != nil {
			return nil, dataset.RunOptions{}, err
		}
	}
	read, ok := map[string]func(...string) *dataset.Dataset{"parquet": dataset.ReadParquet, "csv": dataset.ReadCSV, "json": dataset.ReadJSON,
		"ipc": dataset.ReadIPC, "text": dataset.ReadText, "binary": dataset.ReadBinary}[format]
	if !ok {
		return nil, dataset.RunOptions{}, usageError{fault.New(fault.Invalid, "no format %q; have parquet, csv, json, ipc, text, binary", format)}
	}
	return read(a...), dataset.RunOptions{}, nil
}

var extensions = map[string]string{".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
	".arrow": "ipc", ".ipc": "ipc", ".feather": "ipc", ".arrows": "ipc", ".txt": "text", ".text": "text", ".log": "text"}

func formatOf(name string) string {
	name = fileset.Uncompressed(name)
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return extensions[strings.ToLower(name[i:])]
	}
	return ""
}

// guess finds the one format of the paths, by their extensions, or those of the files that they give.
func guess(cmd *cobra.Command, paths []string) (string, error) {
	found, of := "", ""
	is := func(format, path string) error {
		if format != "" && found != "" && format != found {
			return usageError{fault.New(fault.Invalid, "files of several formats, %s (%s) and %s (%s) among them: give --format, or a glob", found, of, format, path)}
		}
		if found == "" {
			found, of = format, path
		}
		return nil
	}
	for _, path := range paths {
		name, _, _ := strings.Cut(path, "?")
		if f := formatOf(name); f != "" {
			if err := is(f, path); err != nil {
				return "", err
			}
			continue
		}
		set, err := fileset.List(cmd.Context(), &fileset.Options{Paths: []string{path}, Extensions: []string{""}}, nil, nil)
		if err != nil {
			return "", err
		}
		text := "" // a README beside the data, unless there is nothing else
		for _, file := range set.Files {
			f := formatOf(file.Info.Key)
			if f == "text" {
				text = file.Path
			} else if err = is(f, file.Path); err != nil {
				break
			}
		}
		if found == "" && text != "" {
			err = is("text", text)
		}
		set.Close()
		if err != nil {
			return "", err
		}
	}
	if found == "" {
		return "", usageError{fault.New(fault.Invalid, "%s: the extension does not tell the format: give --format parquet, csv, json, ipc, text or binary", paths[0])}
	}
	return found, nil
}

func showCommand() *cobra.Command {
	var t target
	var n int64
	c := &cobra.Command{
		Use:   "show [-n ROWS] SPEC | PATH...",
		Short: "Print the first rows, reading no more than that takes",
		Example: `  penstock show examples/data/flights/
  penstock show -n 3 'examples/data/**/*.parquet'
  penstock show examples/flights.yaml   # what its last step gives`,
		Args: args("SPEC or PATH", 1, math.MaxInt),
		RunE: func(cmd *cobra.Command, a []string) error {
			if n < 1 {
				return usageError{fault.New(fault.Invalid, "-n must be at least 1")}
			}
			ds, o, err := t.open(cmd, a, false)
			if err != nil {
				return err
			}
			return ds.Show(cmd.Context(), cmd.OutOrStdout(), n, &o)
		},
	}
	t.flags(c)
	c.Flags().Int64VarP(&n, "rows", "n", 10, "how many rows")
	return c
}

func schemaCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:   "schema SPEC | PATH...",
		Short: "Print the columns and their types, from metadata; of text from a sample",
		Example: `  penstock schema examples/data/flights/
  penstock schema examples/flights.yaml   # of the rows that its last step gives`,
		Args: args("SPEC or PATH", 1, math.MaxInt),
		RunE: func(cmd *cobra.Command, a []string) error {
			ds, _, err := t.open(cmd, a, true)
			if err != nil {
				return err
			}
			s, err := ds.Schema(cmd.Context())
			if err != nil {
				return err
			}
			return dataset.FprintSchema(cmd.OutOrStdout(), s)
		},
	}
	t.flags(c)
	return c
}

func countCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:   "count SPEC | PATH...",
		Short: "Count rows; from metadata where it holds the number",
		Example: `  penstock count 'examples/data/**/*.parquet'
  penstock count examples/flights.yaml`,
		Args: args("SPEC or PATH", 1, math.MaxInt),
		RunE: func(cmd *cobra.Command, a []string) error {
			ds, o, err := t.open(cmd, a, false)
			if err != nil {
				return err
			}
			p := newProgress(term.Err, false)
			o.Observe = p.start
			n, err := ds.Count(cmd.Context(), &o)
			p.stop()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
			return err
		},
	}
	t.flags(c)
	return c
}

func explainCommand() *cobra.Command {
	var t target
	var analyze bool
	var label string
	c := &cobra.Command{
		Use:   "explain [--analyze] SPEC | PATH...",
		Short: "Print the plan: what goes to the source, what runs, what it costs",
		Long: `Explain prints the plan as written, as rewritten, and as it will run: filters and columns that
go to the source, row groups kept of total, expected bytes and memory; and the sink. Of a spec with shards it is the plan
that they run, which reads the columns that become tensors; and it prints how they are dealt: lanes, windows, what they keep in memory and how well they shuffle; and the tensors of a batch, with their dtype, shape,
columns and bytes. Where the spec has a train section too, the ranks are its workers. With --label it reads an epoch of a column and compares how mixed its values are in a step with those of a full shuffle. With --analyze it also runs the
plan, throws its rows away, and prints time, rows, bytes and waiting of every operator, and the bottleneck.`,
		Example: `  penstock explain examples/flights.yaml
  penstock explain --analyze examples/flights.yaml
  penstock explain --label late examples/shards.yaml`,
		Args: args("SPEC or PATH", 1, math.MaxInt),
		RunE: func(cmd *cobra.Command, a []string) error {
			ds, o, err := t.open(cmd, a, !analyze && label == "")
			if err != nil {
				return err
			}
			if label != "" && (t.spec == nil || t.spec.Shards == nil) {
				return usageError{fault.New(fault.Invalid, "--label is for a spec with shards")}
			}
			if t.spec != nil {
				if err := t.spec.Check(cmd.Context(), ds); err != nil {
					return err
				}
			}
			p := newProgress(term.Err, false)
			o.Observe = p.start
			x := &dataset.ExplainOptions{RunOptions: o, Analyze: analyze}
			if t.spec != nil && t.spec.Shards != nil {
				x.Form = t.spec.Shards.Form()
			}
			text, err := ds.Explain(cmd.Context(), x)
			p.stop()
			fmt.Fprint(cmd.OutOrStdout(), text)
			if t.spec != nil && t.spec.Run.Cache != nil && err == nil {
				c := t.spec.Run.Cache
				fmt.Fprintf(cmd.OutOrStdout(), "cache\n  %s: at most %s of what buckets give\n", c.Dir, exec.Bytes(int64(c.Max)))
			}
			if err == nil && t.spec != nil {
				explainSink(cmd.OutOrStdout(), t.spec)
			}
			if err != nil || t.spec == nil || t.spec.Shards == nil {
				return err
			}
			return explainShards(cmd, t.spec, ds, label)
		},
	}
	t.flags(c)
	c.Flags().BoolVar(&analyze, "analyze", false, "run it and show what was measured")
	c.Flags().StringVar(&label, "label", "", "of shards: read an epoch of this `column`, and say how well its values are mixed")
	return c
}

func validateCommand() *cobra.Command {
	var sets []string
	var schema bool
	var may permission
	c := &cobra.Command{
		Use:   "validate SPEC",
		Short: "Check a spec, its columns and its types, without reading data",
		Long: `Validate checks a spec as far as that goes without reading rows, but for a sample of text: keys and values, the files that
there are, their columns, every step and its types, the sink, and how the shards are laid out. What is wrong is printed with
file:line:column, or with its --set. Lanes and windows over text that cannot be entered in the middle (compressed, JSON
arrays, line breaks in fields) are left unchecked: their rows would have to be counted.

A spec that others wrote may be looked at: nothing of it is run, no reference is read, and no server asked. What is left out so is printed (docs/trust.md).

` + exitHelp,
		Example: `  penstock validate examples/flights.yaml
  penstock validate --json-schema > spec.schema.json   # for editors`,
		Args: func(cmd *cobra.Command, a []string) error {
			if schema {
				return args("", 0, 0)(cmd, a)
			}
			return args("SPEC", 1, 1)(cmd, a)
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			if schema {
				_, err := cmd.OutOrStdout().Write(spec.JSONSchema())
				return err
			}
			s, err := load(cmd, a[0], sets, &may, true)
			if err != nil && s != nil {
				err = usageError{s.Mistakes(cmd.Context(), err)}
			}
			if err != nil {
				return err
			}
			tellWithheld(cmd, s)
			what, err := checkSpec(cmd.Context(), s, s.Train)
			if err != nil {
				return err
			}
			if s.Train != nil {
				if err := checkData(cmd, a[0], sets, &may); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s\n", a[0], what)
			return err
		},
	}
	c.Flags().StringArrayVar(&sets, "set", nil, "override a key of the spec: `key=value`")
	c.Flags().BoolVar(&schema, "json-schema", false, "print the JSON Schema of specs instead")
	may.flags(c)
	return c
}

// tellWithheld says what is left out of a spec that is not trusted with it.
func tellWithheld(cmd *cobra.Command, s *spec.Spec) {
	for _, err := range fault.All(s.Withheld()) {
		fmt.Fprintln(cmd.ErrOrStderr(), "penstock: left out:", err)
	}
}

// checkSpec reports what is wrong with a spec as far as that is known without reading rows: what comes out, and what was left unchecked. In a
// run, its batches are dealt to workers.
func checkSpec(ctx context.Context, s *spec.Spec, run *spec.Train) (what string, err error) {
	if s.Mute() {
		return "as far as that is known without its references: files, columns and types are not checked", nil
	}
	ds, err := s.Dataset()
	if err != nil {
		return "", s.Mistakes(ctx, err)
	}
	if s.Blind() {
		return "as far as that is known without its data: files, columns and types are not checked", nil
	}
	sch, err := ds.Schema(ctx)
	if err != nil {
		return "", err
	}
	what = some(int64(sch.NumFields()), "column") + " out"
	if err := s.Check(ctx, ds); err != nil || s.Shards == nil {
		return what, err
	}
	ranks, o, err := s.ShardOptions()
	if err != nil {
		return "", err
	}
	if run != nil {
		ranks = run.Ranks()
	}
	laid, err := ds.CheckShards(ctx, ranks, o)
	if err != nil {
		return "", s.AtShards(err)
	}
	if !laid {
		what += "; lanes and windows are not checked, as rows must be counted for them"
	}
	return what, nil
}

// checkData checks the further data sets of a run.
func checkData(cmd *cobra.Command, path string, sets []string, may *permission) error {
	t, err := may.trust(true)
	if err != nil {
		return err
	}
	o, s, err := spec.LoadOriginal(path, sets, t)
	if err != nil {
		return usageError{err}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Train.Data)) {
		of, err := o.DataSpec(name, t)
		if err == nil {
			tellWithheld(cmd, of)
			_, err = checkSpec(cmd.Context(), of, s.Train)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
