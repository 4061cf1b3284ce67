package place

import (
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/penstock-data/penstock/internal/fault"
)

// What a node can offer and a process can need, at most: sums over all processes of a node, and
// over all nodes of a gang, are far from the end of int64.
const (
	MostMilliCPUs = 65_536 * 1000
	MostGPUs      = 1024
	MostMemory    = 1 << 50 // bytes
	MostNamed     = 1 << 50 // of one kind
	MostKinds     = 256     // that are named
	MostLabels    = 256
	MostName      = 253 // bytes, of a kind or the name of a label
	MostLabel     = 1 << 10
)

// Check refuses resources that nothing has or needs, with the name of the field: "milli_cpus: -1
// ...". Whatever passes it can be added, placed and shown.
func (r Resources) Check() error {
	for _, x := range []struct {
		field   string
		v, most int64
	}{{"milli_cpus", r.MilliCPUs, MostMilliCPUs}, {"gpus", r.GPUs, MostGPUs}, {"memory", r.Memory, MostMemory}} {
		if err := between(x.v, x.most, x.field); err != nil {
			return err
		}
	}
	if len(r.Named) > MostKinds {
		return fault.New(fault.Invalid, "%d kinds of named resources: %d are the most", len(r.Named), MostKinds)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Named)) {
		if !printable(k, 1, MostName) {
			return fault.New(fault.Invalid, "a named resource with the name %.300q: it has 1 to %d bytes without control characters", k, MostName)
		}
		if err := between(r.Named[k], MostNamed, k); err != nil {
			return err
		}
	}
	return nil
}

func between(v, most int64, what string) error {
	switch {
	case v < 0:
		return fault.New(fault.Invalid, "%d %s, which is less than nothing", v, what)
	case v > most:
		return fault.New(fault.Invalid, "%d %s: %d are the most", v, what, most)
	}
	return nil
}

// Clamp is r within what Check takes, and without what is named: what somebody measured, and
// nothing is decided by.
func (r Resources) Clamp() Resources {
	return Resources{MilliCPUs: min(max(r.MilliCPUs, 0), MostMilliCPUs), GPUs: min(max(r.GPUs, 0), MostGPUs), Memory: min(max(r.Memory, 0), MostMemory)}
}

// CheckLabels refuses labels that cannot be shown, or are too many or too long, with their name.
func CheckLabels(labels map[string]string) error {
	if len(labels) > MostLabels {
		return fault.New(fault.Invalid, "%d labels: %d are the most", len(labels), MostLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		switch {
		case !printable(k, 1, MostName):
			return fault.New(fault.Invalid, "a label with the name %.300q: it has 1 to %d bytes without control characters", k, MostName)
		case !printable(labels[k], 0, MostLabel):
			return fault.New(fault.Invalid, "label %q with the value %.300q: it has up to %d bytes without control characters", k, labels[k], MostLabel)
		}
	}
	return nil
}

func printable(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && !strings.ContainsFunc(s, unicode.IsControl)
}
