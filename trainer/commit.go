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
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/group"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
	"golang.org/x/sys/unix"
)

// complete keeps the metrics of a report that all ranks have made.
func (c *controller) complete(n int64) {
	all := c.a.reports[n]
	metrics := metricsOf(all)
	row, files, made := store.Row{Report: n}, false, int64(0)
	for _, r := range all {
		made = max(made, r.At)
		for _, p := range r.Data {
			if p.Epoch > row.Epoch || p.Epoch == row.Epoch && p.Step > row.Step {
				row.Epoch, row.Step = p.Epoch, p.Step
			}
		}
		files = files || r.Dir != ""
	}
	if !files {
		delete(c.a.reports, n)
	}
	c.reports, c.last = n, metrics
	row.Metrics, row.Time = metrics, time.Unix(0, made)
	if len(c.devices) > 0 {
		row.Metrics = maps.Clone(metrics)
		for _, m := range c.devices {
			maps.Copy(row.Metrics, m)
		}
	}
	if err := c.metrics.Append(row); err != nil {
		c.cfg.Log.Warn("metrics are lost", "run", c.cfg.Name, "report", n, "error", err)
	}
	if h := c.cfg.Events.Reported; h != nil {
		h(n, c.a.number, metrics)
	}
}

// metricsOf a report of all ranks: where several have the same name, that of the lowest counts.
func metricsOf(all []*wire.Report) map[string]float64 {
	out := map[string]float64{}
	for _, r := range slices.Backward(all) {
		maps.Copy(out, r.Metrics)
	}
	return out
}

// commit makes a report a checkpoint.
func (c *controller) commit(n int64, ranks []int) {
	at := c.a
	all := at.reports[n]
	delete(at.reports, n)
	k := store.Commit{Attempt: at.number, Report: n, Metrics: metricsOf(all), World: c.cfg.Workers, Data: maps.Clone(at.states), Parallel: c.cfg.Checkpoint.Parallel}
	places := map[string]wire.Place{}
	for _, r := range all {
		maps.Copy(places, r.Data) // they are equal
		for name, p := range r.Data {
			if p.State != nil {
				k.Data[name] = store.Data{State: p.State}
			}
		}
	}
	f := &reportFiles{c: c, report: n}
	for _, rank := range ranks {
		f.add(rank, all[rank].Dir)
	}
	c.others.Go(func() { c.upload(at, k, f, places) })
}

// placed refuses a checkpoint whose states are not those of the places where the ranks are. A set that no rank with files has opened has the state that the attempt began with, or none where it began anew.
func placed(data map[string]store.Data, places map[string]wire.Place) (err error) {
	for name, p := range places {
		at := shard.State{Epoch: p.Epoch}
		if d, ok := data[name]; ok {
			if at, err = shard.ParseState(d.State); err != nil {
				return fault.New(fault.CodeOf(err), "the state of data set %q: %w", name, err)
			}
		}
		if at.Epoch != p.Epoch || at.Step != p.Step {
			return fault.New(fault.Invalid, "the ranks are at step %d of epoch %d of data set %q, but no rank that gives files has opened it: open every training data set on the ranks that save, before the first report", p.Step, p.Epoch, name)
		}
	}
	return nil
}

// upload commits, and tells the state machine.
func (c *controller) upload(at *attempt, k store.Commit, f *reportFiles, places map[string]wire.Place) {
	var m *store.Manifest
	err := placed(k.Data, places)
	if err == nil {
		err = f.take(at)
	}
	if err == nil {
		err = c.ledgers(k.Data)
	}
	if err == nil {
		f.into(&k)
		m, err = c.run.Commit(c.ctx, k)
	}
	err = f.settle(err)
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

// ledgers adds the ledgers of data sets to their states. One that cannot be had is no failure: the state is all that is needed to go on.
func (c *controller) ledgers(data map[string]store.Data) (err error) {
	for name, d := range data {
		d.Ledger, err = c.feeder.Ledger(c.ctx, name)
		switch {
		case err == nil, errors.Is(err, feeder.ErrDied): // the data process is gone, which is told elsewhere
		case c.ctx.Err() != nil:
			return err
		default:
			c.cfg.Log.Warn(fmt.Sprintf("the ledger of data set %q is not in the checkpoint (%v): a replay has to count; larger shuffle windows, which a new run can have, make shorter ledgers", name, err), "run", c.cfg.Name, "data", name)
		}
		data[name] = d
	}
	return nil
}

// committed tells of a checkpoint.
func (c *controller) committed(m *store.Manifest) {
	text := fmt.Sprintf("checkpoint %d at report %d (%s)", m.Number, m.Report, units.Bytes(m.Bytes))
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

// moveDir renames a folder, or copies it and removes what it was where that cannot be. After an error one of both is whole.
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
		_ = os.RemoveAll(to) // from is whole
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
