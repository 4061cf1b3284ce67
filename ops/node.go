// Package ops holds the logical plan: sealed, immutable nodes with resolved
// schemas, rewrite rules, the plan codec and the registry of named functions.
//
// A plan is a tree of nodes, leaves first: [Read] at the leaves, then narrow
// steps. Nodes are made by constructors that check everything that can be
// checked without data; a node that exists is well-typed. Errors name the step
// as the user counts: `step 3 (filter): unknown column "txt"; did you mean "text"?; have id, text, label`.
package ops

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops/expr"
)

// Node is one step of a logical plan. Immutable.
type Node interface {
	fmt.Stringer // one line, for Explain and golden tests: `filter fare > 0.0`
	// Step is the user's position: `step 3 (filter)`; a read is `source (parquet)`.
	Step() string
	Inputs() []Node
	// WithInputs returns the same step over other inputs, checked again.
	WithInputs(in []Node) (Node, error)
	Schema() *arrow.Schema
	Props() Props
	logical()
}

// Props are what rules may rely on.
type Props struct {
	KeepsRows bool // exactly one row out for each row in, in order
	OneToAny  bool // rows are dropped or multiplied (filter, explode, flat map)
	Cut       bool // needs the canonical order of everything before it (limit)
	Random    bool // reads the position of rows: must see the same rows at the same step
}

// Meta is common to all nodes.
type Meta struct {
	Pos  int    // ordinal of the verb in the user's chain, from 1; 0 for sources
	Verb string // as the user wrote it: "filter", "with_columns"
	// OnError is the policy of this step as written by the user; nil: the run's.
	OnError *OnError
}

// shards is the step that leaves out the columns which shards do not need.
var shards = Meta{Verb: "shards"}

// OnError mirrors exec.OnError in plans.
type OnError struct {
	Policy  string  `json:"policy,omitempty" yaml:"policy"` // fail, skip or retry
	Retries int     `json:"retries,omitempty" yaml:"retries"`
	MaxRows int64   `json:"max_rows,omitempty" yaml:"max_rows"`
	MaxRate float64 `json:"max_rate,omitempty" yaml:"max_rate"`
}

// Check reports what is wrong with the values.
func (o *OnError) Check() error {
	switch {
	case o == nil:
		return nil
	case o.Policy != "" && o.Policy != "fail" && o.Policy != "skip" && o.Policy != "retry":
		return fault.New(fault.Invalid, "on_error policy %q; have fail, skip, retry", o.Policy)
	case o.Retries < 0:
		return fault.New(fault.Invalid, "on_error: retries must not be negative")
	case o.MaxRows < 0:
		return fault.New(fault.Invalid, "on_error: max_rows must not be negative")
	case !(o.MaxRate >= 0 && o.MaxRate <= 1):
		return fault.New(fault.Invalid, "on_error: max_rate must be between 0 and 1, have %v", o.MaxRate)
	case o.Policy == "" && o.MaxRows > 0:
		return fault.New(fault.Invalid, "on_error: max_rows is for policy skip, and no policy is given")
	case o.Policy == "" && o.MaxRate > 0:
		return fault.New(fault.Invalid, "on_error: max_rate is for policy skip, and no policy is given")
	}
	return nil
}

// Step gives "step 3 (filter)".
func (m Meta) Step() string {
	if m == shards {
		return m.Verb
	}
	if m.Pos == 0 {
		return "source (" + m.Verb + ")"
	}
	return fmt.Sprintf("step %d (%s)", m.Pos, m.Verb)
}

// meta lets rules read the Meta of any node.
func (m Meta) meta() Meta { return m }

// place is where errors of this step happen.
func (m Meta) place() fault.Place { return fault.Place{Step: m.Step()} }

// follows checks what every step needs: a policy that makes sense, and inputs that steps may
// follow.
func (m Meta) follows(in ...Node) error {
	if err := m.OnError.Check(); err != nil {
		return fault.Wrap(err, m.place())
	}
	for _, n := range in {
		switch n.(type) {
		case *Pack:
			return m.wrong("steps come before pack: put this one before %s", n.Step())
		case *Mix:
			return m.wrong("steps come before mix: put them into its sources")
		}
	}
	return nil
}

// wrong makes an Invalid error of this step.
func (m Meta) wrong(format string, args ...any) error {
	return fault.New(fault.Invalid, format, args...).At(m.place())
}

