package spec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/binio"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/io/textio"
	"github.com/penstock-data/penstock/ops"
)

// Dataset builds the plan: source and steps, and looks at the policy of the run, which is that of steps without one. No I/O. The
// error has all mistakes that are seen so.
func (s *Spec) Dataset() (*dataset.Dataset, error) {
	ds, err := s.build("", s.Source, s.Steps)
	if err == nil {
		err = ds.Err()
	}
	if err := inOrder(err, s.checkOnError()); err != nil {
		return nil, err
	}
	return ds, nil
}

// Mistakes is err, what is wrong with the spec as far as that is known without its columns, and
// what is wrong with them too, up to the first step whose columns err leaves open.
func (s *Spec) Mistakes(ctx context.Context, err error) error {
	if s.sound == nil || s.mute || s.blind {
		return err
	}
	schema, wrong := s.sound.Schema(ctx)
	if wrong != nil || !s.whole {
		return inOrder(err, wrong)
	}
	if s.Shards != nil && !s.isBroken("shards") {
		err = inOrder(err, s.checkShards(schema))
	}
	if s.Sink != nil && s.Sink.Count == nil && !s.isBroken("sink") {
		err = inOrder(err, s.checkSink(ctx, s.sound, schema))
	}
	if !s.isBroken("run") {
		err = inOrder(err, s.checkDeadLetter(ctx, s.sound))
	}
	return err
}

// isBroken reports whether something is wrong at a path that is written in the spec.
func (s *Spec) isBroken(path string) bool { return s.broken != nil && s.has(path) && s.broken(path) }

// checkOnError looks at the run's policy, and at whether anything can come to its dead letter.
func (s *Spec) checkOnError() error {
	o, at := s.Run.OnError, "run.on_error"
	if o == nil {
		return nil
	}
	err := o.policy().Check()
	if err == nil && o.DeadLetter != "" && o.Policy == "" && !skips(s.Steps) {
		err = fault.New(fault.Invalid, "on_error: dead_letter is for rows that are skipped, and no policy is given: policy: skip, or take it out")
	}
	if err == nil {
		return nil
	}
	for _, key := range []string{"retries", "max_rows", "max_rate", "dead_letter"} {
		if strings.Contains(err.Error(), key) && s.has(at+"."+key) {
			at += "." + key
			break
		}
	}
	return s.at(at, err)
}

// skips reports whether a step, also of a union, leaves out rows that it cannot process.
func skips(steps []Step) bool {
	return slices.ContainsFunc(steps, func(st Step) bool {
		return st.OnError != nil && st.OnError.Policy == "skip" || slices.ContainsFunc(st.Union, func(b Branch) bool { return skips(b.Steps) })
	})
}

// build makes the dataset of a source and steps, which are written below path: "" or ending in a point. Its error has the mistakes of all of them: in the place of what is wrong
// goes on something that is not.
func (s *Spec) build(path string, src Source, steps []Step) (*dataset.Dataset, error) {
	var errs []error
	wrong := func(err error) bool {
		errs = append(errs, err)
		return err != nil
	}
	whole := src != (Source{}) && !s.isBroken(path+"source") && !s.isBroken("run") // the columns are known
	var ds *dataset.Dataset
	if !whole {
		ds = dataset.Read(memio.Range(0))
	} else if src.Mix == nil {
		in, err := s.source(src)
		if wrong(err) {
			in = memio.Range(0)
		}
		ds = dataset.Read(in)
	} else {
		var err error
		if ds, err = s.mix(path+"source.mix", src.Mix); wrong(err) {
			ds = dataset.Read(memio.Range(0))
		}
	}
	ds = ds.WrapErrors(func(err error) error { return s.at(path+"source", err) })
	if wrong(ds.Err()) {
		ds, whole = dataset.Read(memio.Range(0)), false
	}
	sound := ds
	for i, st := range steps {
		at := fmt.Sprintf("%ssteps.%d", path, i)
		if s.isBroken(at) && st.Filter == nil && st.WithColumns == nil && st.Union == nil {
			ds, whole = ds.Limit(0), false // later ones keep their numbers
			continue
		}
		next, err := s.step(at, st, ds)
		if err == nil && st.OnError != nil {
			if st.OnError.DeadLetter != "" {
				wrong(s.at(at+".on_error.dead_letter", fault.New(fault.Invalid, "a run has one dead letter, for all its steps: give run.on_error.dead_letter")))
			}
			next = next.OnError(*st.OnError.policy())
		}
		if err == nil {
			next = next.WrapErrors(s.ofStep(at))
			err = next.Err()
		}
		if wrong(fault.Each(err, func(err error) error {
			if _, ok := errors.AsType[*located](err); ok { // of a step in a union
				return err
			}
			return s.ofStep(at)(fault.Wrap(err, fault.Place{Step: fmt.Sprintf("step %d", i+1)}))
		})) {
			next = ds.Limit(0)
			whole = whole && st.Filter != nil
		}
		whole = whole && (st.Filter != nil || !s.isBroken(at))
		if ds = next; whole {
			sound = ds
		}
	}
	if path == "" {
		s.sound, s.whole = sound, whole
	}
	return ds, fault.Join(errs...)
}

