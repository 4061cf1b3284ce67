package shard

// Options say what ranks get: order, batch sizes, form. The zero value of every
// field is its default, but that exactly one of GlobalBatch and BatchPerRank is set.
type Options struct {
	// Ranks that are read in this process; nil: all of them. Ranks that are not
	// read cost nothing.
	Ranks []int
	// GlobalBatch is the samples of a step, of all ranks together. It need not divide
	// by the ranks: the first get one more.
	GlobalBatch int
	// BatchPerRank is the samples of a step and rank.
	BatchPerRank int
	// Shuffle; nil: mode window with defaults for shards, none for a single iterator.
	Shuffle *Shuffle
	Tail    Tail
	Form    Form
	// Lineage adds to every batch where its samples come from; see [Lineage].
	Lineage bool
	// Prefetch is how many steps are made ahead of the consumer; 0 means 2, negative none.
	Prefetch int
	// Endless goes from epoch to epoch without io.EOF in between.
	Endless bool
	// Epochs is how many the job has, from RunOptions.Epoch on, whatever epoch State is of; 0: as many as are asked for.
	Epochs int
	// StepsPerEpoch ends an epoch after so many steps; required where every source
	// of a mix repeats. 0: when the data ends.
	StepsPerEpoch int64
	// ID is part of the plan's fingerprint: another one is another job. Change it when code changes that the plan
	// cannot see, such as the program of an exec step.
	ID string
	// State to go on from; nil: the beginning of the epoch.
	State *State
	// Ledger that was written with State, if any: what is read from there on is added to it, so that it knows the whole epoch.
	Ledger *Ledger
	// Nodes divides the job among several processes; nil: this one reads all. See [Nodes].
	Nodes *Nodes
}

// Shuffle is the order of samples. It is part of a job's plan: another one is
// another order.
type Shuffle struct {
	Mode Mode
	// Lanes are read side by side, a window of each; mode window only. 0: from the
	// sizes in the footers, at most 64. See docs/order.md.
	Lanes int
	// WindowRows is how many rows are permuted together; 0: as many as take 4 MiB.
	// For text formats, whose rows are not counted, WindowBytes takes its place (4 MiB).
	WindowRows  int64
	WindowBytes int64
	// Resident bounds what open windows and row groups may take, in bytes, when the
	// default lanes are chosen; 0: 512 MiB.
	Resident int64
}

// Mode of a shuffle.
type Mode string

const (
	ModeWindow Mode = "window" // lanes of permuted splits, rows permuted in windows (default of shards)
	ModeBlocks Mode = "blocks" // splits permuted, rows in order
	ModeNone   Mode = "none"   // canonical order (default of one iterator)
)

// Tail says what becomes of the samples at the end of an epoch that do not fill a step.
type Tail string

const (
	TailDrop   Tail = "drop"   // left out (default)
	TailPad    Tail = "pad"    // given, filled up with empty rows (zeros, nulls, empty lists) that a mask marks
	TailRepeat Tail = "repeat" // given, filled up with the first samples of the epoch
)

// Form of batches: Arrow record batches, or one tensor per column.
type Form struct {
	Tensors bool
	// Columns that become tensors, and how, by name of the tensor; nil: all columns, as they are. In Arrow
	// form it must be nil.
	Columns map[string]Column
}

// Column says how a column becomes a tensor.
type Column struct {
	// Stack makes one tensor [rows, columns] of the columns that it names, in their order, each a number per row; the
	// tensor's name is that of the entry, which need be no column's. A DType of Auto is theirs, if they are all of one, or else
	// float32, if that holds each of their values exactly, or float64. Nil: the column of the entry's name.
	Stack  []string
	DType  DType   // element type; Auto: the column's own
	Scale  float64 // values are multiplied by it, 0 meaning 1, in float64
	Offset float64 // and this is added, before the cast
	// Lists says what becomes of lists of varying length; "" refuses them. Lists of a
	// fixed size are an inner dimension.
	Lists Lists
	// Length of Pad: fixed; a longer list is an error. 0: the longest, rounded up to a
	// multiple of Multiple.
	Length, Multiple int
	Fill             float64 // value behind the end of a list
}

// Lists is a way to make a tensor of lists.
type Lists string

const (
	ListsPad       Lists = "pad"        // to the longest list of the rank's batch
	ListsPadGlobal Lists = "pad_global" // to the longest list of the step, all ranks
	ListsRagged    Lists = "ragged"     // two tensors: all values, and "<name>.offsets" (int64, rows+1)
)
