package spec

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.yaml.in/yaml/v3"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// Shards is how samples are dealt to ranks.
type Shards struct {
	Ranks         int                     `json:"ranks,omitempty" doc:"consumers, each of which gets its part of every step; default 1" min:"1"`
	GlobalBatch   int                     `json:"global_batch,omitempty" doc:"samples of a step, all ranks together; this or batch_per_rank" min:"1"`
	BatchPerRank  int                     `json:"batch_per_rank,omitempty" doc:"samples of a step and rank; this or global_batch" min:"1"`
	Seed          *uint64                 `json:"seed,omitempty" doc:"keys the order, and random(); default: run.seed"`
	Shuffle       *Shuffle                `json:"shuffle,omitempty" doc:"the order; default: window"`
	Tail          string                  `json:"tail,omitempty" doc:"samples at the end of an epoch that do not fill a step: drop them (default), pad the step and mark the pads, or repeat the first samples" enum:"drop|pad|repeat"`
	Columns       map[string]TensorColumn `json:"columns,omitempty" doc:"batches are tensors of these columns; without it they are Arrow record batches of all columns"`
	WithLineage   bool                    `json:"with_lineage,omitempty" doc:"every sample says where it comes from: columns _source, _file, _row_group, _row, _epoch, _n of Arrow batches; an error of a batch names the row, where no documents are packed"`
	Prefetch      *int                    `json:"prefetch,omitempty" doc:"steps made ahead of the consumer; default 2" min:"0"`
	Epochs        int                     `json:"epochs,omitempty" doc:"how many the job has, also where it goes on from a state; default: as many as are asked for" min:"1"`
	StepsPerEpoch int64                   `json:"steps_per_epoch,omitempty" doc:"ends an epoch after so many steps; needed where every source of a mix repeats" min:"1"`
	Endless       bool                    `json:"endless,omitempty" doc:"go from epoch to epoch without an end in between"`
}

// Shuffle is the order; written as text it is its mode.
type Shuffle struct {
	_           struct{} `scalar:"mode"`
	Mode        string   `json:"mode,omitempty" doc:"window: splits dealt to lanes that are read side by side, rows permuted in windows (default); blocks: splits permuted; none: order of the files" enum:"window|blocks|none"`
	Lanes       int      `json:"lanes,omitempty" doc:"for window: lanes read side by side; default: from the sizes in the footers, at most 64" min:"1"`
	WindowRows  int64    `json:"window_rows,omitempty" doc:"rows permuted together; default: as many as take 4MiB" min:"1"`
	WindowBytes Size     `json:"window_bytes,omitempty" doc:"the same for text formats, whose rows are not counted; default 4MiB" min:"1"`
	Resident    Size     `json:"resident,omitempty" doc:"bounds open windows and row groups when the default lanes are chosen; default 512MiB" min:"1"`
}

// TensorColumn is a column as a tensor; written as text it is its dtype.
type TensorColumn struct {
	_        struct{} `scalar:"dtype"`
	Stack    []string `json:"stack,omitempty" doc:"columns of one number each: the tensor is these, side by side, and has the name of the key"`
	DType    string   `json:"dtype,omitempty" doc:"type of the elements; auto (default): the column's own; of a stack that of its columns, or float32 or float64, what holds them all; float is float32, double float64" enum:"auto|bool|int8|int16|int32|int64|uint8|uint16|uint32|uint64|float16|bfloat16|float32|float64|float|double"`
	Scale    *float64 `json:"scale,omitempty" doc:"values are multiplied by it before the cast; default 1"`
	Offset   float64  `json:"offset,omitempty" doc:"then this is added"`
	Lists    string   `json:"lists,omitempty" doc:"lists of varying length: pad to the longest of the rank's batch, pad_global to the longest of the step, or ragged: values and offsets" enum:"pad|pad_global|ragged"`
	Length   int      `json:"length,omitempty" doc:"of padded lists; a longer one is an error" min:"1"`
	Multiple int      `json:"multiple,omitempty" doc:"the length of padded lists is rounded up to a multiple of it" min:"1"`
	Fill     float64  `json:"fill,omitempty" doc:"value behind the end of a padded list; default 0"`
}

