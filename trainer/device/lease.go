package device

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Lease is the right to use devices, against all processes of the same user that lease. It ends with Release or with the process, however that ends. It does not bind
// programs that lease nothing.
type Lease struct {
	per     int
	devices []Device
	own     bool // this process has a CUDA_VISIBLE_DEVICES

	once  sync.Once
	files []*os.File
}

// Lease takes perWorker whole devices for each of so many workers: all at once or none, so that runs cannot wait for each other. What can never be had is refused at once
// (Invalid), saying what there is; what others hold is waited for, in order of arrival, until ctx ends. waiting (nil: nobody) is told why, when that changes; it must not block.
//
// Instances of a divided GPU are leased to workers that ask for one device: CUDA uses no more than one in a process.
func (inv *Inventory) Lease(ctx context.Context, run string, perWorker, workers int, waiting func(reason string)) (*Lease, error) {
	if perWorker < 1 || workers < 1 {
		return nil, fault.New(fault.Invalid, "asked for %d GPUs for each of %d workers", perWorker, workers)
	}
	l := &Lease{per: perWorker, own: inv.own}
	want := perWorker * workers
	usable := slices.Clone(inv.Devices)
	if perWorker > 1 {
		usable = slices.DeleteFunc(usable, func(d Device) bool { return d.Parent != "" })
	}
	if len(usable) < want {
		return nil, inv.infeasible(perWorker, workers, usable)
	}
	if waiting == nil {
		waiting = func(string) {}
	}
	q := queue{run: run, want: want, usable: usable}
	var err error
	if q.dir, err = folder(inv.leases); err != nil {
		return nil, err
	}
	defer q.close()
	said := ""
	for {
		reason, err := q.try(l)
		if err != nil {
			return nil, err
		}
		if l.devices != nil {
			return l, nil
		}
		if reason != said && reason != "" {
			said = reason
			waiting(reason)
		}
		t := time.NewTimer(inv.poll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			if said != "" {
				return nil, fault.New(fault.Canceled, "gave up: it %s: %w", said, context.Cause(ctx))
			}
			return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
	}
}

// infeasible says what is asked and what there is.
func (inv *Inventory) infeasible(per, workers int, usable []Device) error {
	asked := fmt.Sprintf("asked for %d GPUs (%d workers x %d)", per*workers, workers, per)
	switch {
	case per*workers == 1:
		asked = "asked for 1 GPU"
	case workers == 1:
		asked = fmt.Sprintf("asked for %d GPUs for one worker", per)
	}
	has := "this machine has none"
	if len(usable) > 0 {
		has = fmt.Sprintf("this machine has %d: %s", len(usable), names(usable))
	}
	if len(usable) < len(inv.Devices) {
		has += fmt.Sprintf(" beside %d instances of divided GPUs, of which a worker can have one", len(inv.Devices)-len(usable))
	}
	if inv.own {
		has += fmt.Sprintf("; CUDA_VISIBLE_DEVICES shows %d of %d", len(inv.Devices), inv.Total)
	}
	if inv.Problem != nil {
		return fault.New(fault.Invalid, "%s, %s: %w", asked, has, inv.Problem)
	}
	return fault.New(fault.Invalid, "%s, %s", asked, has)
}

// Devices of a worker, counted from 0.
func (l *Lease) Devices(worker int) []Device { return l.devices[worker*l.per : (worker+1)*l.per] }

// Visible is what CUDA_VISIBLE_DEVICES of a worker says, one entry per device.
func (l *Lease) Visible(worker int) []string {
	out := make([]string, 0, l.per)
	for _, d := range l.Devices(worker) {
		out = append(out, d.Visible)
	}
	return out
}

// Env is what a worker's environment needs, as NAME=value: it sees its own devices alone.
func (l *Lease) Env(worker int) []string {
	env := []string{"CUDA_VISIBLE_DEVICES=" + strings.Join(l.Visible(worker), ",")}
	if !l.own {
		env = append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID") // else CUDA counts the fastest first, and not as we do
	}
	return env
}

// Release gives the devices back. It may be called twice.
func (l *Lease) Release() {
	l.once.Do(func() {
		for _, f := range l.files {
			f.Close() // and with it the lock
		}
	})
}

// folder makes sure of the folder of leases: the user's own, and closed to others. It is not below XDG_RUNTIME_DIR, which goes with the user's last session while
// his runs go on, and which processes started by cron or sudo do not have.
func folder(dir string) (string, error) {
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "penstock-"+strconv.Itoa(os.Getuid()), "gpus")
		if err := private(filepath.Dir(dir)); err != nil {
			return "", err
		}
	}
	return dir, private(dir)
}

func private(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fault.Wrap(err, fault.Place{File: dir})
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fault.Wrap(err, fault.Place{File: dir})
	}
	if !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 || !mine(fi) {
		return fault.New(fault.Denied, "%s (%s) is not a folder of this user that is closed to others (mode 0700), which leases of GPUs need: remove it, or set TMPDIR", dir, fi.Mode())
	}
	return nil
}

