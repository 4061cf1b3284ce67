package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
)

const (
	// logChunk is the most of a log that is read at once.
	logChunk = 256 << 10
	// logLook is how often a log that is followed is looked at.
	logLook = 100 * time.Millisecond
	// keepLogs of processes that have ended.
	keepLogs = 200
)

var processID = regexp.MustCompile(`^j[0-9]+/[0-9]+/[0-9]+(/[a-z0-9]+)?$`)

// readLog answers one question for a part of a log. Offsets count from the beginning of what is kept: the last three files of 64 MiB.
func (a *agent) readLog(q *pb.ReadLog) {
	c := &pb.LogChunk{Request: q.GetRequest(), Process: q.GetProcess()}
	defer func() { a.say(&pb.FromAgent{Say: &pb.FromAgent_Log{Log: c}}) }()
	if !processID.MatchString(q.GetProcess()) {
		c.Error, c.End = fmt.Sprintf("%q is no process", q.GetProcess()), true
		return
	}
	until := time.Now().Add(min(time.Duration(q.GetWaitMs())*time.Millisecond, time.Minute))
	look := time.NewTicker(logLook)
	defer look.Stop()
	for {
		a.mu.Lock()
		runs := a.procs[q.GetProcess()] != nil // before the file is read: what it ends with is then there
		a.mu.Unlock()
		data, offset, err := readAt(filepath.Join(a.Dir, "logs", fileName(q.GetProcess())), q.GetOffset())
		c.Data, c.Offset = data, offset
		switch {
		case err != nil:
			c.Error = err.Error()
			c.End = true
			return
		case len(data) > 0:
			return
		case !runs:
			c.End = true
			return
		case !q.GetFollow() || time.Now().After(until):
			return
		}
		select {
		case <-look.C:
		case <-a.ctx.Done():
			c.End = true
			return
		}
	}
}

// trimLogs removes the logs of processes that ended longest ago.
func (a *agent) trimLogs() {
	dir := filepath.Join(a.Dir, "logs")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= keepLogs {
		return
	}
	a.mu.Lock()
	running := map[string]bool{}
	for id := range a.procs {
		running[fileName(id)] = true
	}
	a.mu.Unlock()
	type old struct {
		name string
		at   time.Time
	}
	var olds []old
	for _, e := range entries {
		if st, err := e.Info(); err == nil && !running[e.Name()] {
			olds = append(olds, old{e.Name(), st.ModTime()})
		}
	}
	slices.SortFunc(olds, func(a, b old) int { return a.at.Compare(b.at) })
	for _, o := range olds[:min(len(olds), len(entries)-keepLogs)] {
		if err := os.RemoveAll(filepath.Join(dir, o.name)); err != nil {
			a.Log.Warn("an old log stays", "err", err)
		}
	}
}

// readAt reads a part of what is kept of a log; an offset below 0 counts from its end. There may be no log yet.
func readAt(dir string, offset int64) (data []byte, at int64, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "attempt-*", "process.log*"))
	if err != nil {
		return nil, 0, err
	}
	slices.Sort(files)
	slices.Reverse(files) // process.log.2, process.log.1, process.log
	var sizes []int64
	total := int64(0)
	for _, f := range files {
		st, err := os.Stat(f)
		if errors.Is(err, fs.ErrNotExist) { // it was rotated away
			st, err = nil, nil
		}
		if err != nil {
			return nil, 0, err
		}
		n := int64(0)
		if st != nil {
			n = st.Size()
		}
		sizes = append(sizes, n)
		total += n
	}
	if offset < 0 {
		offset = max(total+offset, 0)
	}
	at = min(offset, total)
	skip := at
	for i, f := range files {
		if skip >= sizes[i] {
			skip -= sizes[i]
			continue
		}
		file, err := os.Open(f)
		if err != nil {
			return nil, 0, err
		}
		buf := make([]byte, min(sizes[i]-skip, logChunk))
		n, err := file.ReadAt(buf, skip)
		file.Close()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		return buf[:n], at, nil
	}
	return nil, at, nil
}
