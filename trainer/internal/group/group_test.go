package group

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/penstock-data/penstock/internal/fault"
)

var codes = func() map[string]fault.Code {
	m := map[string]fault.Code{}
	for c := fault.Unknown; c.Known(); c++ {
		m[c.String()] = c
	}
	return m
}()

// TestTranscripts runs testdata/*: `run` makes a group; every line of other commands is an event, at the time that at= gives or a
// millisecond after the last one, and what is printed is what the shell is to do. -rewrite writes what happens now.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var g *Group
		var now time.Duration
		attempt := 0
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			if d.Cmd == "run" {
				g, now, attempt = New(configOf(t, d)), 0, 0
				return ""
			}
			if d.Cmd == "deadline" {
				at, ok := g.Deadline()
				return fmt.Sprintln(at, ok)
			}
			for line := range strings.Lines(d.Input) {
				e := eventOf(t, line, attempt)
				if e.At == 0 {
					e.At = now + time.Millisecond
				}
				now = e.At
				for _, a := range g.Step(e) {
					if a.Do == Start {
						attempt = a.Attempt
					}
					b.WriteString(a.String() + "\n")
				}
			}
			if b.Len() == 0 {
				return "-\n"
			}
			return b.String()
		})
	})
}

func configOf(t *testing.T, d *datadriven.TestData) Config {
	cfg := Config{World: 2, StartTimeout: 5 * time.Minute, HangTimeout: 30 * time.Minute, ReportTimeout: 5 * time.Minute, StopTimeout: 10 * time.Second, Worker: 3, Hang: 3, Memory: 1}
	for _, a := range d.CmdArgs {
		v := ""
		if len(a.Vals) > 0 {
			v = a.Vals[0]
		}
		n, _ := strconv.Atoi(v)
		switch a.Key {
		case "world":
			cfg.World = n
		case "library":
			cfg.Library = true
		case "async":
			cfg.Async = true
		case "worker":
			cfg.Worker = n
		case "hang":
			cfg.Hang = n
		case "lag":
			cfg.Lag = int64(n)
		case "checkpoint":
			cfg.Checkpoint = n
		case "reports":
			cfg.Reports = int64(n)
		default:
			t.Fatalf("unknown argument %s", a.Key)
		}
	}
	return cfg
}

var kinds = map[string]Kind{"begun": Begun, "launched": Launched, "launch-failed": LaunchFailed, "hello": Hello, "report": Report, "alive": Alive, "restoring": Restoring, "restored": Restored,
	"done": Done, "exit": Exit, "data-lost": DataLost, "taken": Taken, "uploaded": Uploaded, "stacks-taken": StacksTaken, "tick": Tick, "notice": Notice, "stop": Stop, "lost": Lost}

// eventOf parses `report rank=1 n=3 files train=4`: what is no field is a data set and its step.
func eventOf(t *testing.T, line string, attempt int) Event {
	fields := strings.Fields(line)
	e := Event{Attempt: attempt}
	var ok bool
	if e.Kind, ok = kinds[fields[0]]; !ok {
		t.Fatalf("unknown event %q", line)
	}
	for _, f := range fields[1:] {
		key, val, _ := strings.Cut(f, "=")
		n, _ := strconv.Atoi(val)
		switch key {
		case "at", "grace":
			at, err := time.ParseDuration(val)
			if err != nil {
				t.Fatal(err)
			}
			if key == "grace" {
				e.Grace = at
			} else {
				e.At = at
			}
		case "attempt":
			e.Attempt = n
		case "rank":
			e.Rank = n
		case "n":
			e.N = int64(n)
		case "step":
			e.Step = int64(n)
		case "checkpoint":
			e.Checkpoint = n
		case "files":
			e.Files = true
		case "code":
			e.Code = n
			e.Err = fault.New(fault.UserCode, "rank %d exited with code %d", e.Rank, n)
		case "signal":
			e.Signal = val
			e.Err = fault.New(fault.WorkerLost, "rank %d was ended by signal %s", e.Rank, val)
		case "memory":
			e.Memory = true
		case "ours":
			e.Ours = true
		case "err":
			code, ok := codes[val]
			if !ok {
				t.Fatalf("unknown code %s", val)
			}
			e.Err = fault.New(code, "(%s)", val)
		default:
			step, key, _ := strings.Cut(val, "/")
			n, _ := strconv.Atoi(step)
			e.Sets = append(e.Sets, Set{Name: f[:strings.IndexByte(f, '=')], Step: int64(n), Key: key})
		}
	}
	return e
}

func (a Action) String() string {
	s := [...]string{"start", "complete", "commit", "ack", "stacks", "stop-group", "warn", "status", "failure", "finish"}[a.Do]
	switch a.Do {
	case Start:
		s += fmt.Sprintf(" attempt=%d checkpoint=%d reports=%d", a.Attempt, a.Checkpoint, a.Reports)
	case Complete:
		s += fmt.Sprintf(" n=%d", a.N)
	case Commit:
		s += fmt.Sprintf(" n=%d ranks=%v", a.N, a.Ranks)
	case Ack:
		s += fmt.Sprintf(" rank=%d n=%d", a.Rank, a.N)
		if a.Checkpoint > 0 {
			s += fmt.Sprintf(" checkpoint=%d", a.Checkpoint)
		}
	case Stacks:
		s += fmt.Sprintf(" ranks=%v", a.Ranks)
	case StopGroup:
		s += fmt.Sprintf(" grace=%v", a.Grace)
		a.Err = nil
	case Warn:
		s += fmt.Sprintf(" ranks=%v n=%d grace=%v", a.Ranks, a.N, a.Grace.Round(time.Second))
	case Status:
		s += " " + string(a.State)
	case Failure:
		s += fmt.Sprintf(" rank=%d class=%v", a.Rank, a.Class)
		if a.Final {
			s += " final"
		}
	case Finish:
		s += fmt.Sprintf(" %s checkpoint=%d", a.State, a.Checkpoint)
	}
	if a.Err != nil {
		s += fmt.Sprintf(" [%v] %v", fault.CodeOf(a.Err), a.Err)
	}
	return s
}