// Mix draws samples from several sources by weights.
type Mix struct {
	Sources  []MixSource `json:"sources" doc:"what is mixed" required:"true"`
	Stop     string      `json:"stop,omitempty" doc:"the epoch ends when the first source has no more samples (default), or when all have ended once, each being repeated until then" enum:"first|all"`
	Schedule []WeightsAt `json:"schedule,omitempty" doc:"other weights from given samples of the epoch on"`
}

// MixSource is one source of a mix.
type MixSource struct {
	Name   string `json:"name" doc:"in states and lineage: letters, digits, and _ . -" required:"true"`
	Weight int64  `json:"weight" doc:"samples that it gives of every so many as all weights sum to" required:"true" min:"0"`
	Repeat bool   `json:"repeat,omitempty" doc:"begin it anew when it ends, as often as the epoch needs"`
	Source Source `json:"source" doc:"where its rows come from" required:"true"`
	Steps  []Step `json:"steps,omitempty" doc:"what happens to them, in order; the last one may be pack"`
}

// WeightsAt is a change of weights.
type WeightsAt struct {
	At      int64   `json:"at" doc:"sample of the epoch, more than 0" required:"true" min:"1"`
	Weights []int64 `json:"weights" doc:"one for each source, in their order" required:"true"`
}

// Pack makes samples of a fixed number of tokens.
type Pack struct {
	Column     string `json:"column" doc:"lists of integers: the tokens of each document" required:"true"`
	Length     int    `json:"length" doc:"tokens of every sample" required:"true" min:"1"`
	Method     string `json:"method,omitempty" doc:"concat (default): documents end to end, cut every length tokens; best_fit: whole documents, each where it leaves least room" enum:"concat|best_fit"`
	Overlong   string `json:"overlong,omitempty" doc:"documents longer than length: split (default) or drop" enum:"split|drop"`
	PadID      int64  `json:"pad_id,omitempty" doc:"fills what is left of a sample; default 0"`
	EOS        *int64 `json:"eos,omitempty" doc:"token put behind every document that has tokens"`
	LossMask   bool   `json:"loss_mask,omitempty" doc:"adds column loss_mask: 1 for tokens, 0 for padding"`
	MaskColumn string `json:"mask_column,omitempty" doc:"takes loss_mask from this column: lists as long as the tokens'"`
}

// mix builds the mix at a path.
func (s *Spec) mix(path string, m *Mix) (*dataset.Dataset, error) {
	o := dataset.MixOptions{Stop: m.Stop}
	for _, w := range m.Schedule {
		o.Schedule = append(o.Schedule, ops.WeightsAt{At: w.At, Weights: w.Weights})
	}
	sources, errs := make([]dataset.MixSource, len(m.Sources)), make([]error, len(m.Sources))
	for i, x := range m.Sources {
		ds, err := s.build(fmt.Sprintf("%s.sources.%d.", path, i), x.Source, x.Steps)
		errs[i] = fault.Each(err, func(err error) error { return fault.New(fault.CodeOf(err), "source %q of the mix: %w", x.Name, err) })
		sources[i] = dataset.MixSource{Name: x.Name, Data: ds, Weight: x.Weight, Repeat: x.Repeat}
	}
	return dataset.MixWith(o, sources...), fault.Join(errs...)
}

func (p *Pack) apply(ds *dataset.Dataset) *dataset.Dataset {
	return ds.Pack(p.Column, &dataset.PackOptions{Length: p.Length, Method: p.Method, Overlong: p.Overlong, PadID: p.PadID, EOS: p.EOS,
		LossMask: p.LossMask, MaskColumn: p.MaskColumn})
}

