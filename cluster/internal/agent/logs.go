package agent

import (
	"context"
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
	"github.com/penstock-data/penstock/trainer/launch"
)

const (
	// logChunk is the most of a log that is read at once.
	logChunk = 256 << 10
	// logLook is how often a log that is followed is looked at.
	logLook = 100 * time.Millisecond
	// keepLogs of processes that have ended.
	keepLogs = 200
)

// rotation is the size of the files of a log, of which three are kept, so that they have at most so
// many bytes; 0: those of any process.
func rotation(file, most int64) int64 {
	const least = 4 << 10
	if most <= 0 {
		return file
	}
	if file <= 0 {
		file = 64 << 20
	}
	return min(file, max(most/3, least))
}

var processID = regexp.MustCompile(`^j[0-9]+/[0-9]+/[0-9]+(/[a-z0-9]+)?$`)

// readLog answers a question of the session of ctx for a part of a log. Offsets count all that the
// process printed, of which the last three files of Config.Rotate are kept.
func (a *agent) readLog(ctx context.Context, q *pb.ReadLog) {
	c := &pb.LogChunk{Request: q.GetRequest(), Process: q.GetProcess()}
	defer func() { a.answer(ctx, &pb.FromAgent{Say: &pb.FromAgent_Log{Log: c}}) }()
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
			if q.GetOffset() >= 0 && offset > q.GetOffset() {
				c.Error = "its node keeps the end of a long log only"
			}
			return
		case !runs:
			c.End = true
			return
		case !q.GetFollow() || time.Now().After(until):
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done(): // nobody waits for the answer
			return
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

// readAt reads a part of a log. Offsets count all that was printed; one below 0 counts from the end. What lies between offset and at is not kept any more. There may be no log yet.
func readAt(dir string, offset int64) (data []byte, at int64, err error) {
	folders, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(folders) == 0 {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	path := filepath.Join(dir, folders[0].Name(), "process.log") // attempt-1: a process has one
	for {
		begin, err := launch.Rotated(path)
		if err != nil {
			return nil, 0, err
		}
		if data, at, err = readFiles(path, begin, offset); err != nil {
			return nil, 0, err
		}
		if now, err := launch.Rotated(path); err != nil || now == begin {
			return data, at, err
		} // else files were renamed or emptied meanwhile
	}
}

// readFiles is readAt of the files that are there, of which the oldest begins at begin.
func readFiles(path string, begin, offset int64) (data []byte, at int64, err error) {
	var files []*os.File // the newest first
	var infos []os.FileInfo
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	end := begin
	for _, suffix := range []string{"", ".1", ".2"} { // against the way that files are renamed: one may be met twice, and none is missed
		f, err := os.Open(path + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		files = append(files, f)
		st, err := f.Stat()
		if err != nil {
			return nil, 0, err
		}
		if n := len(infos); n > 0 && os.SameFile(infos[n-1], st) {
			files = files[:n]
			f.Close()
			continue
		}
		infos = append(infos, st)
		end += st.Size()
	}
	if offset < 0 {
		offset = end + offset
	}
	at = min(max(offset, begin), end)
	skip := at - begin
	for i := len(files) - 1; i >= 0; i-- {
		size := infos[i].Size()
		if skip >= size {
			skip -= size
			continue
		}
		buf := make([]byte, min(size-skip, logChunk))
		n, err := files[i].ReadAt(buf, skip)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		return buf[:n], at, nil
	}
	return nil, at, nil
}