// The node types. Fields are read by rules and by exec/plan; make nodes with the
// New functions only.
type (
	// Read is a leaf: a resolved source. The rules fill Columns, Predicate, Limit.
	Read struct {
		Meta
		Source  driver.Source
		Table   driver.Table
		Ordinal int // through all sources of the plan, from 0
		// Files is the hive predicate that the source was resolved with: part of
		// what is read, not of how.
		Files     driver.Predicate
		Columns   []string
		Predicate driver.Predicate
		Limit     int64
		schema    *arrow.Schema
	}

	// Filter keeps the rows for which Expr is true, or Func says so; exactly one is set.
	Filter struct {
		Meta
		In            Node
		Expr          *expr.Expr
		Func          *Func
		fails, random bool // of Expr
	}

	// Project computes every output column from the input's: select, drop, rename,
	// cast and with_columns are all this.
	Project struct {
		Meta
		In            Node
		Items         []Named
		schema        *arrow.Schema
		fails, random bool  // of some computed column
		altered       []int // items other than columns under their own names
	}

	// Limit passes the first N rows in canonical order.
	Limit struct {
		Meta
		In Node
		N  int64
	}

	// Explode makes one row of every element of a list column; a null or empty
	// list gives no row (or one with null, by KeepEmpty).
	Explode struct {
		Meta
		In        Node
		Column    string
		KeepEmpty bool
		schema    *arrow.Schema
	}

	// Map runs a function over record batches, row-wise: Func.Map (rows kept) or
	// Func.FlatMap.
	Map struct {
		Meta
		In   Node
		Func *Func
		// BatchRows is the most rows given to the function at once; 0: as they come.
		BatchRows int
		schema    *arrow.Schema
	}

	// Exec passes batches through a pool of child processes that speak Arrow IPC
	// streams on stdin and stdout: for each batch in, one out, rows kept unless Flat.
	Exec struct {
		Meta
		In Node
		ExecSpec
	}

	// Sample keeps the rows whose hash falls into [Lo, Hi) of [0, 1). The hash is
	// of Seed and the row's position (the same rows in every epoch), or of Key's
	// values where given (equal keys stay together). Split into train and test is
	// Sample twice. Samples of equal seeds nest: give independent ones other seeds.
	Sample struct {
		Meta
		In     Node
		Lo, Hi float64
		Seed   uint64
		Key    []string
	}

	// Union gives the rows of its inputs, one after another. Schemas unify as
	// between files of one source; every input has the union's columns and types
	// (but for nullability and metadata).
	Union struct {
		Meta
		Ins    []Node
		schema *arrow.Schema
	}

	// Pack cuts and joins the token lists of In to samples of a fixed length, within a
	// window of the shuffle: for shards only, and the last step of a source.
	Pack struct {
		Meta
		In Node
		PackSpec
		schema *arrow.Schema
	}

	// Mix draws samples from its inputs, the sources, by weights: for shards only, and
	// the root of a plan. Schemas unify as in [Union].
	Mix struct {
		Meta
		Ins []Node
		MixSpec
		schema *arrow.Schema
	}
)

// ExecSpec says what an [Exec] step runs and how.
type ExecSpec struct {
	Command   []string
	Env       []string // names of environment variables to pass on, or NAME=value; PATH and HOME always are
	Workers   int      // 0: one per CPU
	BatchRows int      // 0: 1024
	TimeoutMS int64    // per batch; 0: 5 minutes
	Flat      bool     // rows may change; the child adds an int64 column "__parent"
	Out       *arrow.Schema
	// How, not what: other values are the same job on another machine.
	Program string   // what is started for Command[0]; "": that
	Local   []string // more of Env
}

// Named is an output column of a Project.
type Named struct {
	Name string
	Expr *expr.Expr
}

func (*Read) logical()    {}
func (*Filter) logical()  {}
func (*Project) logical() {}
func (*Limit) logical()   {}
func (*Explode) logical() {}
func (*Map) logical()     {}
func (*Exec) logical()    {}
func (*Sample) logical()  {}
func (*Union) logical()   {}
func (*Pack) logical()    {}
func (*Mix) logical()     {}

func (n *Read) Inputs() []Node    { return nil }
func (n *Filter) Inputs() []Node  { return []Node{n.In} }
func (n *Project) Inputs() []Node { return []Node{n.In} }
func (n *Limit) Inputs() []Node   { return []Node{n.In} }
func (n *Explode) Inputs() []Node { return []Node{n.In} }
func (n *Map) Inputs() []Node     { return []Node{n.In} }
func (n *Exec) Inputs() []Node    { return []Node{n.In} }
func (n *Sample) Inputs() []Node  { return []Node{n.In} }
func (n *Union) Inputs() []Node   { return n.Ins }
func (n *Pack) Inputs() []Node    { return []Node{n.In} }
func (n *Mix) Inputs() []Node     { return n.Ins }