// ShardOptions are the number of ranks and the options of the shards section.
func (s *Spec) ShardOptions() (ranks int, o *dataset.ShardOptions, err error) {
	h := s.Shards
	if h == nil {
		return 0, nil, fault.New(fault.Invalid, "the spec has no shards: add `shards: {global_batch: 256}`, or give --set shards.global_batch=256")
	}
	o = &dataset.ShardOptions{RunOptions: s.Options(), Options: shard.Options{
		GlobalBatch: h.GlobalBatch, BatchPerRank: h.BatchPerRank, Tail: shard.Tail(h.Tail), Form: *h.Form(), Lineage: h.WithLineage,
		Epochs: h.Epochs, StepsPerEpoch: h.StepsPerEpoch, Endless: h.Endless, ID: s.Run.ID,
	}}
	if h.Seed != nil {
		o.Seed = *h.Seed
	}
	if p := h.Prefetch; p != nil {
		if o.Prefetch = *p; *p == 0 {
			o.Prefetch = -1
		}
	}
	if f := h.Shuffle; f != nil {
		o.Shuffle = &shard.Shuffle{Mode: shard.Mode(f.Mode), Lanes: f.Lanes, WindowRows: f.WindowRows, WindowBytes: int64(f.WindowBytes), Resident: int64(f.Resident)}
	}
	return max(h.Ranks, 1), o, nil
}

// Form is that of the batches.
func (h *Shards) Form() *shard.Form {
	if h.Columns == nil {
		return &shard.Form{}
	}
	f := &shard.Form{Tensors: true, Columns: map[string]shard.Column{}}
	for name, c := range h.Columns {
		x := shard.Column{Stack: c.Stack, Offset: c.Offset, Lists: shard.Lists(c.Lists), Length: c.Length, Multiple: c.Multiple, Fill: c.Fill}
		if c.DType != "" {
			x.DType, _ = shard.ParseDType(c.DType) // the enum has no other names
		}
		if c.Scale != nil {
			x.Scale = *c.Scale
		}
		f.Columns[name] = x
	}
	return f
}

// checkShards reports whether rows of this schema can be given as the shards section says.
func (s *Spec) checkShards(schema *arrow.Schema) error {
	if s.Shards == nil {
		return nil
	}
	c, err := shard.NewCollator(schema, *s.Shards.Form(), memory.DefaultAllocator)
	if err == nil && shard.Tail(s.Shards.Tail) == shard.TailPad {
		err = c.CheckMask()
	}
	return s.AtShards(fault.Wrap(err, fault.Place{Step: "shards"}))
}

// rules reports what the keys of a spec say together that cannot be, at its place in root.
func (c *checker) rules(root *yaml.Node, s *Spec) {
	c.sourceRules(root, "", s.Source, s.Steps)
	c.trainRules(root, s)
	if s.Run.CPUs < 0 {
		c.add(find(root, "run.cpus"), "run.cpus", "must not be negative; leave it out to use all")
	}
	if s.Sink != nil {
		for name, o := range s.Sink.outputs() {
			if o.Path == "" {
				c.add(find(root, "sink."+name+".path"), "sink."+name+".path", "must not be empty: name a folder or a bucket URL")
			}
			c.lasting(root, "sink."+name+".path", o.Path)
		}
	}
	if o := s.Run.OnError; o != nil {
		c.lasting(root, "run.on_error.dead_letter", o.DeadLetter)
	}
	h := s.Shards
	if h == nil {
		return
	}
	at := func(path string) *yaml.Node { return find(root, path) }
	switch both, none := h.GlobalBatch > 0 && h.BatchPerRank > 0, h.GlobalBatch == 0 && h.BatchPerRank == 0; {
	case both:
		c.add(at("shards.batch_per_rank"), "shards", "global_batch and batch_per_rank are both given: give one of them")
	case none:
		c.add(at("shards"), "shards", "how large is a batch? Give global_batch (samples of a step, all ranks together) or batch_per_rank")
	case h.GlobalBatch > 0 && h.GlobalBatch < h.Ranks:
		c.add(at("shards.global_batch"), "shards.global_batch", "%d is less than one sample for each of %d ranks", h.GlobalBatch, h.Ranks)
	}
	if h.Columns != nil && len(h.Columns) == 0 {
		c.add(at("shards.columns"), "shards.columns", "must name at least one tensor; leave it out for Arrow record batches of all columns")
	}
	for name, x := range h.Columns {
		if x.Scale != nil && *x.Scale == 0 {
			c.add(at("shards.columns"), "shards.columns."+name+".scale", "must not be 0: every value would be the offset")
		}
	}
	if s.Run.Ordered != nil && !*s.Run.Ordered {
		c.add(at("run.ordered"), "run.ordered", "shards have an order: leave it out")
	}
	c.limits(root, "", s, s.Source, s.Steps)
}

