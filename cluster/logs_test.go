package cluster

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
)

func chunk(process string, nodes int64, offset int64, data string) *pb.LogChunk {
	return &pb.LogChunk{Process: process, Nodes: nodes, Offset: offset, Data: []byte(data)}
}

// What is written of the chunks of a log: nothing twice, and of several nodes whole lines.
func TestLogPosition(t *testing.T) {
	end := func(c *pb.LogChunk) *pb.LogChunk { c.End = true; return c }
	away := func(c *pb.LogChunk) *pb.LogChunk { c.Error = "away\n"; return c }
	gap := func(c *pb.LogChunk) *pb.LogChunk { c.Error = "gone"; return c }
	long := strings.Repeat("x", mostLine)
	for name, x := range map[string]struct {
		chunks []*pb.LogChunk
		want   string
	}{
		"one node":                     {[]*pb.LogChunk{chunk("j1/1/0", 1, 0, "a\nb"), chunk("j1/1/0", 1, 3, "c"), chunk("j1/2/0", 1, 0, "d")}, "a\nbcd"},
		"again":                        {[]*pb.LogChunk{chunk("j1/1/0", 1, 0, "abc"), chunk("j1/1/0", 1, 1, "bcd"), chunk("j1/1/0", 1, 0, "abc"), chunk("j1/2/0", 1, 0, "x"), chunk("j1/1/0", 1, 4, "late")}, "abcdx"},
		"away":                         {[]*pb.LogChunk{away(chunk("j1/1/0", 1, 0, "")), away(chunk("j1/1/0", 1, 0, "")), away(chunk("j1/2/0", 1, 0, ""))}, "penstock: away\npenstock: away\n"},
		"away in the middle of a line": {[]*pb.LogChunk{chunk("j1/1/0", 1, 0, "a"), away(chunk("j1/1/0", 1, 1, "")), chunk("j1/2/0", 1, 0, "b")}, "a\npenstock: away\nb"},
		"two nodes": {[]*pb.LogChunk{chunk("j1/1/0", 2, 0, "a\nb"), chunk("j1/1/1", 2, 0, "c\n\n"), chunk("j1/1/0", 2, 3, "b\n"), chunk("j1/1/1", 2, 3, "d"), chunk("j1/1/0", 2, 5, "e")},
			"node 0 | a\nnode 1 | c\nnode 1 | \nnode 0 | bb\nnode 0 | e\nnode 1 | d\n"},
		"an end":            {[]*pb.LogChunk{chunk("j1/1/1", 2, 0, "a"), end(chunk("j1/1/1", 2, 1, "")), chunk("j1/1/0", 2, 0, "b\n")}, "node 1 | a\nnode 0 | b\n"},
		"the next attempt":  {[]*pb.LogChunk{chunk("j1/1/1", 2, 0, "a"), chunk("j1/2/0", 2, 0, "b"), chunk("j1/1/1", 2, 1, "late\n"), chunk("j1/2/1", 2, 0, "c\n")}, "node 1 | a\nnode 1 | c\nnode 0 | b\n"},
		"one of two away":   {[]*pb.LogChunk{chunk("j1/1/1", 2, 0, "a"), away(chunk("j1/1/1", 2, 1, "")), chunk("j1/1/0", 2, 0, "b\n")}, "node 1 | a\nnode 1 | penstock: away\nnode 0 | b\n"},
		"a gap":             {[]*pb.LogChunk{chunk("j1/1/0", 1, 0, "ab"), gap(chunk("j1/1/0", 1, 9, "cd\n")), chunk("j1/1/0", 1, 12, "e\n"), gap(chunk("j1/1/0", 1, 20, "f")), away(chunk("j1/1/0", 1, 0, ""))}, "ab\npenstock: 7 bytes are missing here: gone\ncd\ne\npenstock: 6 bytes are missing here: gone\nf\npenstock: away\n"},
		"read before":       {[]*pb.LogChunk{chunk("j1/1/0", 1, 0, "abcde"), gap(chunk("j1/1/0", 1, 3, "def")), gap(chunk("j1/1/0", 1, 6, "g"))}, "abcdefg"},
		"gaps of two":       {[]*pb.LogChunk{chunk("j1/1/1", 2, 0, "a"), gap(chunk("j1/1/0", 2, 5, "b\n")), gap(chunk("j1/1/1", 2, 3, "c"))}, "node 0 | penstock: 5 bytes are missing here: gone\nnode 0 | b\nnode 1 | a\nnode 1 | penstock: 2 bytes are missing here: gone\nnode 1 | c\n"},
		"the end of a log":  {[]*pb.LogChunk{chunk("j1/1/0", 1, 90, "a"), chunk("j1/1/0", 1, 91, "b")}, "ab"},
		"another's name":    {[]*pb.LogChunk{chunk("j1/1/1", 2, 0, "10%\r"), chunk("j1/1/1", 2, 4, "node 0 | forged\r\n50%\r"), chunk("j1/1/1", 2, 25, "\n\nx\r\ry")}, "node 1 | 10%\nnode 1 | node 0 | forged\nnode 1 | 50%\nnode 1 | \nnode 1 | x\nnode 1 | \nnode 1 | y\n"},
		"lines in a reason": {[]*pb.LogChunk{{Process: "j1/1/1", Nodes: 2, Error: "away\nnode 0 | \x1b[2Jb"}}, `node 1 | penstock: away node 0 | \x1b[2Jb` + "\n"},
		"long lines":        {[]*pb.LogChunk{chunk("j1/1/1", 2, 0, long+long), chunk("j1/1/1", 2, 2*mostLine, "y\n")}, "node 1 | " + long + "\nnode 1 | " + long + "\nnode 1 | y\n"},
	} {
		var at LogPosition
		var b bytes.Buffer
		for _, c := range x.chunks {
			must(t, at.take(c, &b))
		}
		must(t, at.rest(&b))
		if b.String() != x.want {
			t.Errorf("%s: %.300q, want %.300q", name, &b, x.want)
		}
	}
}

