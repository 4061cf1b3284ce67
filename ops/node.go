// Package ops holds the logical plan: sealed, immutable nodes with resolved
// schemas, rewrite rules, the plan codec and the registry of named functions.
//
// A plan is a tree of nodes, leaves first: [Read] at the leaves, then narrow
// steps. Nodes are made by constructors that check everything that can be
// checked without data; a node that exists is well-typed.
package ops

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
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

// OnError mirrors exec.OnError in plans.
type OnError struct {
	Policy  string  `json:"policy,omitempty" yaml:"policy"` // fail, skip or retry
	Retries int     `json:"retries,omitempty" yaml:"retries"`
	MaxRows int64   `json:"max_rows,omitempty" yaml:"max_rows"`
	MaxRate float64 `json:"max_rate,omitempty" yaml:"max_rate"`
}

// Step gives "step 3 (filter)".
func (m Meta) Step() string {
	if m.Pos == 0 {
		return "source (" + m.Verb + ")"
	}
	return fmt.Sprintf("step %d (%s)", m.Pos, m.Verb)
}

// The node types. Fields are read by rules and by exec/plan; make nodes with the
// New functions only.
type (
	// Read is a leaf: a resolved source. The rules fill Columns, Predicate, Limit.
	Read struct {
		Meta
		Source    driver.Source
		Table     driver.Table
		Ordinal   int // through all sources of the plan, from 0
		Columns   []string
		Predicate driver.Predicate
		Limit     int64
		schema    *arrow.Schema
	}

	// Filter keeps the rows for which Expr is true, or Func says so; exactly one is set.
	Filter struct {
		Meta
		In   Node
		Expr *expr.Expr
		Func *Func
	}

	// Project computes every output column from the input's: select, drop, rename,
	// cast and with_columns are all this.
	Project struct {
		Meta
		In     Node
		Items  []Named
		schema *arrow.Schema
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

	// Map runs a function over record batches, row-wise: Func.Kind is MapFunc
	// (rows kept) or FlatMapFunc.
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
		In        Node
		Command   []string
		Env       []string // names of environment variables to pass on, or NAME=value
		Workers   int      // 0: one per CPU
		BatchRows int      // 0: 1024
		TimeoutMS int64    // per batch; 0: 5 minutes
		Flat      bool     // rows may change; the child adds an int64 column "__parent"
		Out       *arrow.Schema
	}

	// Sample keeps the rows whose hash falls into [Lo, Hi) of [0, 1). The hash is
	// of Seed and the row's position (the same rows in every epoch), or of Key's
	// values where given (equal keys stay together). Split into train and test is Sample twice.
	Sample struct {
		Meta
		In     Node
		Lo, Hi float64
		Seed   uint64
		Key    []string
	}

	// Union gives the rows of its inputs, one after another. Schemas unify as
	// between files of one source.
	Union struct {
		Meta
		Ins    []Node
		schema *arrow.Schema
	}
)

// Named is an output column of a Project.
type Named struct {
	Name string
	Expr *expr.Expr
}
