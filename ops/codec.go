package ops

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcmeta"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops/expr"
)

// The encoded plan is {"version":1,"plan":[...]}: the nodes, inputs before the
// steps that use them, the root last; "in" names inputs by index. It holds no data and no
// code: sources are configurations, functions are names.

// Limits of what Decode reads.
const (
	codecVersion  = 1
	maxPlanBytes  = 16 << 20
	maxPlanNodes  = 10_000
	maxPlanDepth  = 1_000
	maxSchemaCols = 100_000
)

type planDoc struct {
	Version int        `json:"version"`
	Plan    []nodeJSON `json:"plan"`
}

// nodeJSON has the fields of all node types; Op says which apply.
type nodeJSON struct {
	Op      string   `json:"op"`
	Pos     int      `json:"pos,omitempty"`
	Verb    string   `json:"verb,omitempty"`
	OnError *OnError `json:"on_error,omitempty"`
	In      []int    `json:"in,omitempty"`

	Kind    string          `json:"kind,omitempty"`    // read
	Config  json.RawMessage `json:"config,omitempty"`  // read
	Ordinal int             `json:"ordinal,omitempty"` // read
	Files   []termJSON      `json:"files,omitempty"`   // read
	Pushed  *pushedJSON     `json:"pushed,omitempty"`  // read: filled in by rules

	Expr  string     `json:"expr,omitempty"`  // filter
	Func  *funcJSON  `json:"func,omitempty"`  // filter, map
	Items []itemJSON `json:"items,omitempty"` // project

	N         int64  `json:"n,omitempty"`          // limit
	Column    string `json:"column,omitempty"`     // explode, pack
	KeepEmpty bool   `json:"keep_empty,omitempty"` // explode

	Lo   string   `json:"lo,omitempty"`          // sample; shortest decimal
	Hi   string   `json:"hi,omitempty"`          // sample
	Seed uint64   `json:"seed,omitempty,string"` // sample
	Key  []string `json:"key,omitempty"`         // sample

	BatchRows int      `json:"batch_rows,omitempty"` // map, exec
	Command   []string `json:"command,omitempty"`    // exec
	Env       []string `json:"env,omitempty"`        // exec
	Workers   int      `json:"workers,omitempty"`    // exec
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // exec
	Program   string   `json:"program,omitempty"`    // exec
	Local     []string `json:"local,omitempty"`      // exec
	Flat      bool     `json:"flat,omitempty"`       // exec
	Schema    []byte   `json:"schema,omitempty"`     // exec; an Arrow IPC stream without batches

	Pack *packJSON `json:"pack,omitempty"`
	Mix  *mixJSON  `json:"mix,omitempty"`
}

type packJSON struct { // Column is the node's
	Length     int    `json:"length"`
	Method     string `json:"method"`
	Overlong   string `json:"overlong"`
	PadID      int64  `json:"pad_id,omitempty"`
	EOS        *int64 `json:"eos,omitempty"`
	LossMask   bool   `json:"loss_mask,omitempty"`
	MaskColumn string `json:"mask_column,omitempty"`
}

type mixJSON struct {
	Names    []string        `json:"names"`
	Weights  []int64         `json:"weights,omitempty"` // not in fingerprints
	Schedule []weightsAtJSON `json:"schedule,omitempty"`
	Repeat   []bool          `json:"repeat"`
	Stop     string          `json:"stop"`
}

type weightsAtJSON struct {
	At      int64   `json:"at"`
	Weights []int64 `json:"weights"`
}

type itemJSON struct {
	Name string `json:"name"`
	Expr string `json:"expr"`
}

type pushedJSON struct {
	Columns   []string   `json:"columns"` // null: all
	Predicate []termJSON `json:"predicate,omitempty"`
	Limit     int64      `json:"limit,omitempty"`
}

type termJSON struct {
	Column string      `json:"column"`
	Op     string      `json:"op"`
	Values []valueJSON `json:"values,omitempty"`
}

