package spec

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/parquetio"
)

type checker struct {
	document
	problems []*located
	referred map[*yaml.Node]bool // values that references gave
	unknown  map[*yaml.Node]bool // values of references that gave none: what is wrong with them has been said

	trust       Trust
	data        map[*yaml.Node]bool // values that decide what is read, and what happens to it
	withheld    []error
	blind, mute bool // as in Spec
}

func (c *checker) add(n *yaml.Node, path, format string, args ...any) {
	if c.unknown[n] {
		return
	}
	at := c.position(n)
	if path == "" || strings.HasSuffix(at, ": --set "+path) {
		path = ""
	} else {
		path += ": "
	}
	c.problems = append(c.problems, &located{at, n, fault.New(fault.Invalid, "%s%s", path, fmt.Sprintf(format, args...))})
}

// lasting refuses a place to write to, by the key path, of which nothing is left when the process that runs the spec has ended.
func (c *checker) lasting(root *yaml.Node, path, place string) {
	if err := Lasting(place); err != nil {
		c.add(find(root, path), path, "%v", err)
	}
}

// EnvTemps is the variable in which a node of a cluster lists the folders that a job has for
// itself, and that go with it.
const EnvTemps = "PENSTOCK_JOB_TEMPS"

// Lasting refuses a place to write to of which nothing is left when the process has ended: a bucket
// in its memory, or a folder that goes with its job.
func Lasting(place string) error {
	for _, dir := range filepath.SplitList(os.Getenv(EnvTemps)) {
		if within(place, dir) {
			return fault.New(fault.Invalid, "%s is lost when this job ends, which has a %s for itself (--isolate of the node): name a bucket, or a folder outside of it on a file system that the nodes share", place, dir)
		}
	}
	if bucket, _, err := blobio.Split(place); err == nil && strings.HasPrefix(bucket, "mem://") {
		return fault.New(fault.Invalid, "%s is in the memory of one process, and is lost when it ends: name a folder, or a bucket such as s3://bucket/out/", place)
	}
	return nil
}

// err lists all problems, one a line: file:line:col: path: what.
func (c *checker) err() error {
	errs := make([]error, len(c.problems))
	for i, p := range c.problems {
		errs[i] = p
	}
	return inOrder(errs...)
}

// errWith is err with what is wrong with the source and the steps of s, as far as they could be
// decoded. Of a value that has a problem nothing more is said.
func (c *checker) errWith(s *Spec) error {
	err := c.err()
	if err == nil {
		return nil
	}
	s.doc = &c.document
	s.broken = func(path string) bool { return c.broken(find(c.root, path)) }
	_, wrong := s.build("", s.Source, s.Steps)
	return inOrder(err, fault.Each(wrong, func(err error) error {
		if l, ok := errors.AsType[*located](err); ok && c.broken(l.node) {
			return nil
		}
		return err
	}))
}

// broken reports whether there is a problem in a value.
func (c *checker) broken(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return slices.ContainsFunc(c.problems, func(p *located) bool { return p.node == n }) || slices.ContainsFunc(n.Content, c.broken)
}

var (
	orderedType  = reflect.TypeFor[Ordered]()
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[Duration]()
	stepType     = reflect.TypeFor[Step]()
	rawType      = reflect.TypeFor[json.RawMessage]()
	allOrType    = reflect.TypeFor[parquetio.Dictionary]() // true, or a list of columns
)

// listHint says how a list is written where n is none.
func listHint(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		return ": put it in brackets, such as [a]"
	case n.Kind == yaml.MappingNode && n.Line < 0: // of a --set with an index
		return ": the spec has none whose items could be set, so give all of it, such as key=[...]"
	}
	return ""
}

// mappingHint shows how a mapping for t is written.
func mappingHint(t reflect.Type) string {
	if t.Kind() == reflect.Map {
		return ": as in {name: " + example(t.Elem()) + "}"
	}
	fs, _ := fieldsOf(t)
	if len(fs) == 0 {
		return ""
	}
	f := fs[0]
	for _, r := range fs {
		if r.required {
			f = r
			break
		}
	}
	return ": as in {" + f.name + ": " + example(f.typ) + "}"
}