// holder is what a file of the folder says about who has it locked; it means nothing while nobody has.
type holder struct {
	who
	Want int      `json:"want,omitempty"` // in the queue: number of devices
	Of   []string `json:"of,omitempty"`   // and which would do
}

type who struct {
	Run string `json:"run"`
	PID int    `json:"pid"`
}

func (w who) String() string { return fmt.Sprintf("run %s (process %d)", w.Run, w.PID) }

// queue is one request. In the folder lie, each with a lock (flock) that ends with its process:
//
//	table        held while somebody looks at the rest, or changes it
//	gpu-UUID     held by who has the device
//	wait-NUMBER  held by who waits; the lower number comes first
type queue struct {
	dir    string
	run    string
	want   int
	usable []Device
	ticket *os.File // nil: not in the queue yet
	number int
}

// close leaves the queue.
func (q *queue) close() {
	if q.ticket != nil {
		os.Remove(q.ticket.Name())
		q.ticket.Close()
	}
}

// try takes all devices for l, or none and says why. "": others are looking just now.
func (q *queue) try(l *Lease) (reason string, err error) {
	table, ok, err := lock(filepath.Join(q.dir, "table"))
	if err != nil {
		return "", err
	}
	defer table.Close()
	if !ok {
		return "", nil
	}
	first, err := q.ahead()
	if err != nil {
		return "", err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	var got []Device
	busy := map[who][]Device{}
	for _, d := range q.usable {
		f, ok, err := lock(filepath.Join(q.dir, "gpu-"+strings.ReplaceAll(d.UUID, "/", "_")))
		if err != nil {
			return "", err
		}
		if !ok {
			h := read(f)
			f.Close()
			busy[h.who] = append(busy[h.who], d)
			continue
		}
		if len(got) == q.want {
			f.Close()
			continue
		}
		files = append(files, f)
		got = append(got, d)
	}
	if len(got) < q.want || first != nil {
		if err := q.enqueue(); err != nil {
			return "", err
		}
		return q.reason(len(got), busy, first), nil
	}
	for _, f := range files {
		if err := write(f, holder{who: who{q.run, os.Getpid()}}); err != nil {
			return "", err
		}
	}
	// Who cleans temporary folders leaves alone what is locked.
	d, _, err := lockFolder(q.dir)
	if err != nil {
		return "", err
	}
	files = append(files, d)
	l.devices, l.files, files = got, files, nil
	return "", nil
}

func (q *queue) reason(free int, busy map[who][]Device, first *holder) string {
	var parts []string
	for h, ds := range busy {
		parts = append(parts, fmt.Sprintf("%s held by %s", names(ds), h))
	}
	slices.Sort(parts)
	text := "waits for GPUs"
	if q.want == 1 {
		text = "waits for a GPU"
	} else if free < q.want {
		text = fmt.Sprintf("waits for %d more GPUs", q.want-free)
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, "; ")
	}
	if first != nil {
		text += fmt.Sprintf("; behind %s, which waits for %d", first.who, first.Want)
	}
	return text
}

// ahead is somebody who has waited longer for one of the same devices, or nil. Tickets of dead processes are removed.
func (q *queue) ahead() (first *holder, err error) {
	entries, err := os.ReadDir(q.dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: q.dir})
	}
	type ticket struct {
		number int
		path   string
	}
	var before []ticket
	last := 0
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), "wait-")
		n, err := strconv.Atoi(text)
		if !ok || err != nil {
			continue
		}
		last = max(last, n)
		if q.ticket == nil || n < q.number {
			before = append(before, ticket{n, filepath.Join(q.dir, e.Name())})
		}
	}
	if q.ticket == nil {
		q.number = last + 1
	}
	slices.SortFunc(before, func(a, b ticket) int { return cmp.Compare(a.number, b.number) })
	for _, t := range before {
		f, dead, err := lock(t.path)
		if err != nil {
			return nil, err
		}
		h := read(f)
		if dead {
			os.Remove(t.path)
		}
		f.Close()
		if !dead && first == nil && slices.ContainsFunc(q.usable, func(d Device) bool { return slices.Contains(h.Of, d.UUID) }) {
			first = &h
		}
	}
	return first, nil
}

// enqueue takes a ticket, behind all others.
func (q *queue) enqueue() error {
	if q.ticket != nil {
		return nil
	}
	path := filepath.Join(q.dir, fmt.Sprintf("wait-%d", q.number))
	f, ok, err := lock(path)
	if err != nil {
		return err
	}
	if !ok {
		f.Close()
		return fault.New(fault.Internal, "%s is taken", path)
	}
	h := holder{who: who{q.run, os.Getpid()}, Want: q.want}
	for _, d := range q.usable {
		h.Of = append(h.Of, d.UUID)
	}
	if err := write(f, h); err != nil {
		os.Remove(path)
		f.Close()
		return err
	}
	q.ticket = f
	return nil
}

// read gives what a file says; what is not readable is empty.
func read(f *os.File) (h holder) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
	if err == nil {
		_ = json.Unmarshal(b, &h)
	}
	return h
}

// write replaces it.
func write(f *os.File, h holder) error {
	b, err := json.Marshal(h)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	return fault.Wrap(err, fault.Place{File: f.Name()})
}
