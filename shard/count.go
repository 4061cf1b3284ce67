package shard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// countRows counts the rows of splits that do not know them, by reading them once. What it finds is
// kept in the user's cache folder, by the fingerprint of the data.
func countRows(ctx context.Context, t driver.Table, splits []int) ([]int64, error) {
	all := t.Splits()
	file := countFile(ctx, t)
	known := readCounts(file)
	rows := make([]int64, len(splits))
	var todo []int
	for k, i := range splits {
		n, ok := known[all[i].ID]
		if rows[k] = n; !ok || n < 0 {
			todo = append(todo, k)
		}
	}
	if len(todo) == 0 {
		return rows, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var g sync.WaitGroup
	work := make(chan int)
	for range min(runtime.GOMAXPROCS(0), len(todo)) {
		g.Go(func() {
			for k := range work {
				n, err := countSplit(ctx, t, splits[k])
				if err != nil {
					s := all[splits[k]]
					cancel(fault.Wrap(err, fault.Place{File: s.File, RowGroup: fault.N(s.Index)}))
					return
				}
				rows[k] = n
			}
		})
	}
feed:
	for _, k := range todo {
		select {
		case work <- k:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	g.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if known == nil {
		known = map[string]int64{}
	}
	for _, k := range todo {
		known[all[splits[k]].ID] = rows[k]
	}
	writeCounts(file, known)
	return rows, nil
}

func countSplit(ctx context.Context, t driver.Table, i int) (n int64, err error) {
	rd, err := t.Open(ctx, i, &driver.ScanOptions{
		Columns: []string{},
		OnBadRow: func(err error) error { // it keeps its number; the run fails or skips it
			if row, ok := fault.PlaceOf(err).Row.Get(); ok {
				n = row + 1
			}
			return nil
		},
	})
	if err != nil {
		return 0, err
	}
	defer rd.Close()
	for {
		b, err := rd.Next(ctx)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		n = b.Row + b.Record.NumRows()
		b.Record.Release()
	}
}

// countVersion changes with how rows are counted: counts of another one are not read.
const countVersion = 2

// countFile is where counts of t are kept; "" where they cannot be.
func countFile(ctx context.Context, t driver.Table) string {
	fp, err := t.Fingerprint(ctx)
	if err != nil {
		return ""
	}
	h := sha256.New()
	fmt.Fprintln(h, countVersion, fp)
	writeTimes(h, t)
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "penstock", "rows", hex.EncodeToString(h.Sum(nil)[:16])+".json")
}

// writeTimes writes when the files of t were changed that are local: of these a fingerprint knows the ends only.
func writeTimes(w io.Writer, t driver.Table) {
	last := ""
	for _, s := range t.Splits() {
		if s.File == last {
			continue
		}
		last = s.File
		if st, err := os.Stat(strings.TrimPrefix(s.File, "file://")); err == nil {
			fmt.Fprintln(w, s.File, st.ModTime().UnixNano())
		}
	}
}

func readCounts(file string) map[string]int64 {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var m map[string]int64
	if json.Unmarshal(b, &m) != nil { // cut short by a crash of the machine: counted again
		return nil
	}
	return m
}

// writeCounts keeps counts; where that fails they are counted again next time.
func writeCounts(file string, m map[string]int64) {
	if file == "" {
		return
	}
	b, err := json.Marshal(m)
	if err != nil || os.MkdirAll(filepath.Dir(file), 0o700) != nil {
		return
	}
	writeFile(file, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// writeFile makes a file of a cache in one step; where that fails there is none.
func writeFile(file string, write func(*os.File) error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), "new-*")
	if err != nil {
		return
	}
	err = write(tmp)
	if cerr := tmp.Close(); err != nil || cerr != nil || os.Rename(tmp.Name(), file) != nil {
		_ = os.Remove(tmp.Name())
	}
}
