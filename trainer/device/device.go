// Package device finds the NVIDIA GPUs of this machine, measures them, and leases them to the workers of runs.
//
// What a driver does never harms a run: a machine without one has no devices, and says why; one that fails or hangs is asked once, in one place (guard), with a
// time limit, and not again. GPUs are found by NVML where the program is built with cgo, else, and where its library is not found, by the nvidia-smi that is installed with the driver.
//
// The process's own CUDA_VISIBLE_DEVICES is honoured: what it hides is neither listed nor leased.
package device

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Device is a GPU, or an instance of one that is divided (MIG).
type Device struct {
	Index  int    // of the GPU, as nvidia-smi counts
	UUID   string // GPU-..., of an instance MIG-...
	Name   string
	Memory int64  // bytes; 0: not known
	Parent string // of an instance: the UUID of its GPU; else ""
	// Visible is how CUDA_VISIBLE_DEVICES names it: as the process's own does, else its index, of an instance its UUID.
	Visible string
}

// Sample is what a device does at a moment. Numbers that it, or its driver, does not tell are NaN.
type Sample struct {
	Device      Device
	Utilisation float64 // 0 to 1: part of the last period (up to a second) in which something ran
	Memory      float64 // bytes in use
	Temperature float64 // degrees Celsius
	Power       float64 // watts
	Err         error   // Unavailable: the device is lost; it is not asked again
}

// Inventory is what a process may use.
type Inventory struct {
	Devices []Device // in the order of CUDA_VISIBLE_DEVICES
	Total   int      // GPUs of the machine, hidden ones included
	// Problem is why there are no devices, or fewer than might be expected; nil if all is as it should be. Its code is NotFound where there is no driver, which is normal on a machine without GPUs.
	Problem error

	guard  *guard
	limit  time.Duration // for a sample
	leases string        // folder
	poll   time.Duration
	own    bool // CUDA_VISIBLE_DEVICES is set
}

// Options of Discover. The zero value of every field is its default.
type Options struct {
	// Timeout for the driver to list its devices; 0: 30 seconds. A driver that sleeps takes seconds per GPU to wake.
	Timeout time.Duration
	// SampleTimeout for one Sample; 0: 10 seconds.
	SampleTimeout time.Duration
	// Leases is the folder of the leases, which all processes that share the GPUs have in common; "": penstock-UID/gpus in the temporary folder.
	Leases string

	sources []source      // tests: instead of the machine's
	visible *string       // tests: CUDA_VISIBLE_DEVICES
	poll    time.Duration // tests: between two looks for free GPUs
}

// source is a way to ask the driver. Its methods are called by the guard only, one at a time.
type source interface {
	name() string
	// open is the first call, and the only one after an error. errNext: this way is not there.
	open(ctx context.Context) error
	// list gives the GPUs in order of index; notes are about those that cannot be used.
	list(ctx context.Context) (all []gpu, notes []string, err error)
	// sample measures devices that list gave. An error is the end of the source.
	sample(ctx context.Context, of []Device) ([]Sample, error)
}

// gpu is a GPU with its instances.
type gpu struct {
	Device
	mig       bool // divided: not usable as a whole
	instances []Device
}

// machine is the one guard of this process: calls of the driver's library are never made at the same time, nor after a failure.
var machine = sync.OnceValue(func() *guard { return newGuard(append(native(), &smi{})) })