// source makes the source of its options, with the cache.
func (s *Spec) source(o Source) (driver.Source, error) {
	cache, err := s.Cache()
	if err != nil {
		return nil, err
	}
	blob := &blobio.Options{Cache: cache}
	switch {
	case o.Parquet != nil:
		x := *o.Parquet
		x.Blob = blob
		return parquetio.New(x), nil
	case o.CSV != nil:
		x := *o.CSV
		x.Blob = blob
		return csvio.New(x), nil
	case o.JSON != nil:
		x := *o.JSON
		x.Blob = blob
		return jsonio.New(x), nil
	case o.IPC != nil:
		x := *o.IPC
		x.Blob = blob
		return ipcio.New(x), nil
	case o.Text != nil:
		x := *o.Text
		x.Blob = blob
		return textio.New(x), nil
	case o.Binary != nil:
		x := *o.Binary
		x.Blob = blob
		return binio.New(x), nil
	}
	return memio.Range(o.Range.N), nil
}

// step applies the step that is written at path.
func (p *Spec) step(path string, s Step, ds *dataset.Dataset) (*dataset.Dataset, error) {
	switch {
	case s.Filter != nil:
		return ds.Filter(*s.Filter), nil
	case s.WithColumns != nil:
		entries := make([]string, len(s.WithColumns))
		for i, e := range s.WithColumns {
			entries[i] = strconv.Quote(e.Key) + " = " + e.Value
		}
		return ds.WithColumns(entries...), nil
	case s.Select != nil:
		return ds.Select(s.Select...), nil
	case s.Drop != nil:
		return ds.Drop(s.Drop...), nil
	case s.Rename != nil:
		return ds.Rename(s.Rename), nil
	case s.Cast != nil:
		return ds.Cast(s.Cast), nil
	case s.Limit != nil:
		return ds.Limit(*s.Limit), nil
	case s.Explode != nil:
		return ds.Explode(*s.Explode), nil
	case s.Map != nil:
		reg, err := ops.DefaultRegistry().Lookup(s.Map.Name)
		if err != nil {
			return nil, err
		}
		f, err := reg.Func(s.Map.Config)
		if err != nil {
			return nil, err
		}
		return ds.Apply(f, &dataset.MapOptions{BatchRows: s.Map.BatchRows}), nil
	case s.Exec != nil:
		schema, err := s.Exec.Schema.schema()
		if err != nil {
			return nil, err
		}
		return ds.Exec(dataset.ExecOptions{Command: s.Exec.Command, Env: s.Exec.Env, Workers: s.Exec.Workers, BatchRows: s.Exec.BatchRows,
			Timeout: time.Duration(s.Exec.Timeout), Flat: s.Exec.Flat, Schema: schema}), nil
	case s.Python != nil:
		o, err := s.Python.options(p.folder())
		if err != nil {
			return nil, err
		}
		return ds.Exec(o), nil
	case s.Sample != nil:
		return ds.Sample(s.Sample.Fraction, s.Sample.Seed), nil
	case s.Split != nil:
		if s.Split.Take < 0 || s.Split.Take >= len(s.Split.Fractions) {
			return nil, fault.New(fault.Invalid, "split: take %d of %d fractions: count from 0", s.Split.Take, len(s.Split.Fractions))
		}
		return ds.Split(dataset.SplitOptions{Fractions: s.Split.Fractions, Seed: s.Split.Seed, Key: s.Split.Key})[s.Split.Take], nil
	case s.Pack != nil:
		return s.Pack.apply(ds), nil
	}
	others, errs := make([]*dataset.Dataset, len(s.Union)), make([]error, len(s.Union))
	for i, b := range s.Union {
		others[i], errs[i] = p.build(fmt.Sprintf("%s.union.%d.", path, i), b.Source, b.Steps)
	}
	return ds.Union(others...), fault.Join(errs...)
}