// valueJSON is a literal with its type: one of b, i, u, f, s.
type valueJSON struct {
	T string `json:"t"`
	V string `json:"v"`
}

type funcJSON struct {
	Name       string   `json:"name"`
	Version    string   `json:"version,omitempty"`
	Kind       string   `json:"kind"`
	Config     []byte   `json:"config,omitempty"`
	Schema     []byte   `json:"schema,omitempty"` // of maps: an Arrow IPC stream without batches
	UsesRandom bool     `json:"uses_random,omitempty"`
	Passes     []string `json:"passes,omitempty"`
}

// Encode writes a plan as JSON. A closure, or a source that lives in this process only, is an
// Unsupported error that names the step.
func Encode(n Node) ([]byte, error) { return encode(n) }

// Fingerprint identifies what a plan does, not the data that is there nor how fast it goes
// (workers, batch sizes, what rules fill in) nor what bounds it (max_growth of a source) nor the weights of a mix, which may change while a job runs: SHA-256, in hex. Take it of the plan as written: rules may
// merge steps. Plans that cannot be encoded have none.
func Fingerprint(n Node) (string, error) { return fingerprint(n, false) }

// FingerprintSteps is [Fingerprint] without the paths of the sources: equal for the same steps over the
// same files on another machine. It goes with the fingerprints of the tables.
func FingerprintSteps(n Node) (string, error) { return fingerprint(n, true) }