// example is a value of t, as it may be written.
func example(t reflect.Type) string {
	switch {
	case t == sizeType:
		return "512MiB"
	case t == durationType:
		return "5m"
	case t.Kind() == reflect.Pointer:
		return example(t.Elem())
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "true"
	case t.Kind() == reflect.Slice:
		return "[...]"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "{...}"
	}
	return "1"
}

// missing are steps that other systems have and this one has not, with what to do.
var missing = map[string]string{
	"group_by": noStep("aggregates"), "groupby": noStep("aggregates"), "aggregate": noStep("aggregates"), "agg": noStep("aggregates"),
	"sort": noStep("sorts"), "order_by": noStep("sorts"), "sort_by": noStep("sorts"),
	"join": noStep("joins"), "distinct": noStep("finds equal rows"), "unique": noStep("finds equal rows"), "dedup": noStep("finds equal rows"),
	"drop_duplicates": noStep("finds equal rows"), "pivot": noStep("pivots"), "window": noStep("has windows over rows"),
	"shuffle":     ": the order of rows is decided by the shards: shards: {shuffle: {...}}",
	"batch":       ": batches are made by the shards: shards: {global_batch: 256}",
	"repartition": ": files are cut by the sink: target_size and partition_by",
	"take":        `: did you mean "limit"?`, "head": `: did you mean "limit"?`, "where": `: did you mean "filter"?`,
	"flat_map": `: did you mean "python" or "exec" with flat: true?`, "map_batches": `: did you mean "python"?`,
	"add_column": `: did you mean "with_columns"?`, "unnest": `: did you mean "explode"?`,
}

func noStep(does string) string {
	return ": no step " + does + " yet: do so before, for instance in DuckDB or Polars, and read what comes out"
}

// typed is a scalar with the type of its value: what a reference gave is no text because it had quotes in the spec.
func (c *checker) typed(n *yaml.Node) *yaml.Node {
	if !c.referred[n] {
		return n
	}
	v := &yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}
	v.Tag = v.ShortTag()
	return v
}

// decode checks n against t and returns it as something that encoding/json can
// unmarshal into t.
func (c *checker) decode(n *yaml.Node, t reflect.Type, path string) any {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch t {
	case orderedType:
		return c.ordered(n, path)
	case sizeType:
		v, err := ParseSize(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			c.add(n, path, "want a size such as 512MiB, not %s", show(n))
		}
		return int64(v)
	case durationType:
		v, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			c.add(n, path, "want a duration such as 90s or 5m, not %s", show(n))
		}
		return int64(v)
	case allOrType:
		var v bool
		if n := c.typed(n); n.Kind == yaml.ScalarNode && n.Tag == "!!bool" && n.Decode(&v) == nil {
			return v
		}
		if n.Kind != yaml.SequenceNode {
			c.add(n, path, "want true or a list of columns, not %s%s", show(n), listHint(n))
			return nil
		}
		return c.decode(n, reflect.TypeFor[[]string](), path)
	case rawType:
		var v any
		if err := n.Decode(&v); err != nil {
			c.add(n, path, "%v", err)
		} else if _, err := json.Marshal(v); err != nil {
			c.add(n, path, "want what JSON can hold: keys that are text, numbers that are finite")
			return nil
		}
		return v
	}
	switch t.Kind() {
	case reflect.Pointer:
		return c.decode(n, t.Elem(), path)
	case reflect.Struct:
		return c.object(n, t, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			c.add(n, path, "want a list, not %s%s", show(n), listHint(n))
			return nil
		}
		out := make([]any, len(n.Content))
		for i, e := range n.Content {
			out[i] = c.decode(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i+1))
		}
		return out
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			c.add(n, path, "want a mapping, not %s%s", show(n), mappingHint(t))
			return nil
		}
		out := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			k := n.Content[i]
			if _, ok := out[k.Value]; ok {
				c.add(k, path, "key %q appears twice", k.Value)
			}
			out[k.Value] = c.decode(n.Content[i+1], t.Elem(), path+"."+k.Value)
		}
		return out
	}
	if n.Kind != yaml.ScalarNode {
		c.add(n, path, "want %s, not %s", kindName(t), show(n))
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		// Numbers and booleans are fine as text: `filter: true`, `na: 0`.
		if n.Tag == "!!null" {
			c.add(n, path, "want text, not null")
		}
		return n.Value
	case reflect.Bool:
		var v bool
		if n := c.typed(n); n.Tag != "!!bool" || n.Decode(&v) != nil {
			c.add(n, path, "want true or false, not %s", show(n))
		}
		return v
	case reflect.Float32, reflect.Float64:
		var v float64
		if n := c.typed(n); n.Tag != "!!int" && n.Tag != "!!float" || n.Decode(&v) != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			c.add(n, path, "want a number, not %s", show(n))
			return 0
		}
		return v
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v, err := strconv.ParseUint(strings.ReplaceAll(n.Value, "_", ""), 0, t.Bits())
		if err != nil {
			c.add(n, path, "want a whole number that is not negative, not %s", show(n))
		}
		return v
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, t.Bits())
		if err != nil {
			c.add(n, path, "want a whole number, not %s", show(n))
		}
		return v
	}
	c.add(n, path, "cannot be given in a spec")
	return nil
}