func (o *OnError) policy() *ops.OnError {
	if o == nil {
		return nil
	}
	return &ops.OnError{Policy: o.Policy, Retries: o.Retries, MaxRows: o.MaxRows, MaxRate: o.MaxRate}
}

// Options are the run's.
func (s *Spec) Options() dataset.RunOptions {
	r := s.Run
	o := dataset.RunOptions{Memory: int64(r.Memory), CPUs: r.CPUs, Seed: r.Seed, Epoch: r.Epoch, Unordered: r.Ordered != nil && !*r.Ordered,
		StallTimeout: time.Duration(r.StallTimeout), CallTimeout: time.Duration(r.CallTimeout), OnError: r.OnError.policy()}
	if r.OnError != nil {
		o.DeadLetter = r.OnError.DeadLetter
	}
	if s.secrets != nil {
		o.Mask = s.secrets.Text
	}
	return o
}

// Check reports what is wrong with the sink and the shards for the rows of ds, which [Spec.Dataset] gave.
func (s *Spec) Check(ctx context.Context, ds *dataset.Dataset) error {
	schema, err := ds.Schema(ctx)
	if err != nil {
		return err
	}
	if err := driver.CheckReadable(schema, nil); err != nil {
		return s.at("source", err)
	}
	err = s.checkShards(schema)
	if s.Sink != nil && s.Sink.Count == nil {
		err = inOrder(err, s.checkSink(ctx, ds, schema))
	}
	err = inOrder(err, s.checkDeadLetter(ctx, ds))
	if s.Train != nil && s.Train.Storage != "" {
		err = inOrder(err, s.at("train.storage", blobio.Check(s.Train.Storage)))
	}
	return err
}

// checkDeadLetter reports what is wrong with the folder for skipped rows of ds.
func (s *Spec) checkDeadLetter(ctx context.Context, ds *dataset.Dataset) error {
	o := s.Run.OnError
	if o == nil || o.DeadLetter == "" {
		return nil
	}
	err := blobio.Check(o.DeadLetter)
	if err == nil && s.Sink != nil {
		for _, out := range s.Sink.outputs() {
			if blobio.Check(out.Path) == nil { // else that is what is said
				err = sink.Apart(out.Path, o.DeadLetter)
			}
		}
	}
	if err == nil {
		err = ds.CheckOutput(ctx, o.DeadLetter)
	}
	return s.at("run.on_error.dead_letter", err)
}

// checkSink reports what is wrong with the sink, one of files, for the rows of ds.
func (s *Spec) checkSink(ctx context.Context, ds *dataset.Dataset, schema *arrow.Schema) error {
	at := "sink." + s.Sink.kind()
	wrong := func(at string, err error) error { return s.at(at, fault.Wrap(err, fault.Place{Step: "sink"})) }
	out, enc, err := s.Sink.encoding()
	if err != nil {
		return wrong("sink", err)
	}
	if _, err := sink.New(sink.Options{Path: out.Path, Encoding: enc, Mode: out.Mode, TargetBytes: int64(out.TargetSize), Job: "check"}); err != nil {
		return wrong(at+".path", err)
	}
	apart := wrong(at+".path", ds.CheckOutput(ctx, out.Path))
	for i := range out.PartitionBy { // the first that is wrong beside those before it
		files, err := sink.CheckPartitions(schema, out.PartitionBy[:i+1])
		if err != nil {
			return inOrder(apart, wrong(fmt.Sprintf("%s.partition_by.%d", at, i), err))
		}
		if i == len(out.PartitionBy)-1 {
			schema = files
		}
	}
	return inOrder(apart, wrong("sink", enc.Check(schema)))
}

// kind is the key of the sink.
func (s *Sink) kind() string {
	switch {
	case s.Count != nil:
		return "count"
	case s.Parquet != nil:
		return "parquet"
	case s.CSV != nil:
		return "csv"
	case s.JSON != nil:
		return "json"
	}
	return "ipc"
}

// CheckSink refuses a spec that has nowhere to write to.
func (s *Spec) CheckSink() error {
	switch {
	case s.Sink != nil:
		return nil
	case s.Shards != nil:
		return fault.New(fault.Invalid, "the spec has shards and no sink: `penstock batches` gives their batches; to write files, add `sink: {parquet: {path: out/}}`")
	}
	return fault.New(fault.Invalid, "the spec has no sink: add `sink: {count: {}}` to measure, or `sink: {parquet: {path: out/}}`")
}