// Each attempt after the first is told, on a line of its own.
func TestLogAttempts(t *testing.T) {
	for name, x := range map[string]struct {
		chunks []*pb.LogChunk
		want   string
	}{
		"one attempt":    {[]*pb.LogChunk{chunk("j1/1/0", 1, 0, "a")}, "a"},
		"three attempts": {[]*pb.LogChunk{chunk("j1/1/0", 1, 0, "a"), chunk("j1/2/0", 1, 0, "b\n"), chunk("j1/2/0", 1, 2, "c\n"), chunk("j1/3/0", 1, 0, "d\n")}, "a\npenstock: attempt 2\nb\nc\npenstock: attempt 3\nd\n"},
		"the last one":   {[]*pb.LogChunk{chunk("j1/4/0", 1, 0, "a")}, "penstock: attempt 4\na"},
		"two nodes":      {[]*pb.LogChunk{chunk("j1/1/1", 2, 0, "a"), chunk("j1/2/0", 2, 0, "b"), chunk("j1/2/1", 2, 0, "c\n")}, "node 1 | a\npenstock: attempt 2\nnode 1 | c\nnode 0 | b\n"},
	} {
		at := LogPosition{Attempts: true}
		var b bytes.Buffer
		for _, c := range x.chunks {
			must(t, at.take(c, &b))
		}
		must(t, at.rest(&b))
		if b.String() != x.want {
			t.Errorf("%s: %q, want %q", name, &b, x.want)
		}
	}
}

// However the logs of nodes come in pieces, and however often from the beginning again: of each node all lines come once, in order.
func TestLogPieces(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9))
		n := 2 + r.IntN(3)
		logs := make([]string, n)
		for i := range logs {
			for range r.IntN(6) {
				logs[i] += strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(8)) + "\n"
			}
			logs[i] = logs[i][:r.IntN(len(logs[i])+1)]
		}
		var at LogPosition
		var b bytes.Buffer
		for range 1 + r.IntN(3) { // connections: the last one comes to the end
			sent := make([]int, n)
			for k := range 20 {
				i := r.IntN(n)
				if k >= 20-n {
					i = 20 - k - 1
				}
				to := sent[i] + r.IntN(len(logs[i])-sent[i]+1)
				if k >= 20-n {
					to = len(logs[i])
				}
				must(t, at.take(chunk(fmt.Sprintf("j1/1/%d", i), int64(n), int64(sent[i]), logs[i][sent[i]:to]), &b))
				sent[i] = to
			}
		}
		must(t, at.rest(&b))
		var want []string
		for i, log := range logs {
			for line := range strings.Lines(log) {
				want = append(want, fmt.Sprintf("node %d | %s", i, strings.TrimSuffix(line, "\n")))
			}
		}
		got := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if b.Len() == 0 {
			got = nil
		}
		slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:7], b[:7]) })
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q, want %q", seed, got, want)
		}
	}
}

// A number of CPUs that is none is refused where it is said: a message would carry another.
func TestNoNumberOfCPUs(t *testing.T) {
	for _, cpus := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		wantCode(t, (&Job{Needs: Resources{CPUs: cpus}}).plain(), fault.Invalid, "no number of CPUs")
		wantCode(t, (&Job{Data: DataNodes{Needs: Resources{CPUs: cpus}}}).plain(), fault.Invalid, "no number of CPUs")
		wantCode(t, (&NodeConfig{CPUs: cpus}).plain(), fault.Invalid, "no number of CPUs")
	}
}
