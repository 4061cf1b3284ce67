package dataset

import (
	"context"
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
)

// PackOptions say how lists of tokens become samples of one length.
type PackOptions struct {
	// Length is the tokens of every sample, 1 to 1<<24; required.
	Length int
	// Method is ops.PackConcat, the default: documents end to end, cut every Length tokens; or
	// ops.PackBestFit: whole documents, each where it leaves least room.
	Method string
	// Overlong says what becomes of documents longer than Length: ops.OverlongSplit, the
	// default, or ops.OverlongDrop.
	Overlong string
	PadID    int64  // fills what is left of a sample
	EOS      *int64 // behind every document that has tokens, and part of its length; nil: nothing is
	// LossMask adds a column that is 1 for tokens and 0 for padding.
	LossMask bool
	// MaskColumn takes the loss mask from a column of lists as long as the tokens', of
	// uint8, int8 or bool.
	MaskColumn string
}

// Pack makes samples of a fixed number of tokens from a column of lists, within each window of
// the shuffle: columns input_ids, segment_ids, position_ids, and loss_mask if asked for; others
// go away. The last verb of a dataset, or of a source of a [Mix]; for shards and iterators only.
func (d *Dataset) Pack(column string, o *PackOptions) *Dataset {
	if o == nil {
		o = &PackOptions{}
	}
	p := ops.PackSpec{Column: column, Length: o.Length, Method: o.Method, Overlong: o.Overlong, PadID: o.PadID, EOS: o.EOS,
		LossMask: o.LossMask, MaskColumn: o.MaskColumn}
	if o.EOS != nil {
		eos := *o.EOS // the caller's may change
		p.EOS = &eos
	}
	if err := p.Check(); err != nil {
		return d.fail("pack", err)
	}
	return d.then("pack", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.NewPack(in, p, m) })
}

// MixSource is a dataset in a [Mix].
type MixSource struct {
	Name string // unique; letters, digits, and _ . -
	Data *Dataset
	// Weight is how many samples the source gives in each block of as many as all weights sum to.
	Weight int64
	// Repeat lets the source go on with its next pass when it has ended, as often as the epoch needs; it then
	// never ends the epoch.
	Repeat bool
}

// MixOptions of [MixWith].
type MixOptions struct {
	// Stop says which of the sources that do not repeat end an epoch: ops.StopFirst, the default,
	// where the first of them has no sample to give; ops.StopAll when every one has ended
	// once, each being repeated until then.
	Stop string
	// Schedule are later weights, by sample of the epoch.
	Schedule []ops.WeightsAt
}

// Mix draws samples from several datasets by weights: at any point of an epoch each has given its share,
// to one sample. The epoch ends where a source has no more samples; see [MixWith] for other ends. Columns
// unify as in [Dataset.Union]. No verb may follow; for shards and iterators only.
func Mix(sources ...MixSource) *Dataset { return MixWith(MixOptions{}, sources...) }

// MixWith is [Mix] with options.
func MixWith(o MixOptions, sources ...MixSource) *Dataset {
	d := &Dataset{meta: ops.Meta{Verb: "mix", Pos: 1}}
	s := ops.MixSpec{Stop: o.Stop}
	for _, w := range o.Schedule {
		s.Schedule = append(s.Schedule, ops.WeightsAt{At: w.At, Weights: slices.Clone(w.Weights)})
	}
	for _, src := range sources {
		s.Names = append(s.Names, src.Name)
		s.Weights = append(s.Weights, src.Weight)
		s.Repeat = append(s.Repeat, src.Repeat)
		if src.Data == nil {
			continue
		}
		d.ins = append(d.ins, src.Data)
		d.meta.Pos = max(d.meta.Pos, src.Data.meta.Pos+1)
	}
	err := s.Check()
	d.names = s.Names
	for _, src := range sources {
		if src.Data == nil && err == nil {
			err = fault.New(fault.Invalid, "source %q has no data", src.Name)
		}
	}
	if err != nil {
		d.err = fault.Wrap(err, fault.Place{Step: d.meta.Step()})
	}
	d.step = func(_ context.Context, in []ops.Node, m ops.Meta) (ops.Node, error) { return ops.NewMix(in, s, m) }
	return d
}

// plain refuses a dataset that only shards and iterators can run.
func (d *Dataset) plain(ctx context.Context) error {
	n, err := d.plan(ctx)
	if err != nil {
		return err
	}
	return ops.Plain(n)
}
