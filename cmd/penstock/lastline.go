package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/penstock-data/penstock/cluster"
)

// logs writes what the job prints.
func (f *follower) logs(ctx context.Context) error {
	var at cluster.LogPosition
	to := func(out io.Writer) error {
		return away(ctx, func(string, ...any) {}, func() error { return f.client.LogsFrom(ctx, f.job, true, 0, &at, out) })
	}
	if !f.summary {
		return errors.Join(to(f.out), f.out.Flush())
	}
	last := &lastLine{out: f.out}
	err := to(last)
	f.summed.Store(last.held != nil)
	return errors.Join(err, last.end(), f.out.Flush())
}

// lastLine has the summary of run --json, which a job prints among other things, come last and as it is on one machine: without the node's number. All else goes through as it comes, line by line.
type lastLine struct {
	out  io.Writer
	part []byte // of a line that has not ended
	held []byte // a line with a summary, as it came
}

// node0 is what lines of the node begin with that prints the summary, where there are several.
var node0 = []byte("node 0 | ")

// mostPart is the most of a line that is kept until its end.
const mostPart = 1 << 20

// Write implements io.Writer.
func (l *lastLine) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	for {
		end := bytes.IndexByte(l.part, '\n') + 1
		if end == 0 && len(l.part) < mostPart {
			return len(p), nil
		}
		if end == 0 {
			end = len(l.part)
		}
		line := bytes.Clone(l.part[:end])
		l.part = l.part[end:]
		if isSummary(line) {
			line, l.held = l.held, line // of two the later one: the other was of an attempt before
		}
		if _, err := l.out.Write(line); err != nil {
			return 0, err
		}
	}
}

// isSummary says that a line is an object, of node 0 where there are several.
func isSummary(line []byte) bool {
	line = bytes.TrimSpace(bytes.TrimPrefix(line, node0))
	return bytes.HasPrefix(line, []byte("{")) && json.Valid(line)
}

// end writes what is left, the summary last.
func (l *lastLine) end() error {
	_, err := l.out.Write(l.part)
	if err == nil {
		_, err = l.out.Write(bytes.TrimPrefix(l.held, node0))
	}
	l.part, l.held = nil, nil
	return err
}