func fingerprint(n Node, anywhere bool) (string, error) {
	doc, err := encodeDoc(n, true)
	if err != nil {
		return "", err
	}
	for i := range doc.Plan {
		if c := &doc.Plan[i].Config; doc.Plan[i].Op == "read" && len(*c) > 0 {
			var m map[string]json.RawMessage
			if err := json.Unmarshal(*c, &m); err != nil {
				return "", fault.New(fault.Internal, "plan: %w", err)
			}
			delete(m, "max_growth")
			if anywhere {
				delete(m, "paths")
			}
			if *c, err = json.Marshal(m); err != nil {
				return "", fault.New(fault.Internal, "plan: %w", err)
			}
		}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return "", fault.New(fault.Internal, "plan: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

func encodeDoc(n Node, bare bool) (planDoc, error) {
	doc := planDoc{Version: codecVersion}
	_, err := encodeNode(n, bare, &doc.Plan)
	return doc, err
}

func encode(n Node) ([]byte, error) {
	doc, err := encodeDoc(n, false)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fault.New(fault.Internal, "plan: %w", err)
	}
	return b, nil
}

func encodeNode(n Node, bare bool, out *[]nodeJSON) (int, error) {
	var in []int
	for _, c := range n.Inputs() {
		k, err := encodeNode(c, bare, out)
		if err != nil {
			return 0, err
		}
		in = append(in, k)
	}
	m := n.(interface{ meta() Meta }).meta()
	j := nodeJSON{Pos: m.Pos, Verb: m.Verb, OnError: m.OnError, In: in}
	var err error
	switch n := n.(type) {
	case *Read:
		j.Op, j.Kind, j.Ordinal = "read", n.Source.Kind(), n.Ordinal
		if j.Config, err = n.Source.Config(); err != nil {
			return 0, fault.Wrap(err, m.place())
		}
		j.Files = encodeTerms(n.Files)
		if !bare && (n.Columns != nil || n.Predicate != nil || n.Limit != 0) {
			j.Pushed = &pushedJSON{n.Columns, encodeTerms(n.Predicate), n.Limit}
		}
	case *Filter:
		j.Op = "filter"
		if n.Func != nil {
			j.Func, err = encodeFunc(n.Func, nil, m)
		} else {
			j.Expr = n.Expr.String()
		}
	case *Project:
		j.Op = "project"
		for _, it := range n.Items {
			j.Items = append(j.Items, itemJSON{it.Name, it.Expr.String()})
		}
	case *Limit:
		j.Op, j.N = "limit", n.N
	case *Explode:
		j.Op, j.Column, j.KeepEmpty = "explode", n.Column, n.KeepEmpty
	case *Map:
		j.Op, j.BatchRows = "map", n.BatchRows
		j.Func, err = encodeFunc(n.Func, n.schema, m)
	case *Exec:
		j.Op, j.Command, j.Env, j.Workers, j.BatchRows, j.TimeoutMS, j.Flat =
			"exec", n.Command, n.Env, n.Workers, n.BatchRows, n.TimeoutMS, n.Flat
		j.Program, j.Local = n.Program, n.Local
		if bare { // whatever it was written as
			j.Verb = "exec"
		}
		j.Schema, err = encodeSchema(n.Out)
	case *Sample:
		j.Op, j.Seed, j.Key = "sample", n.Seed, n.Key
		j.Lo = strconv.FormatFloat(n.Lo, 'g', -1, 64)
		j.Hi = strconv.FormatFloat(n.Hi, 'g', -1, 64)
	case *Union:
		j.Op = "union"
	case *Pack:
		j.Op, j.Column = "pack", n.Column
		j.Pack = &packJSON{n.Length, n.Method, n.Overlong, n.PadID, n.EOS, n.LossMask, n.MaskColumn}
	case *Mix:
		j.Op, j.Mix = "mix", &mixJSON{Names: n.Names, Repeat: n.Repeat, Stop: n.Stop}
		if !bare { // may change while a job runs
			j.Mix.Weights = n.Weights
			for _, w := range n.Schedule {
				j.Mix.Schedule = append(j.Mix.Schedule, weightsAtJSON(w))
			}
		}
	default:
		err = fault.New(fault.Internal, "no encoding for %T", n)
	}
	if err != nil {
		return 0, fault.Wrap(err, m.place())
	}
	if bare { // how, not what
		j.Workers, j.BatchRows, j.TimeoutMS, j.Program, j.Local = 0, 0, 0, "", nil
	}
	*out = append(*out, j)
	return len(*out) - 1, nil
}

func encodeFunc(f *Func, schema *arrow.Schema, m Meta) (*funcJSON, error) {
	if f.Name == "" {
		reg := map[string]string{"map": "ops.RegisterMap", "flat_map": "ops.RegisterFlatMap", "filter": "ops.RegisterFilter"}[f.kind()]
		return nil, fault.New(fault.Unsupported, "a closure is known to this process only and cannot be part of an encoded plan; register it: %s(name, version, newFn), and give what its Func makes to Apply", reg).At(m.place())
	}
	j := &funcJSON{Name: f.Name, Version: f.Version, Kind: f.kind(), Config: f.Config, UsesRandom: f.UsesRandom, Passes: f.Passes}
	if schema != nil {
		var err error
		if j.Schema, err = encodeSchema(schema); err != nil {
			return nil, err
		}
	}
	return j, nil
}

func encodeSchema(s *arrow.Schema) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Unsupported, "this schema cannot be encoded: %v", p)
		}
	}()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	if err := w.Close(); err != nil {
		return nil, fault.New(fault.Unsupported, "this schema cannot be encoded: %w", err)
	}
	return buf.Bytes(), nil
}

func decodeSchema(b []byte) (s *arrow.Schema, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, fault.New(fault.Corrupt, "schema: %v", p)
		}
	}()
	mr := ipcmeta.NewReader(bytes.NewReader(b), ipcmeta.Limits{Meta: int64(len(b))}, memory.DefaultAllocator)
	r, err := ipc.NewReaderFromMessageReader(mr)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "schema: %w", err)
	}
	defer r.Release()
	if s = r.Schema(); s == nil || s.NumFields() > maxSchemaCols {
		return nil, fault.New(fault.Corrupt, "schema: missing, or more than %d columns", maxSchemaCols)
	}
	for _, f := range s.Fields() {
		if !validNames(f) {
			return nil, fault.New(fault.Corrupt, "schema: the name of column %q is not UTF-8", f.Name)
		}
	}
	return s, nil
}