// Discover lists the devices of this machine. Only an end of ctx (Canceled) is an error: what is wrong with the devices or their driver is the inventory's Problem.
func Discover(ctx context.Context, o *Options) (*Inventory, error) {
	if o == nil {
		o = &Options{}
	}
	inv := &Inventory{limit: o.SampleTimeout, leases: o.Leases, poll: o.poll}
	if inv.limit <= 0 {
		inv.limit = 10 * time.Second
	}
	if inv.poll <= 0 {
		inv.poll = 200 * time.Millisecond
	}
	limit := o.Timeout
	if limit <= 0 {
		limit = 30 * time.Second
	}
	env, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if o.visible != nil || o.sources != nil {
		set = o.visible != nil
		if set {
			env = *o.visible
		}
	}
	inv.own = set
	if o.sources != nil {
		inv.guard = newGuard(o.sources)
	} else {
		inv.guard = machine()
	}
	var all []gpu
	var notes []string
	err := inv.guard.call(ctx, limit, "listing the GPUs", func(ctx context.Context, s source) (err error) {
		all, notes, err = s.list(ctx)
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		inv.Problem = err
		return inv, nil
	}
	inv.Total = len(all)
	var note string
	inv.Devices, note = visible(env, set, all)
	if note != "" {
		notes = append(notes, note)
	}
	if len(notes) > 0 {
		inv.Problem = fault.New(fault.Unavailable, "%s", strings.Join(notes, "; "))
	}
	return inv, nil
}

// Source is how devices were found: NVML, nvidia-smi, or "".
func (inv *Inventory) Source() string { return inv.guard.source() }

// Sample measures the devices of the inventory, or those given. After an error that is not Canceled it always fails with the same: samples are over for this process.
func (inv *Inventory) Sample(ctx context.Context, of ...Device) ([]Sample, error) {
	if of == nil {
		of = inv.Devices
	}
	if len(of) == 0 {
		return nil, nil
	}
	of = slices.Clone(of) // the call may outlive this one
	var got []Sample
	err := inv.guard.call(ctx, inv.limit, "measuring the GPUs", func(ctx context.Context, s source) (err error) {
		got, err = s.sample(ctx, of)
		return err
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

// unknown is a sample before anything is known.
func unknown(d Device) Sample {
	nan := math.NaN()
	return Sample{Device: d, Utilisation: nan, Memory: nan, Temperature: nan, Power: nan}
}

// visible says what CUDA makes of CUDA_VISIBLE_DEVICES: indices, or UUIDs, or UUIDs of instances, the latter two by any prefix that is unique. The first entry that is none of the
// kind that the list began with, or names nothing, ends the list; one that is repeated empties it. (PyTorch reads it the same way: torch.cuda._parse_visible_devices.) A
// GPU that is divided stands for its first instance, as in CUDA.
func visible(env string, set bool, all []gpu) (out []Device, note string) {
	if !set {
		for _, g := range all {
			if !g.mig {
				out = append(out, g.Device)
			}
			out = append(out, g.instances...)
		}
		return out, ""
	}
	entries := strings.Split(env, ",")
	kind := ""
	for _, k := range []string{"GPU-", "MIG-"} {
		if strings.HasPrefix(strings.TrimSpace(env), k) {
			kind = k
		}
	}
	for i, e := range entries {
		e = strings.TrimSpace(e)
		d, ok := find(e, kind, all)
		if !ok {
			switch {
			case i == 0 && slices.Contains([]string{"", "-1", "none", "void", "NoDevFiles"}, e): // the usual ways to say none
			case e == "-1":
			default:
				note = fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s: %q is not one of this machine's GPUs (it has %s), and CUDA reads no further: %d visible", clip(env), clip(e), has(all), len(out))
			}
			return out, note
		}
		if slices.ContainsFunc(out, func(o Device) bool { return o.UUID == d.UUID }) {
			return nil, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s: %q is there twice, for which CUDA shows no GPU at all", clip(env), clip(e))
		}
		d.Visible = e
		out = append(out, d)
	}
	return out, ""
}

// find resolves an entry.
func find(e, kind string, all []gpu) (d Device, ok bool) {
	n := 0
	for _, g := range all {
		usable := []Device{g.Device}
		if g.mig {
			usable = g.instances
		}
		for i, c := range usable {
			id := g.UUID
			switch kind {
			case "":
				if at, ok := leading(e); ok && at == g.Index && i == 0 {
					return c, true
				}
				continue
			case "MIG-":
				id = c.UUID
			}
			switch {
			case kind == "GPU-" && i > 0 || !strings.HasPrefix(e, kind):
			case id == e:
				return c, true
			case strings.HasPrefix(id, e):
				d = c
				n++
			}
		}
	}
	return d, n == 1
}

// leading is the number that e begins with, as C's strtoul has it.
func leading(e string) (int, bool) {
	digits := strings.TrimPrefix(e, "+")
	n := 0
	for n < len(digits) && digits[n] >= '0' && digits[n] <= '9' {
		n++
	}
	i, err := strconv.Atoi(digits[:n])
	return i, err == nil
}

// has says which GPUs there are.
func has(all []gpu) string {
	ds := make([]Device, len(all))
	for i, g := range all {
		ds[i] = g.Device
	}
	return names(ds)
}

// names lists devices: "none", "0-3, 5", "MIG-...".
func names(ds []Device) string {
	var parts []string
	var idx []int
	for _, d := range ds {
		if d.Parent != "" {
			parts = append(parts, d.UUID)
		} else {
			idx = append(idx, d.Index)
		}
	}
	slices.Sort(idx)
	var ranges []string
	for i := 0; i < len(idx); {
		j := i
		for j+1 < len(idx) && idx[j+1] == idx[j]+1 {
			j++
		}
		switch {
		case j == i:
			ranges = append(ranges, strconv.Itoa(idx[i]))
		case j == i+1:
			ranges = append(ranges, strconv.Itoa(idx[i]), strconv.Itoa(idx[j]))
		default:
			ranges = append(ranges, fmt.Sprintf("%d-%d", idx[i], idx[j]))
		}
		i = j + 1
	}
	parts = append(ranges, parts...)
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
