package plan

import (
	"fmt"
	"strings"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/io/driver"
)

// Describe shows a graph: its cuts and scans, below each the operators that run
// on its blocks, how many splits are read, and what that is expected to fetch and decode. unordered is exec.Options.Unordered.
func Describe(g *exec.Graph, unordered bool) string {
	var b strings.Builder
	order := "in order"
	if unordered {
		order = "as they are ready"
	}
	describe(&b, g.Root, 0, order)
	return b.String()
}

func describe(b *strings.Builder, s *exec.Stage, depth int, order string) {
	line := func(format string, args ...any) {
		fmt.Fprintf(b, "%s%s\n", strings.Repeat("  ", depth), strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
	switch {
	case s.Scan != nil:
		scan(line, s.Scan)
	case s.Limit >= 0:
		line("first %d rows of %s, %s", s.Limit, stages(len(s.Inputs)), order)
	default:
		line("rows of %s, %s", stages(len(s.Inputs)), order)
	}
	for _, op := range s.Ops {
		policy := ""
		if e := op.OnError; e != nil {
			policy = "  on_error: fail"
			if e.Policy == exec.Skip {
				policy = "  on_error: skip"
			}
			if e.Retries > 0 {
				policy += fmt.Sprintf(" after %d retries", e.Retries)
			}
		}
		parallel := ""
		if p, ok := op.Operator.(exec.Parallel); ok {
			parallel = fmt.Sprintf("  up to %d at once", p.Tasks())
		}
		line("  -> %s    [%s]%s%s", op.Name(), op.Step(), parallel, policy)
	}
	for _, in := range s.Inputs {
		describe(b, in, depth+1, order)
	}
}

func stages(n int) string {
	if n == 1 {
		return "1 stage"
	}
	return fmt.Sprintf("%d stages", n)
}

func scan(line func(string, ...any), s *exec.Scan) {
	c := Cost(s)
	line("scan %d    [%s]", s.Source, s.Step)
	line("  splits: %d of %d%s", c.Splits, c.Of, rows(c))
	if s.Columns == nil {
		line("  columns: all %d", s.Table.Schema().NumFields())
	} else {
		line("  columns: %d of %d [%s]", len(s.Columns), s.Table.Schema().NumFields(), strings.Join(cell.Words(s.Columns), ", "))
	}
	if d, ok := s.Table.(describer); ok {
		line("  read by: %s", d.ReadBy())
	}
	if text := ignored(s); text != "" {
		line("  statistics not used: %s", text)
	}
	if s.Predicate != nil {
		line("  where: %s", s.Predicate)
	}
	if s.Limit > 0 {
		line("  at most %d rows per split", s.Limit)
	}
	switch {
	case c.Sized:
		line("  expected: fetch %s, decode %s; memory per task: about %s (largest split %s)", exec.Bytes(c.Fetch), exec.Bytes(c.Decoded),
			exec.Bytes(min(c.Largest, driver.DefaultBatchBytes)), exec.Bytes(c.Largest))
	case c.Fetch > 0:
		line("  expected: fetch %s at most; memory per task: about %s", exec.Bytes(c.Fetch), exec.Bytes(driver.DefaultBatchBytes))
	}
}

// describer is implemented by tables that can be read in more than one way.
type describer interface {
	// ReadBy names the decoder of the files, and why where it is not the usual one.
	ReadBy() string
}

// Ignored says of every scan of a graph which statistics of its files it does not use because they cannot be right, as far
// as they were looked at: those of pages are while rows are read. A line for each, nothing for a scan that uses all.
func Ignored(g *exec.Graph) string {
	var b strings.Builder
	var walk func(*exec.Stage)
	walk = func(s *exec.Stage) {
		if s.Scan != nil {
			if text := ignored(s.Scan); text != "" {
				fmt.Fprintf(&b, "statistics not used by scan %d: %s\n", s.Scan.Source, text)
			}
		}
		for _, in := range s.Inputs {
			walk(in)
		}
	}
	walk(g.Root)
	return b.String()
}

func ignored(s *exec.Scan) string {
	if t, ok := s.Table.(interface{ Ignored() string }); ok {
		return t.Ignored()
	}
	return ""
}

func rows(c ScanCost) string {
	if c.Rows < 0 {
		return ""
	}
	return fmt.Sprintf(", %d rows", c.Rows)
}

// ScanCost is what a scan is expected to cost.
type ScanCost struct {
	Splits, Of int   // splits read, of all
	Rows       int64 // in the splits read; -1 unknown
	Fetch      int64 // bytes from storage
	Decoded    int64 // bytes of Arrow memory, if Sized
	Largest    int64 // decoded bytes of the largest split, if Sized
	Sized      bool  // the table knows the cost of the columns; otherwise Fetch is that of all columns
}

// Cost estimates a scan from metadata. Limits and page indexes may make it cheaper.
func Cost(s *exec.Scan) ScanCost {
	splits := s.Table.Splits()
	c := ScanCost{Of: len(splits)}
	sizer, sized := s.Table.(driver.Sizer)
	c.Sized = sized
	for i, sp := range splits {
		if s.Keep != nil && !s.Keep[i] {
			continue
		}
		c.Splits++
		if sp.Rows < 0 || c.Rows < 0 {
			c.Rows = -1
		} else {
			c.Rows += sp.Rows
		}
		if !sized {
			c.Fetch += sp.Bytes
			continue
		}
		fetch, decoded := sizer.Size(i, s.Columns)
		c.Fetch += fetch
		c.Decoded += decoded
		c.Largest = max(c.Largest, decoded)
	}
	return c
}
