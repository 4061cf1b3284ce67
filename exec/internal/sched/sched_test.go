package sched

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts runs testdata/*: `run` makes a scheduler of the stages in its
// input, one per line; every other command is an event, and what is printed is
// what the shell is to do. -rewrite writes what happens now.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s *Sched
		attempts := map[Task]int{}
		row := map[Task]int64{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			e := Event{Attempt: -1}
			num := func(key string, to *int64) {
				if d.HasArg(key) {
					d.ScanArgs(t, key, to)
				}
			}
			var n int64
			if d.HasArg("task") {
				var name string
				d.ScanArgs(t, "task", &name)
				if _, err := fmt.Sscanf(name, "%d/%d", &e.Task.Stage, &e.Task.N); err != nil {
					t.Fatal(err)
				}
			}
			if e.Attempt = attempts[e.Task]; d.HasArg("attempt") {
				d.ScanArgs(t, "attempt", &e.Attempt)
			}
			switch d.Cmd {
			case "run":
				attempts, row = map[Task]int{}, map[Task]int64{}
				cfg := Config{CPUs: 2, OwnBytes: 10, AheadBytes: 100, EnoughBytes: 1000, AheadTasks: 8, Retry: [NumClasses]int{0, 3, 2, 3}, Unordered: d.HasArg("unordered")}
				if num("cpus", &n); n > 0 {
					cfg.CPUs = int(n)
				}
				num("own", &cfg.OwnBytes)
				num("ahead", &cfg.AheadBytes)
				num("enough", &cfg.EnoughBytes)
				cfg.WholeBytes = 4 * cfg.EnoughBytes
				for line := range strings.Lines(d.Input) {
					cfg.Stages = append(cfg.Stages, stageOf(t, line))
				}
				s = New(cfg)
				return ""
			case "open":
				var b strings.Builder
				for _, o := range s.Open() {
					fmt.Fprintf(&b, "%d/%d %v attempt=%d queued=%d\n", o.Stage, o.N, o.State, o.Attempt, o.Queued)
				}
				return b.String()
			case "pull":
				e.Kind = Pull
			case "emit":
				e.Kind = Emit
				e.Block = Meta{Rows: 5, Bytes: 5}
				num("rows", &e.Block.Rows)
				num("bytes", &e.Block.Bytes)
				if d.HasArg("row") {
					num("row", &e.Block.Row)
				} else {
					e.Block.Row = row[e.Task]
					row[e.Task] += e.Block.Rows
				}
				e.Block.Span = e.Block.Rows
			case "finish":
				e.Kind = Finish
			case "fail":
				e.Kind = Fail
				var class string
				d.ScanArgs(t, "class", &class)
				for i, c := range className {
					if c == class {
						e.Class = Class(i)
					}
				}
			case "timer":
				e.Kind = Timer
			case "stop":
				e.Kind = Stop
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			var b strings.Builder
			for _, a := range s.Step(e) {
				if a.Kind == Start {
					attempts[a.Task] = a.Attempt
					row[a.Task] = 0
				}
				if a.Kind == Sleep {
					attempts[a.Task] = a.Attempt
				}
				b.WriteString(actionString(a) + "\n")
			}
			if b.Len() == 0 {
				return "-\n"
			}
			return b.String()
		})
	})
}

// stageOf parses `scan tasks=3 empty=1 max=4` and `cut inputs=0,1 limit=5 chain`.
func stageOf(t *testing.T, line string) Stage {
	st := Stage{Limit: -1}
	for i, f := range strings.Fields(line) {
		key, val, _ := strings.Cut(f, "=")
		var n int
		fmt.Sscan(val, &n)
		switch {
		case i == 0 && f == "cut":
			st.Inputs = []int{}
		case i == 0:
		case key == "tasks":
			st.Tasks = n
			st.Empty = make([]bool, n)
		case key == "empty":
			st.Empty[n] = true
		case key == "max":
			st.Max = n
		case key == "limit":
			st.Limit = int64(n)
		case key == "chain":
			st.Chain = true
		case key == "inputs":
			for v := range strings.SplitSeq(val, ",") {
				fmt.Sscan(v, &n)
				st.Inputs = append(st.Inputs, n)
			}
		default:
			t.Fatalf("stage %q: %q", line, f)
		}
	}
	return st
}