func (n *Read) Schema() *arrow.Schema    { return n.schema }
func (n *Filter) Schema() *arrow.Schema  { return n.In.Schema() }
func (n *Project) Schema() *arrow.Schema { return n.schema }
func (n *Limit) Schema() *arrow.Schema   { return n.In.Schema() }
func (n *Explode) Schema() *arrow.Schema { return n.schema }
func (n *Map) Schema() *arrow.Schema     { return n.schema }
func (n *Exec) Schema() *arrow.Schema    { return n.Out }
func (n *Sample) Schema() *arrow.Schema  { return n.In.Schema() }
func (n *Union) Schema() *arrow.Schema   { return n.schema }
func (n *Pack) Schema() *arrow.Schema    { return n.schema }
func (n *Mix) Schema() *arrow.Schema     { return n.schema }

func (n *Read) Props() Props { return Props{} }
func (n *Filter) Props() Props {
	return Props{OneToAny: true, Random: n.random || n.Func != nil && n.Func.UsesRandom}
}
func (n *Project) Props() Props {
	return Props{KeepsRows: true, Random: n.random}
}
func (n *Limit) Props() Props   { return Props{Cut: true} }
func (n *Explode) Props() Props { return Props{OneToAny: true} }
func (n *Map) Props() Props {
	return Props{KeepsRows: n.Func.Map != nil, OneToAny: n.Func.FlatMap != nil, Random: n.Func.UsesRandom}
}
func (n *Exec) Props() Props   { return Props{KeepsRows: !n.Flat, OneToAny: n.Flat} }
func (n *Sample) Props() Props { return Props{OneToAny: true, Random: len(n.Key) == 0} }
func (n *Union) Props() Props  { return Props{} }
func (n *Pack) Props() Props   { return Props{OneToAny: true} }
func (n *Mix) Props() Props    { return Props{} }

// WithInputs: a read has none.
func (n *Read) WithInputs(in []Node) (Node, error) {
	if len(in) != 0 {
		return nil, inputs(n, 0, in)
	}
	return n, nil
}

func (n *Filter) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	if in[0].Schema() == n.In.Schema() { // checked before
		c := *n
		c.In = in[0]
		return &c, nil
	}
	if n.Func != nil {
		return NewFilterFunc(in[0], n.Func, n.Meta)
	}
	return NewFilter(in[0], n.Expr, n.Meta)
}

func (n *Project) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	if in[0].Schema() == n.In.Schema() { // checked before
		c := *n
		c.In = in[0]
		return &c, nil
	}
	return NewProject(in[0], n.Items, n.Meta)
}

func (n *Limit) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	return NewLimit(in[0], n.N, n.Meta)
}

func (n *Explode) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	return NewExplode(in[0], n.Column, n.KeepEmpty, n.Meta)
}

// WithInputs does not call the function: the new input must have the columns that
// the old one had, unless Func.Schema is set.
func (n *Map) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	if n.Func.Schema == nil && !SameColumns(n.In.Schema(), in[0].Schema()) {
		return nil, n.wrong("the columns given to the function changed and its schema is not declared; set the schema of the function")
	}
	if err := n.follows(in...); err != nil {
		return nil, err
	}
	c := *n
	c.In = in[0]
	return &c, nil
}

func (n *Exec) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	return NewExec(in[0], &n.ExecSpec, n.Meta)
}

func (n *Sample) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	if in[0].Schema() == n.In.Schema() { // checked before
		c := *n
		c.In = in[0]
		return &c, nil
	}
	return NewSample(in[0], n.Lo, n.Hi, n.Seed, n.Key, n.Meta)
}

// WithInputs numbers the reads from the first one's ordinal on: in a source of a mix
// that is not 0.
func (n *Union) WithInputs(in []Node) (Node, error) {
	first := 0
	if len(in) > 0 {
		first = firstRead(in[0]).Ordinal
	}
	return newUnion(in, first, n.Meta)
}

func (n *Pack) WithInputs(in []Node) (Node, error) {
	if len(in) != 1 {
		return nil, inputs(n, 1, in)
	}
	return NewPack(in[0], n.PackSpec, n.Meta)
}

func (n *Mix) WithInputs(in []Node) (Node, error) { return NewMix(in, n.MixSpec, n.Meta) }

func inputs(n Node, want int, in []Node) error {
	return fault.New(fault.Internal, "%s: %T takes %d inputs, not %d", n.Step(), n, want, len(in))
}

// Walk calls f for every node below and including n, inputs first, in canonical
// order.
func Walk(n Node, f func(Node)) {
	for _, in := range n.Inputs() {
		Walk(in, f)
	}
	f(n)
}

// Reads are the leaves of a plan in canonical order.
func Reads(n Node) []*Read {
	var rs []*Read
	Walk(n, func(n Node) {
		if r, ok := n.(*Read); ok {
			rs = append(rs, r)
		}
	})
	return rs
}

// firstRead is the first of Reads(n).
func firstRead(n Node) *Read {
	for {
		if r, ok := n.(*Read); ok {
			return r
		}
		n = n.Inputs()[0]
	}
}

// Close closes the tables of all reads.
func Close(n Node) error {
	var first error
	for _, r := range Reads(n) {
		if err := r.Table.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