// validNames reports whether the names of a field and of those in it are UTF-8: others do not
// come back from JSON.
func validNames(f arrow.Field) bool {
	if !utf8.ValidString(f.Name) {
		return false
	}
	n, ok := f.Type.(arrow.NestedType)
	if !ok {
		return true
	}
	for _, c := range n.Fields() {
		if !validNames(c) {
			return false
		}
	}
	return true
}

func encodeTerms(p driver.Predicate) []termJSON {
	var out []termJSON
	for _, t := range p {
		j := termJSON{Column: t.Column, Op: t.Op.String()}
		for _, v := range t.Values {
			j.Values = append(j.Values, encodeValue(v))
		}
		out = append(out, j)
	}
	return out
}

func encodeValue(v any) valueJSON {
	switch v := v.(type) {
	case bool:
		return valueJSON{"b", strconv.FormatBool(v)}
	case int64:
		return valueJSON{"i", strconv.FormatInt(v, 10)}
	case uint64:
		return valueJSON{"u", strconv.FormatUint(v, 10)}
	case float64:
		return valueJSON{"f", strconv.FormatUint(math.Float64bits(v), 16)}
	case string:
		return valueJSON{"s", strconv.QuoteToASCII(v)} // may be no UTF-8
	}
	panic(fmt.Sprintf("ops: literal of type %T in a predicate", v))
}

func decodeValue(j valueJSON) (v any, err error) {
	switch j.T {
	case "b":
		return strconv.ParseBool(j.V)
	case "i":
		return strconv.ParseInt(j.V, 10, 64)
	case "u":
		return strconv.ParseUint(j.V, 10, 64)
	case "f":
		bits, err := strconv.ParseUint(j.V, 16, 64)
		return math.Float64frombits(bits), err
	case "s":
		return strconv.Unquote(j.V)
	}
	return nil, fmt.Errorf("literal of unknown type %q", j.T)
}

func decodeTerms(in []termJSON) (driver.Predicate, error) {
	var p driver.Predicate
	for _, j := range in {
		t := driver.Term{Column: j.Column}
		for t.Op = driver.Eq; t.Op.String() != j.Op; t.Op++ {
			if t.Op == driver.NotNull {
				return nil, fault.New(fault.Corrupt, "unknown comparison %q", j.Op)
			}
		}
		for _, vj := range j.Values {
			v, err := decodeValue(vj)
			if err != nil {
				return nil, fault.New(fault.Corrupt, "column %q: %w", j.Column, err)
			}
			t.Values = append(t.Values, v)
		}
		want := 1
		if t.Op == driver.IsNull || t.Op == driver.NotNull {
			want = 0
		}
		if t.Op != driver.In && len(t.Values) != want {
			return nil, fault.New(fault.Corrupt, "column %q: %q with %d values", j.Column, j.Op, len(t.Values))
		}
		p = append(p, t)
	}
	return p, nil
}

// DecodeOptions say what encoded plans may refer to.
type DecodeOptions struct {
	Formats  []driver.Format
	Registry *Registry              // nil: the default one
	Resolve  *driver.ResolveOptions // for all sources; may be nil
}

// Decode reads what [Encode] wrote and resolves the sources (the caller uses [Close]).
// It makes nodes with the constructors, so everything is checked again. Functions must be
// registered with the same version.
func Decode(ctx context.Context, data []byte, o *DecodeOptions) (Node, error) {
	d := decoder{}
	if o != nil {
		d.DecodeOptions = *o
	}
	if d.Registry == nil {
		d.Registry = DefaultRegistry()
	}
	n, err := d.decode(ctx, data)
	if err != nil {
		for _, t := range d.tables {
			_ = t.Close() // what went wrong first counts
		}
		return nil, err
	}
	return n, nil
}

