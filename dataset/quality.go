package dataset

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/jsontext"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// LabelQuality says how well an order mixes the values of a column.
type LabelQuality struct {
	Steps   int64
	Labels  int     // distinct values
	Entropy float64 // of the labels of a global batch, in bits; mean over the steps
	Full    float64 // the same for batches of a full shuffle
}

const maxLabels = 1 << 16

// LabelEntropy measures the order of Shards(n, o): it reads one epoch of one column and
// compares the labels of its steps with those of a full shuffle.
func (d *Dataset) LabelEntropy(ctx context.Context, column string, n int, o *ShardOptions) (q LabelQuality, err error) {
	opt := o.or(shard.ModeWindow)
	j, err := d.shardJob(ctx, n, opt)
	if err != nil {
		return q, err
	}
	root, err := d.plan(ctx)
	if err != nil {
		return q, err
	}
	if sources, mix, err := ops.Sources(root); err != nil || mix != nil || sources[0].Pack != nil {
		return q, errorOr(err, fault.New(fault.Unsupported, "label entropy is of rows: ask for it without pack and mix"))
	}
	if opt.BatchPerRank > 0 {
		opt.GlobalBatch, opt.BatchPerRank = opt.BatchPerRank*n, 0
	}
	shuffle := j.Sources[0].Layout.Shuffle() // of all columns: the one alone would get larger windows
	opt.Options = shard.Options{GlobalBatch: opt.GlobalBatch, Shuffle: &shuffle, Tail: opt.Tail, Epochs: 1, StepsPerEpoch: opt.StepsPerEpoch}
	read, at := d, 0
	if parseSkips(root, opt.OnError) { // with one column fewer rows would be skipped
		is := root.Schema().FieldIndices(column)
		if is == nil {
			return q, fault.New(fault.Invalid, "unknown column %q%s", column, near.Column(column, root.Schema()))
		}
		at = is[0]
	} else {
		read = d.only(column)
	}
	its, err := read.Shards(ctx, 1, &opt)
	if err != nil {
		return q, err
	}
	defer func() { err = errorOr(err, its[0].Close()) }()
	all := map[string]int64{}
	for {
		b, err := its[0].Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return q, err
		}
		step := map[string]int64{}
		for i := range b.Real() {
			v := jsontext.Append(nil, b.Record().Column(at), i, valueBytes)
			if len(v) >= valueBytes {
				return q, fault.New(fault.Invalid, "column %q has values of %d bytes and more: not a label", column, valueBytes)
			}
			step[string(v)]++
		}
		q.Entropy += entropy(step, int64(b.Real()))
		q.Steps++
		for l, c := range step {
			all[l] += c
		}
		b.Release()
		if len(all) > maxLabels {
			return q, fault.New(fault.Invalid, "column %q has more than %d values: not a label", column, maxLabels)
		}
	}
	if q.Steps > 0 {
		q.Entropy /= float64(q.Steps)
		q.Labels, q.Full = len(all), fullEntropy(all, opt.GlobalBatch)
	}
	return q, nil
}

// only keeps one column, below a final limit: shards want that to stay the last step.
func (d *Dataset) only(column string) *Dataset {
	return d.then("select", func(in ops.Node, m ops.Meta) (ops.Node, error) {
		l, ok := in.(*ops.Limit)
		if !ok {
			return ops.Select(in, []string{column}, m)
		}
		p, err := ops.Select(l.In, []string{column}, m)
		if err != nil {
			return nil, err
		}
		return ops.NewLimit(p, l.N, l.Meta)
	})
}

func errorOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// entropy in bits of n labels.
func entropy(labels map[string]int64, n int64) float64 {
	counts := make([]int64, 0, len(labels))
	for _, c := range labels {
		counts = append(counts, c)
	}
	return entropyOf(counts, n)
}

func entropyOf(counts []int64, n int64) (h float64) {
	slices.Sort(counts) // the sum does not depend on the order of a map
	for _, c := range counts {
		if c > 0 {
			p := float64(c) / float64(n)
			h -= p * math.Log2(p)
		}
	}
	return h
}

// fullEntropy is the mean entropy of g labels drawn from all of them without putting back, over 200 draws.
func fullEntropy(all map[string]int64, g int) (h float64) {
	labels := make([]string, 0, len(all))
	for l := range all {
		labels = append(labels, l)
	}
	slices.Sort(labels)
	ends := make([]int64, len(labels)) // label i has the rows before ends[i]
	var n int64
	for i, l := range labels {
		n += all[l]
		ends[i] = n
	}
	g = int(min(int64(g), n))
	rng := rand.New(rand.NewPCG(1, 2))
	const draws = 200
	counts := make([]int64, len(labels))
	for range draws {
		clear(counts)
		drawn := make(map[int64]bool, g)
		for len(drawn) < g {
			row := rng.Int64N(n)
			if !drawn[row] {
				drawn[row] = true
				i, _ := slices.BinarySearchFunc(ends, row, func(end, row int64) int {
					if end <= row {
						return -1
					}
					return 1
				})
				counts[i]++
			}
		}
		h += entropyOf(slices.Clone(counts), int64(g))
	}
	return h / draws
}