// Write runs the spec into its sink. For the count sink only Rows and Stats are set.
func (s *Spec) Write(ctx context.Context, ds *dataset.Dataset, o dataset.RunOptions) (*dataset.WriteResult, error) {
	if err := s.CheckSink(); err != nil {
		return nil, err
	}
	if s.Sink.Count != nil {
		st, err := ds.Drain(ctx, &o)
		return &dataset.WriteResult{Rows: st.RowsOut, Stats: st}, s.atOutput(err)
	}
	schema, err := ds.Schema(ctx)
	if err != nil {
		return nil, err
	}
	if err := inOrder(s.checkSink(ctx, ds, schema), s.checkDeadLetter(ctx, ds)); err != nil {
		return nil, err
	}
	out, enc, err := s.Sink.encoding()
	if err != nil {
		return nil, err
	}
	r, err := ds.Write(ctx, out.Path, enc, &dataset.WriteOptions{RunOptions: o, Mode: out.Mode, PartitionBy: out.PartitionBy,
		TargetBytes: int64(out.TargetSize), RunID: s.Run.ID})
	if o, ok := errors.AsType[*sink.OccupiedError](err); ok {
		how := make([]string, len(o.Modes))
		for i, m := range o.Modes {
			how[i] = fmt.Sprintf("--set sink.%s.mode=%s", s.Sink.kind(), m)
		}
		err = fault.New(fault.Exists, "%w; to set it: %s", err, strings.Join(how, ", or "))
	}
	return r, s.atOutput(err)
}

// atOutput says which line of the spec names the folder that an error is about: one that cannot be written to.
func (s *Spec) atOutput(err error) error {
	file := fault.PlaceOf(err).File
	if c := fault.CodeOf(err); file == "" || c != fault.Invalid && c != fault.Denied {
		return err
	}
	for kind, o := range s.Sink.outputs() {
		if within(file, o.Path) || within(file, sink.Records(o.Path)) {
			return s.at("sink."+kind+".path", err)
		}
	}
	if o := s.Run.OnError; o != nil && (within(file, o.DeadLetter) || within(file, sink.Records(o.DeadLetter))) {
		return s.at("run.on_error.dead_letter", err)
	}
	return err
}

// within reports whether a file is a folder that is written to, or lies in it. Both are as a user writes them.
func within(file, folder string) bool {
	clean := func(p string) string {
		p, _, _ = strings.Cut(p, "?")
		if p = strings.TrimPrefix(p, "file://"); !strings.Contains(p, "://") {
			p = path.Clean(p)
		}
		return strings.TrimSuffix(p, "/") + "/"
	}
	return folder != "" && strings.HasPrefix(clean(file), clean(folder))
}

// String is the sink for people: what it writes, where, and how, with what is not said as its default.
func (s *Sink) String() string {
	kind := s.kind()
	o, files := s.outputs()[kind]
	if !files {
		return kind + ": rows are computed and not kept"
	}
	size := o.TargetSize
	if size == 0 {
		size = sink.DefaultTargetBytes
	}
	text := fmt.Sprintf("%s: %s, files of %s, mode %s", kind, o.Path, exec.Bytes(int64(size)), cmp.Or(o.Mode, "error"))
	if len(o.PartitionBy) > 0 {
		text += ", in folders by " + strings.Join(o.PartitionBy, ", ")
	}
	return text
}

// outputs is the place of each sink of files, by the key of the sink.
func (s *Sink) outputs() map[string]Output {
	m := map[string]Output{}
	if s.Parquet != nil {
		m["parquet"] = s.Parquet.Output
	}
	if s.CSV != nil {
		m["csv"] = s.CSV.Output
	}
	if s.JSON != nil {
		m["json"] = s.JSON.Output
	}
	if s.IPC != nil {
		m["ipc"] = s.IPC.Output
	}
	return m
}

func (s *Sink) encoding() (Output, driver.Encoding, error) {
	switch {
	case s.Parquet != nil:
		e, err := parquetio.NewEncoding(&s.Parquet.EncodingOptions)
		return s.Parquet.Output, e, err
	case s.CSV != nil:
		e, err := csvio.NewEncoding(&s.CSV.EncodingOptions)
		return s.CSV.Output, e, err
	case s.JSON != nil:
		e, err := jsonio.NewEncoding(&s.JSON.EncodingOptions)
		return s.JSON.Output, e, err
	}
	e, err := ipcio.NewEncoding(&s.IPC.EncodingOptions)
	return s.IPC.Output, e, err
}