// field is a key of a struct.
type field struct {
	name, doc, enum string
	required        bool
	min             *int64
	least, most     *int64 // in the JSON Schema only
	typ             reflect.Type
}

// scalarKey is the key of a struct that may be written as text in its place; "" if there is none.
func scalarKey(t reflect.Type) string {
	if f, ok := t.FieldByName("_"); ok {
		return f.Tag.Get("scalar")
	}
	return ""
}

// fieldsOf lists a struct's keys, embedded structs flattened, and whether it is a oneof.
func fieldsOf(t reflect.Type) (fs []field, oneof bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" {
			oneof = oneof || f.Tag.Get("oneof") == "true"
			continue
		}
		if f.Anonymous && f.Tag.Get("json") == "" {
			inner, _ := fieldsOf(f.Type)
			fs = append(fs, inner...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "" || name == "-" {
			continue
		}
		x := field{name: name, doc: f.Tag.Get("doc"), enum: f.Tag.Get("enum"), required: f.Tag.Get("required") == "true", typ: f.Type}
		if f.Type.Kind() == reflect.Int64 && strings.HasSuffix(name, "_bytes") {
			x.typ = sizeType
		}
		for tag, bound := range map[string]**int64{"min": &x.min, "least": &x.least, "most": &x.most} {
			if v, err := strconv.ParseInt(f.Tag.Get(tag), 10, 64); err == nil {
				*bound = &v
			}
		}
		fs = append(fs, x)
	}
	return fs, oneof
}

