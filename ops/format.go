package ops

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/ops/expr"
)

func (n *Read) String() string {
	var b strings.Builder
	b.WriteString("read ")
	b.WriteString(n.Source.Kind())
	if what := describe(n); what != "" {
		b.WriteString(" " + what)
	}
	if n.Files != nil {
		fmt.Fprintf(&b, " files %s", n.Files)
	}
	if n.Columns != nil {
		fmt.Fprintf(&b, " columns [%s]", abbreviate(cell.Words(n.Columns), 12))
	}
	if n.Predicate != nil {
		fmt.Fprintf(&b, " where %s", n.Predicate)
	}
	if n.Limit > 0 {
		fmt.Fprintf(&b, " limit %d per split", n.Limit)
	}
	return b.String()
}

// describe shortens the source's configuration: its paths, or all of it.
func describe(n *Read) string {
	cfg, err := n.Source.Config()
	if err != nil {
		return ""
	}
	var c struct{ Paths []string }
	if json.Unmarshal(cfg, &c) == nil && len(c.Paths) > 0 {
		for i, p := range c.Paths {
			c.Paths[i] = cell.Name(p, 0)
		}
		return abbreviate(c.Paths, 3)
	}
	if s := string(cfg); len(s) <= 120 && s != "{}" && s != "null" {
		return s
	}
	return ""
}

func (n *Filter) String() string {
	if n.Func != nil {
		return "filter func " + n.Func.String()
	}
	return "filter " + n.Expr.String()
}

func (n *Project) String() string {
	var parts []string
	plain := 0
	for _, it := range n.Items {
		c, ok := it.Expr.IsCol()
		if ok && c == it.Name {
			if plain++; plain <= 12 {
				parts = append(parts, cell.Word(it.Name))
			}
			continue
		}
		if plain > 12 {
			parts = append(parts, fmt.Sprintf("... %d more", plain-12))
			plain = 12
		}
		parts = append(parts, cell.Word(it.Name)+" = "+it.Expr.String())
	}
	if plain > 12 {
		parts = append(parts, fmt.Sprintf("... %d more", plain-12))
	}
	return "project " + strings.Join(parts, ", ")
}

func (n *Limit) String() string { return fmt.Sprintf("limit %d", n.N) }

func (n *Explode) String() string {
	s := "explode " + cell.Word(n.Column)
	if n.KeepEmpty {
		s += " keeping empty"
	}
	return s
}

func (n *Map) String() string {
	s := "map "
	if n.Func.FlatMap != nil {
		s = "flat_map "
	}
	s += n.Func.String()
	if n.BatchRows > 0 {
		s += fmt.Sprintf(" by %d rows", n.BatchRows)
	}
	return s
}

func (n *Exec) String() string {
	args := make([]string, len(n.Command))
	for i, a := range n.Command {
		args[i] = cell.Word(a)
	}
	s := "exec " + strings.Join(args, " ")
	if n.Flat {
		s += " (flat)"
	}
	if n.Workers > 0 {
		s += fmt.Sprintf(" with %d workers", n.Workers)
	}
	return s
}

func (n *Sample) String() string {
	s := fmt.Sprintf("sample [%v, %v) seed %d", n.Lo, n.Hi, n.Seed)
	if len(n.Key) > 0 {
		s += " by " + strings.Join(cell.Words(n.Key), ", ")
	}
	return s
}

func (n *Union) String() string { return fmt.Sprintf("union of %d", len(n.Ins)) }

// Format shows a plan as a tree, the last step first.
func Format(n Node) string {
	var b strings.Builder
	format(&b, n, 0)
	return b.String()
}

func format(b *strings.Builder, n Node, depth int) {
	fmt.Fprintf(b, "%s%s    [%s]\n", strings.Repeat("  ", depth), n, n.Step())
	for _, in := range n.Inputs() {
		format(b, in, depth+1)
	}
}

// FormatSchema shows a schema, one column per line: `tip_rate double`.
func FormatSchema(n Node) string {
	var b strings.Builder
	for _, f := range n.Schema().Fields() {
		b.WriteString(cell.Name(f.Name, 0) + " " + expr.TypeName(f.Type))
		if !f.Nullable {
			b.WriteString(" not null")
		}
		b.WriteByte('\n')
	}
	return b.String()
}
