package trainer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/group"
	"github.com/penstock-data/penstock/trainer/store"
	"golang.org/x/sys/unix"
)

// complete keeps the metrics of a report that all ranks have made.
func (c *controller) complete(n int64) {
	all := c.a.reports[n]
	metrics := map[string]float64{}
	step, files := int64(0), false
	for _, r := range slices.Backward(all) {
		for name, v := range r.Metrics {
			metrics[name] = v // of the lowest rank that has it
		}
		step, files = max(step, r.Step), files || r.Dir != ""
	}
	if !files {
		delete(c.a.reports, n)
	}
	c.reports, c.last = n, metrics
	kept := metrics
	if len(c.devices) > 0 {
		kept = maps.Clone(metrics)
		maps.Copy(kept, c.devices)
	}
	if err := c.metrics.Append(n, time.Now(), step, kept); err != nil {
		c.cfg.Log.Warn("metrics are lost", "run", c.cfg.Name, "report", n, "error", err)
	}
	if h := c.cfg.Events.Reported; h != nil {
		h(n, c.a.number, metrics)
	}
}

// commit makes a report a checkpoint.
func (c *controller) commit(n int64, ranks []int) {
	at := c.a
	all := at.reports[n]
	delete(at.reports, n)
	k := store.Commit{Attempt: at.number, Report: n, Metrics: c.last, World: c.cfg.Workers, Data: map[string]store.Data{}, Parallel: c.cfg.Checkpoint.Parallel}
	if c.reports != n { // others were completed meanwhile
		k.Metrics = map[string]float64{}
		for _, r := range slices.Backward(all) {
			for name, v := range r.Metrics {
				k.Metrics[name] = v
			}
		}
	}
	for name, d := range at.states {
		k.Data[name] = d
	}
	for _, r := range all {
		for name, raw := range r.Data {
			k.Data[name] = store.Data{State: raw}
		}
	}
	for _, rank := range ranks {
		k.Parts = append(k.Parts, store.Part{Rank: rank, Dir: all[rank].Dir})
	}
	c.others.Go(func() { c.upload(at, k) })
}

// upload commits, and tells the state machine.
func (c *controller) upload(at *attempt, k store.Commit) {
	var m *store.Manifest
	staged, err := c.takeOver(at, &k)
	defer os.RemoveAll(staged) // "": nothing
	for name, d := range k.Data {
		if err == nil {
			if _, perr := shard.ParseState(d.State); perr != nil {
				err = fault.New(fault.CodeOf(perr), "the state of data set %q: %w", name, perr)
			}
		}
		if err != nil {
			break
		}
		if d.Ledger, err = c.feeder.Ledger(c.ctx, name); errors.Is(err, feeder.ErrDied) {
			err = nil // the data process is gone, which is told elsewhere: the state is all that is needed to go on
		}
		k.Data[name] = d
	}
	if err == nil {
		m, err = c.run.Commit(c.ctx, k)
	}
	c.post(func() {
		e := group.Event{Kind: group.Uploaded, N: k.Report, Err: err}
		if err == nil {
			e.Checkpoint, c.newest = m.Number, m.Number
			c.committed(m)
			c.write(string(c.g.State()))
			if h := c.cfg.Events.Committed; h != nil {
				h(*m)
			}
		}
		c.step(e)
	})
	if err == nil {
		if err := c.run.Prune(c.ctx, c.cfg.Checkpoint.Policy); err != nil && c.ctx.Err() == nil {
			c.cfg.Log.Warn("checkpoints that are not kept", "run", c.cfg.Name, "error", err)
		}
	}
}

// committed tells of a checkpoint.
func (c *controller) committed(m *store.Manifest) {
	text := fmt.Sprintf("checkpoint %d at report %d (%s)", m.Number, m.Report, bytesText(m.Bytes))
	for i, name := range slices.Sorted(maps.Keys(m.Metrics)) {
		text += fmt.Sprintf("%s %s %.6g", [2]string{":", ","}[min(i, 1)], name, m.Metrics[name])
	}
	c.cfg.Log.Info(text, "run", c.cfg.Name, "checkpoint", m.Number, "report", m.Report, "bytes", m.Bytes)
	k := c.cfg.Checkpoint
	if _, ok := m.Metrics[k.Metric]; k.KeepBest > 0 && !ok && !c.warned {
		c.warned = true
		have := "none"
		if len(m.Metrics) > 0 {
			have = strings.Join(slices.Sorted(maps.Keys(m.Metrics)), ", ")
		}
		c.cfg.Log.Warn(fmt.Sprintf("checkpoint %d has no metric %q, by which the best are kept (keep_best.metric): its metrics are %s", m.Number, k.Metric, have), "run", c.cfg.Name)
	}
}

// bytesText is a size for people.
func bytesText(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v >= 1024 {
			v, unit = v/1024, u
		}
	}
	if v < 10 && unit != "B" {
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

// takeOver makes the folders of ranks the controller's, where nobody waits for their upload. It returns the folder that they are in; "": they stay where they are.
func (c *controller) takeOver(at *attempt, k *store.Commit) (staged string, err error) {
	if c.staging == nil {
		return "", nil
	}
	if staged, err = os.MkdirTemp(c.staging.path, "report-"); err != nil {
		return "", fault.Wrap(err, fault.Place{File: c.staging.path})
	}
	for i := range k.Parts {
		to := filepath.Join(staged, "rank-"+strconv.Itoa(k.Parts[i].Rank))
		if err := moveDir(k.Parts[i].Dir, to); err != nil {
			return staged, err
		}
		k.Parts[i].Dir = to
	}
	n := c.run.Next()
	c.event(at, group.Event{Kind: group.Taken, N: k.Report, Checkpoint: n})
	return staged, nil
}

// moveDir renames a folder, or copies it and removes what it was where that cannot be.
func moveDir(from, to string) error {
	err := os.Rename(from, to)
	if err == nil || !errors.Is(err, unix.EXDEV) {
		return fault.Wrap(err, fault.Place{File: from})
	}
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(dst, 0o700)
		}
		return copyFile(path, dst) // what is no file the commit refuses, by its name
	})
	if err != nil {
		return fault.Wrap(err, fault.Place{File: from})
	}
	return fault.Wrap(os.RemoveAll(from), fault.Place{File: from})
}

func copyFile(from, to string) (err error) {
	if st, err := os.Lstat(from); err != nil || !st.Mode().IsRegular() {
		if err == nil {
			err = fault.New(fault.Invalid, "not a file: checkpoints hold files and folders only").At(fault.Place{File: from})
		}
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