// sourceRules checks what may follow mix and pack. at is the path of what holds source and steps.
func (c *checker) sourceRules(root *yaml.Node, at string, src Source, steps []Step) {
	if src.Mix != nil && len(steps) > 0 {
		c.add(find(root, at+"steps"), at+"steps", "no step may follow a mix: give its sources steps of their own")
	}
	for i, st := range steps {
		path := fmt.Sprintf("%ssteps.%d", at, i)
		if st.Pack != nil && i < len(steps)-1 {
			c.add(find(root, path), brackets(path), "pack must be the last step: no step may follow it")
		}
		for k, b := range st.Union {
			path := fmt.Sprintf("%s.union.%d.", path, k)
			if b.Source.Mix != nil {
				c.add(find(root, path+"source"), brackets(path+"source"), "a mix cannot be part of a union")
			}
			if n := len(b.Steps); n > 0 && b.Steps[n-1].Pack != nil {
				c.add(find(root, path+"steps"), brackets(path+"steps"), "pack after the union, not in it")
			}
			c.sourceRules(root, path, b.Source, b.Steps)
		}
	}
	if src.Mix == nil {
		return
	}
	for k, m := range src.Mix.Sources {
		path := fmt.Sprintf("%ssource.mix.sources.%d.", at, k)
		if m.Source.Mix != nil {
			c.add(find(root, path+"source"), brackets(path+"source"), "a mix cannot be part of a mix: give all sources to one")
		}
		c.sourceRules(root, path, m.Source, m.Steps)
	}
	for k, w := range src.Mix.Schedule {
		if len(w.Weights) != len(src.Mix.Sources) {
			path := fmt.Sprintf("%ssource.mix.schedule.%d.weights", at, k)
			c.add(find(root, path), brackets(path), "%d weights for %d sources", len(w.Weights), len(src.Mix.Sources))
		}
	}
}

// limits refuses limits that shards cannot keep.
func (c *checker) limits(root *yaml.Node, at string, s *Spec, src Source, steps []Step) {
	for i, st := range steps {
		path := fmt.Sprintf("%ssteps.%d", at, i)
		last := at == "" && i == len(steps)-1
		if f := s.Shards.Shuffle; st.Limit != nil && !(last && f != nil && f.Mode == string(shard.ModeNone)) {
			c.add(find(root, path), brackets(path), "limit: with shards only as the last step, with `shuffle: none`: in another order there are no first rows; use sample for a fraction of them")
		}
		for k, b := range st.Union {
			c.limits(root, fmt.Sprintf("%s.union.%d.", path, k), s, b.Source, b.Steps)
		}
	}
	if src.Mix != nil {
		for k, m := range src.Mix.Sources {
			c.limits(root, fmt.Sprintf("%ssource.mix.sources.%d.", at, k), s, m.Source, m.Steps)
		}
	}
}
