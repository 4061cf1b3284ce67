package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// footprint is what the controller and the data process take while two workers train, steps of 20 ms with a report after each: memory as the system counts it (RSS, with what is shared; the
// largest of samples of 100 ms) and CPU time over wall time, from the first batch to the last.
func footprint(b *bench) error {
	o := settings{Blocks: [][2]int{{20, 400}}, Warm: 1, Report: true}
	if b.Quick {
		o.Blocks[0][1] = 60
	}
	for _, e := range []string{"go", "pytorch"} {
		what := fmt.Sprintf("memory and CPU, %s, 2 workers, 20 ms steps: ", cmp.Or(b.engines()[e], "PyTorch script"))
		if b.engines()[e] == "" {
			b.absent(what + "controller and data process")
			continue
		}
		r, err := b.start(e, o)
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() { done <- r.wait() }()
		all, err := watch(r, done)
		if err != nil {
			return err
		}
		for _, p := range all {
			name := p.name
			if e == "go" {
				name = "the controller, which serves the data"
			}
			b.Add(what+name, "", "%.0f MiB (of its own %.0f, shared %.0f); %.1f %% of a core", float64(p.rss)/(1<<20), float64(p.rss-p.shared)/(1<<20), float64(p.shared)/(1<<20), 100*p.cpu/p.wall)
		}
	}
	return nil
}

// process that is watched.
type process struct {
	name        string
	pid         int
	rss, shared int64   // bytes
	cpu, wall   float64 // seconds
}

// watch samples the controller of a run, and its data process where it has one, while the ranks train.
func watch(r *run, done <-chan error) ([]*process, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for { // until both ranks have their first batch
		select {
		case err := <-done:
			return nil, fmt.Errorf("it ended before its ranks trained: %w", errors.Join(err, errors.New(strings.Join(r.log.text, "\n"))))
		case <-tick.C:
		}
		if all, err := filepath.Glob(filepath.Join(r.out, "marks-1-?.json")); err == nil && len(all) == workers {
			break
		}
	}
	all := []*process{{name: "the controller", pid: r.cmd.Process.Pid}}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	var children []byte
	for _, t := range tasks { // children are listed by the thread that started them
		more, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		children = append(children, more...)
	}
	for _, c := range strings.Fields(string(children)) {
		argv, err := os.ReadFile("/proc/" + c + "/cmdline")
		if err != nil || !bytes.Contains(argv, []byte("\x00data\x00")) {
			continue
		}
		pid, err := strconv.Atoi(c)
		if err != nil {
			return nil, err
		}
		all = append(all, &process{name: "the data process", pid: pid})
	}
	first := make([]float64, len(all))
	begin := time.Now()
	for i, p := range all {
		if first[i], _, _, err = usage(p.pid); err != nil {
			return nil, err
		}
	}
	for {
		select {
		case err := <-done:
			return all, err
		case <-tick.C:
		}
		if _, err := os.Stat(filepath.Join(r.out, "rank-0.json")); err == nil {
			continue // the ranks are through
		}
		for i, p := range all {
			cpu, rss, shared, err := usage(p.pid)
			if err != nil {
				continue // it has ended
			}
			if p.cpu, p.wall = cpu-first[i], time.Since(begin).Seconds(); rss > p.rss {
				p.rss, p.shared = rss, shared
			}
		}
	}
}

// usage of a process: CPU seconds, resident bytes, and those of them that are of files and shared memory.
func usage(pid int) (cpu float64, rss, shared int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, 0, err
		}
		cpu += float64(ticks) / 100
	}
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	var size, resident, files int64
	if _, err := fmt.Sscan(string(text), &size, &resident, &files); err != nil {
		return 0, 0, 0, err
	}
	page := int64(os.Getpagesize())
	return cpu, resident * page, files * page, nil
}