func (c *checker) object(n *yaml.Node, t reflect.Type, path string) any {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		n = &yaml.Node{Kind: yaml.MappingNode, Line: n.Line, Column: n.Column}
	}
	if key := scalarKey(t); key != "" && n.Kind == yaml.ScalarNode {
		k := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key, Line: n.Line, Column: n.Column}
		n = &yaml.Node{Kind: yaml.MappingNode, Line: n.Line, Column: n.Column, Content: []*yaml.Node{k, n}}
	}
	if n.Kind != yaml.MappingNode {
		c.add(n, path, "want a mapping, not %s%s", show(n), mappingHint(t))
		return nil
	}
	fs, oneof := fieldsOf(t)
	byName := map[string]field{}
	var names, choices []string
	for _, f := range fs {
		byName[f.name] = f
		names = append(names, f.name)
		if f.name != "on_error" {
			choices = append(choices, f.name)
		}
	}
	out := map[string]any{}
	var chosen []string
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		f, ok := byName[k.Value]
		if !ok {
			hint, ok := missing[k.Value]
			if !ok || t != stepType {
				hint = suggest(k.Value, names)
			}
			c.add(k, path, "unknown key %q%s", k.Value, hint)
			continue
		}
		if v.Line < 0 && v.Kind == yaml.ScalarNode && v.Tag == "!!null" && (!oneof || f.name == "on_error") && !f.required && f.typ.Kind() != reflect.Interface { // --set key=null
			continue
		}
		if _, twice := out[k.Value]; twice {
			c.add(k, path, "key %q appears twice", k.Value)
		}
		sub := f.name
		if path != "" {
			sub = path + "." + f.name
		}
		had := len(c.problems)
		if v.Tag == "!!null" && v.Value == "null" && contains(strings.Split(f.enum, "|"), v.Value) { // a word like the others
			word := *v
			word.Tag = "!!str"
			v = &word
		}
		out[f.name] = c.decode(v, f.typ, sub)
		if f.enum != "" && v.Kind == yaml.ScalarNode && len(c.problems) == had {
			if opts := strings.Split(f.enum, "|"); !contains(opts, v.Value) {
				c.add(v, sub, "want one of %s, not %q%s", strings.Join(opts, ", "), v.Value, meant(v.Value, opts))
			}
		}
		if x, ok := out[f.name].(int64); ok && f.min != nil && x < *f.min && len(c.problems) == had {
			if f.typ == sizeType {
				c.add(v, sub, "must be at least %s, not %s", exec.Bytes(*f.min), exec.Bytes(x))
			} else {
				c.add(v, sub, "must be at least %d, not %d", *f.min, x)
			}
		}
		if f.name != "on_error" {
			chosen = append(chosen, f.name)
		}
	}
	for _, f := range fs {
		if _, ok := out[f.name]; f.required && !ok {
			c.add(n, path, "key %q is missing: %s", f.name, f.doc)
		}
	}
	if oneof && len(chosen) != 1 && len(c.problems) == 0 {
		if len(chosen) == 0 {
			c.add(n, path, "want exactly one of %s", strings.Join(choices, ", "))
		} else {
			c.add(n, path, "want exactly one of these keys, not %s", strings.Join(chosen, " and "))
		}
	}
	return out
}

func (c *checker) ordered(n *yaml.Node, path string) any {
	if n.Kind != yaml.MappingNode {
		c.add(n, path, "want a mapping, not %s: as in {name: text}", show(n))
		return nil
	}
	out := []map[string]any{}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if seen[k.Value] {
			c.add(k, path, "key %q appears twice", k.Value)
		}
		seen[k.Value] = true
		out = append(out, map[string]any{"Key": k.Value, "Value": c.decode(v, reflect.TypeFor[string](), path+"."+k.Value)})
	}
	return out
}

func contains(ss []string, s string) bool {
	for _, x := range ss {
		if x == s {
			return true
		}
	}
	return false
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	}
	return "a number"
}

func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.Tag == "!!null" {
		return "null"
	}
	v := n.Value
	if len(v) > 40 {
		v = v[:40] + "..."
	}
	return strconv.Quote(v)
}

// suggest names the nearest key, or all if none is near.
func suggest(got string, have []string) string {
	return cmp.Or(meant(got, have), "; have "+strings.Join(have, ", "))
}

// meant names the nearest key; "" if none is near.
func meant(got string, have []string) string {
	n := near.Name(got, have)
	if n == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", n)
}

// units are what may follow the number of a size, in upper case.
var units = map[string]int64{"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40,
	"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}

// ParseSize reads a number of bytes, the one way for specs and flags: 1024, 512MiB, 1.5GB.
func ParseSize(s string) (Size, error) {
	num, unit := s, ""
	if i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '_' }); i >= 0 {
		num, unit = s[:i], strings.TrimSpace(s[i:])
	}
	num = strings.ReplaceAll(num, "_", "")
	bad := func() (Size, error) {
		return 0, fault.New(fault.Invalid, "%q is not a size; write 1024, 512MiB or 1.5GB", s)
	}
	mult, ok := units[strings.ToUpper(unit)]
	if !ok {
		return bad()
	}
	const most = 1 << 60
	if n, err := strconv.ParseInt(num, 10, 64); err == nil {
		if n > most/mult {
			return bad()
		}
		return Size(n * mult), nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if f *= float64(mult); err != nil || f > most || f != math.Trunc(f) {
		return bad()
	}
	return Size(f), nil
}
