package head

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/internal/fault"
)

// idOf are ids of jobs and nodes, which commands take in place of a name.
var idOf = regexp.MustCompile(`^[jn][0-9]+$`)

// mostDevice is the bytes that the name of a device takes in a record: 40 and quotes of NVIDIA's.
const mostDevice = 56

// odd says that a text cannot be shown in a line.
func odd(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// checkInventory refuses what no machine is, with the field. It is asked when a node joins and
// whenever it attaches: there is no other way by which it says what it has.
func checkInventory(inv *pb.Inventory) error {
	c := inv.GetCapacity()
	switch {
	case inv.GetName() == "" || len(inv.GetName()) > 253 || odd(inv.GetName()):
		return fault.New(fault.Invalid, "a node's name has 1 to 253 bytes without control characters; this is not: %.300q", inv.GetName())
	case idOf.MatchString(inv.GetName()):
		return fault.New(fault.Invalid, "a node called %s would be taken for the job or node of that id: give it another name with --name", inv.GetName())
	case len(inv.GetVersion()) > 253 || odd(inv.GetVersion()):
		return fault.New(fault.Invalid, "the version of node %s has more than 253 bytes, or control characters: %.300q", inv.GetName(), inv.GetVersion())
	}
	text, _ := json.Marshal([]any{c.GetNamed(), inv.GetLabels(), inv.GetDevices()}) // numbers and texts
	if len(text) > 32<<10 {
		return fault.New(fault.Invalid, "the labels, resources and devices of node %s take %d bytes; 32 KiB is the most", inv.GetName(), len(text))
	}
	if err := resources(c).Check(); err != nil {
		return fault.New(fault.Invalid, "node %s offers %w", inv.GetName(), err)
	}
	if err := place.CheckLabels(inv.GetLabels()); err != nil {
		return fault.New(fault.Invalid, "node %s has %w", inv.GetName(), err)
	}
	if int64(len(inv.GetDevices())) != c.GetGpus() {
		return fault.New(fault.Invalid, "node %s offers %d GPUs and names %d", inv.GetName(), c.GetGpus(), len(inv.GetDevices()))
	}
	seen := map[string]bool{}
	for _, d := range inv.GetDevices() {
		if text, _ := json.Marshal(d); len(text) > mostDevice {
			return fault.New(fault.Invalid, "node %s has a GPU with a name of %d bytes, more than %d: %.100q", inv.GetName(), len(text), mostDevice, d)
		}
		if d == "" || odd(d) {
			return fault.New(fault.Invalid, "node %s has a GPU whose name is empty or has control characters: %.100q", inv.GetName(), d)
		}
		if seen[d] {
			return fault.New(fault.Invalid, "node %s names GPU %s twice", inv.GetName(), d)
		}
		seen[d] = true
	}
	return nil
}

// usedOf is what a node has measured, within what can be.
func usedOf(r *pb.Resources) *pb.Resources { return wireResources(resources(r).Clamp()) }

// checkNeeds refuses what no process needs, and no node has.
func checkNeeds(j *pb.Job) error {
	for _, r := range []*pb.Resources{j.GetResources(), j.GetData().GetResources()} {
		if err := resources(r).Check(); err != nil {
			return fault.New(fault.Invalid, "a job cannot need %w on a node", err)
		}
	}
	for _, labels := range []map[string]string{j.GetLabels(), j.GetData().GetLabels()} {
		if err := place.CheckLabels(labels); err != nil {
			return fault.New(fault.Invalid, "a job cannot need %w", err)
		}
	}
	return nil
}