type decoder struct {
	DecodeOptions
	tables []driver.Table
}

func (d *decoder) decode(ctx context.Context, data []byte) (Node, error) {
	if len(data) > maxPlanBytes {
		return nil, fault.New(fault.Corrupt, "plan: %d bytes; at most %d", len(data), maxPlanBytes)
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, fault.New(fault.Corrupt, "plan: %w", err)
	}
	if v.Version != codecVersion {
		return nil, fault.New(fault.Unsupported, "plan: version %d; this build reads version %d", v.Version, codecVersion)
	}
	var doc planDoc
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, fault.New(fault.Corrupt, "plan: %w", err)
	}
	if len(doc.Plan) == 0 || len(doc.Plan) > maxPlanNodes {
		return nil, fault.New(fault.Corrupt, "plan: %d nodes; must be 1 to %d", len(doc.Plan), maxPlanNodes)
	}
	nodes := make([]Node, len(doc.Plan))
	depth := make([]int, len(doc.Plan))
	used := make([]bool, len(doc.Plan))
	for i := range doc.Plan {
		j := &doc.Plan[i]
		in := make([]Node, len(j.In))
		for k, x := range j.In {
			if x < 0 || x >= i || used[x] {
				return nil, fault.New(fault.Corrupt, "plan: node %d has input %d, which does not come before it or is used twice", i, x)
			}
			used[x] = true
			in[k] = nodes[x]
			depth[i] = max(depth[i], depth[x]+1)
		}
		if depth[i] > maxPlanDepth {
			return nil, fault.New(fault.Corrupt, "plan: more than %d steps deep", maxPlanDepth)
		}
		n, err := d.node(ctx, j, in)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Step: Meta{Pos: j.Pos, Verb: j.Verb}.Step()})
		}
		nodes[i] = n
	}
	for i, u := range used[:len(used)-1] {
		if !u {
			return nil, fault.New(fault.Corrupt, "plan: node %d is not used", i)
		}
	}
	return nodes[len(nodes)-1], nil
}

func (d *decoder) node(ctx context.Context, j *nodeJSON, in []Node) (Node, error) {
	m := Meta{Pos: j.Pos, Verb: j.Verb, OnError: j.OnError}
	want := 1
	switch j.Op {
	case "read":
		want = 0
	case "union", "mix":
		want = len(in)
	}
	if len(in) != want {
		return nil, fault.New(fault.Corrupt, "%q with %d inputs", j.Op, len(in))
	}
	switch j.Op {
	case "read":
		return d.read(ctx, j, m)
	case "filter":
		if j.Func == nil {
			e, err := expr.Decode(j.Expr)
			if err != nil {
				return nil, err
			}
			return NewFilter(in[0], e, m)
		}
		f, err := d.fn(j.Func)
		if err != nil {
			return nil, err
		}
		return NewFilterFunc(in[0], f, m)
	case "project":
		items := make([]Named, len(j.Items))
		for i, it := range j.Items {
			e, err := expr.Decode(it.Expr)
			if err != nil {
				return nil, fault.Wrap(err, fault.Place{Column: it.Name})
			}
			items[i] = Named{it.Name, e}
		}
		return NewProject(in[0], items, m)
	case "limit":
		return NewLimit(in[0], j.N, m)
	case "explode":
		return NewExplode(in[0], j.Column, j.KeepEmpty, m)
	case "map":
		if j.Func == nil {
			return nil, fault.New(fault.Corrupt, "a map without a function")
		}
		f, err := d.fn(j.Func)
		if err != nil {
			return nil, err
		}
		return NewMap(ctx, in[0], f, j.BatchRows, m)
	case "exec":
		out, err := decodeSchema(j.Schema)
		if err != nil {
			return nil, err
		}
		return NewExec(in[0], &ExecSpec{Command: j.Command, Env: j.Env, Workers: j.Workers, BatchRows: j.BatchRows,
			TimeoutMS: j.TimeoutMS, Flat: j.Flat, Out: out, Program: j.Program, Local: j.Local}, m)
	case "sample":
		lo, err := strconv.ParseFloat(j.Lo, 64)
		if err != nil {
			return nil, fault.New(fault.Corrupt, "sample: %w", err)
		}
		hi, err := strconv.ParseFloat(j.Hi, 64)
		if err != nil {
			return nil, fault.New(fault.Corrupt, "sample: %w", err)
		}
		return NewSample(in[0], lo, hi, j.Seed, j.Key, m)
	case "union":
		return NewUnion(in, m)
	case "pack":
		if j.Pack == nil {
			return nil, fault.New(fault.Corrupt, "a pack that does not say how")
		}
		p := j.Pack
		return NewPack(in[0], PackSpec{j.Column, p.Length, p.Method, p.Overlong, p.PadID, p.EOS, p.LossMask, p.MaskColumn}, m)
	case "mix":
		if j.Mix == nil {
			return nil, fault.New(fault.Corrupt, "a mix that does not say how")
		}
		s := MixSpec{Names: j.Mix.Names, Weights: j.Mix.Weights, Repeat: j.Mix.Repeat, Stop: j.Mix.Stop}
		for _, w := range j.Mix.Schedule {
			s.Schedule = append(s.Schedule, WeightsAt(w))
		}
		return NewMix(in, s, m)
	}
	return nil, fault.New(fault.Unsupported, "this build knows no step %q", j.Op)
}

