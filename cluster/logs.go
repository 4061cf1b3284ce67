package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/term"
)

// Logs writes what a job printed to w: all of it, or its last tail bytes where tail > 0; with follow until the job has ended. Of a job on several nodes every line begins with its node's number, "node 1 | ...", tail is of each
// node, and lines come node after node, or with follow as they are printed. What cannot be read, as its node is away, is said in a line.
func (c *Client) Logs(ctx context.Context, id string, follow bool, tail int64, w io.Writer) error {
	return c.LogsFrom(ctx, id, follow, tail, new(LogPosition), w)
}

// LogPosition is how far the log of a job was read. The zero value is its beginning.
type LogPosition struct {
	Attempts bool // a line "penstock: attempt 2" comes before what each attempt after the first printed

	open    bool              // what was written last has no end of its line
	attempt int64             // the last of which anything was read
	nodes   map[int]*nodeLine // of that attempt
}

// nodeLine is how far the log of one process was read.
type nodeLine struct {
	offset int64  // bytes
	said   bool   // that it cannot be read
	part   []byte // read, and not written: the beginning of a line of one of several
	cr     bool   // the last byte was a carriage return, which has ended its line
}

// mostLine is the most of a line of one of several processes that is written as one.
const mostLine = 64 << 10

// LogsFrom is Logs from a position on, which it moves. Where it fails, as the head or the connection went away, calling it again writes nothing twice.
func (c *Client) LogsFrom(ctx context.Context, id string, follow bool, tail int64, at *LogPosition, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if at.attempt > 0 {
		tail = 0
	}
	stream, err := c.c.Logs(ctx, &pb.LogsRequest{Job: id, Follow: follow, Tail: tail})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return at.rest(w)
		}
		if err != nil {
			return err
		}
		if err := at.take(m, w); err != nil {
			return err
		}
	}
}

// take writes what of a chunk was not read before.
func (l *LogPosition) take(m *pb.LogChunk, w io.Writer) error {
	p, _ := jobs.ParseProcess(m.GetProcess())
	if p.Attempt < l.attempt {
		return nil
	}
	if p.Attempt > l.attempt || l.nodes == nil {
		if err := l.rest(w); err != nil {
			return err
		}
		if l.Attempts && p.Attempt > max(l.attempt, 1) {
			if err := l.line(w, fmt.Sprintf("penstock: attempt %d", p.Attempt)); err != nil {
				return err
			}
		}
		l.attempt, l.nodes = p.Attempt, map[int]*nodeLine{}
	}
	n := l.nodes[p.Member]
	if n == nil {
		n = &nodeLine{}
		l.nodes[p.Member] = n
	}
	data, why, name := m.GetData(), m.GetError(), ""
	if m.GetNodes() > 1 {
		name = nodeName(p.Member)
	}
	if why != "" && len(data) > 0 { // the node does not keep all that is before them; who reads again may have read it
		if lost := m.GetOffset() - n.offset; lost > 0 {
			if err := l.write(w, n.flush(nil, name)); err != nil {
				return err
			}
			if err := l.line(w, fmt.Sprintf("%spenstock: %d bytes are missing here: %s", name, lost, why)); err != nil {
				return err
			}
		}
		why = ""
	}
	end := m.GetOffset() + int64(len(data))
	data = data[min(max(n.offset-m.GetOffset(), 0), int64(len(data))):]
	n.offset = max(n.offset, end)
	if m.GetNodes() > 1 {
		if data = n.lines(name, data); m.GetEnd() || why != "" {
			data = n.flush(data, name)
		}
	}
	if err := l.write(w, data); err != nil {
		return err
	}
	if why != "" && !n.said {
		n.said = true
		return l.line(w, name+"penstock: "+strings.TrimSpace(why))
	}
	return nil
}

// line writes a line of its own.
func (l *LogPosition) line(w io.Writer, text string) error {
	text = term.Line(text) + "\n"
	if l.open {
		text = "\n" + text
	}
	return l.write(w, []byte(text))
}

func (l *LogPosition) write(w io.Writer, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	l.open = data[len(data)-1] != '\n'
	_, err := w.Write(data)
	return err
}

func nodeName(member int) string { return fmt.Sprintf("node %d | ", member) }

// lines are those that are complete with data, each with the name in front. A carriage return ends
// a line as well: what follows would stand where the name is, and could be another node's.
func (n *nodeLine) lines(name string, data []byte) []byte {
	var out []byte
	for len(data) > 0 {
		if n.cr {
			if n.cr = false; data[0] == '\n' {
				data = data[1:]
				continue
			}
		}
		k := bytes.IndexAny(data, "\r\n") + 1
		if most := mostLine - len(n.part); k == 0 || k > most {
			k = min(len(data), most)
		}
		n.part = append(n.part, data[:k]...)
		data = data[k:]
		if last := len(n.part) - 1; n.part[last] == '\r' {
			n.part[last], n.cr = '\n', true
		}
		if len(n.part) == mostLine || n.part[len(n.part)-1] == '\n' {
			out = n.flush(out, name)
		}
	}
	return out
}

// flush appends what waits as a line.
func (n *nodeLine) flush(out []byte, name string) []byte {
	if len(n.part) == 0 {
		return out
	}
	line := bytes.TrimSuffix(bytes.TrimSuffix(n.part, []byte{'\n'}), []byte{'\r'})
	end := n.part[len(line):]
	// What overwrites the line has the name in front, too: no process prints lines of another.
	out = append(append(out, name...), bytes.ReplaceAll(line, []byte{'\r'}, []byte("\r"+name))...)
	if out = append(out, end...); !bytes.HasSuffix(end, []byte{'\n'}) {
		out = append(out, '\n')
	}
	n.part = n.part[:0]
	return out
}

// rest writes lines that have no end: nothing more comes of these processes.
func (l *LogPosition) rest(w io.Writer) error {
	var out []byte
	for _, i := range slices.Sorted(maps.Keys(l.nodes)) {
		out = l.nodes[i].flush(out, nodeName(i))
	}
	return l.write(w, out)
}