func (d *decoder) read(ctx context.Context, j *nodeJSON, m Meta) (Node, error) {
	var src driver.Source
	for _, f := range d.Formats {
		if f.Kind != j.Kind {
			continue
		}
		var err error
		if src, err = f.Open(j.Config); err != nil {
			return nil, err
		}
	}
	if src == nil {
		return nil, fault.New(fault.Unsupported, "no format %q in this build", j.Kind)
	}
	files, err := decodeTerms(j.Files)
	if err != nil {
		return nil, err
	}
	n, err := resolve(ctx, src, files, j.Ordinal, m, d.Resolve)
	if err != nil {
		return nil, err
	}
	d.tables = append(d.tables, n.Table)
	if j.Pushed == nil {
		return n, nil
	}
	if name, dup := duplicate(j.Pushed.Columns); dup || j.Pushed.Limit < 0 {
		return nil, fault.New(fault.Corrupt, "pushed columns or limit are wrong (%q)", name)
	}
	for _, c := range j.Pushed.Columns {
		if _, err := column(n.schema, c); err != nil {
			return nil, err
		}
	}
	p, err := decodeTerms(j.Pushed.Predicate)
	if err != nil {
		return nil, err
	}
	for _, t := range p {
		if _, err := column(n.Table.Schema(), t.Column); err != nil {
			return nil, err
		}
	}
	return n.pushed(j.Pushed.Columns, p, j.Pushed.Limit), nil
}

func (d *decoder) fn(j *funcJSON) (*Func, error) {
	g, err := d.Registry.Lookup(j.Name)
	if err != nil {
		return nil, err
	}
	if g.version != j.Version || g.kind != j.Kind {
		return nil, fault.New(fault.Invalid, "the plan has function %q as %s version %q, this binary as %s version %q", j.Name, j.Kind, j.Version, g.kind, g.version)
	}
	f, err := g.Func(j.Config)
	if err != nil {
		return nil, err
	}
	f.UsesRandom, f.Passes = j.UsesRandom, j.Passes
	if j.Schema != nil && j.Kind != "filter" {
		if f.Schema, err = decodeSchema(j.Schema); err != nil {
			return nil, err
		}
	}
	return f, nil
}
