package agent

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/cluster/internal/pb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the node does not have, as the head knows an older inventory, is not started: it is for another node, and why is said.
func TestFits(t *testing.T) {
	a := &agent{Config: Config{Node: "n1", Inventory: &pb.Inventory{Devices: []string{"GPU-1"}, Capacity: &pb.Resources{MilliCpus: 2000, Gpus: 1, Memory: 1 << 30}}}}
	for _, x := range []struct {
		start *pb.Start
		why   string
	}{
		{&pb.Start{Limits: &pb.Resources{MilliCpus: 2000, Gpus: 1, Memory: 1 << 30}, Devices: []string{"GPU-1"}}, ""},
		{&pb.Start{Limits: &pb.Resources{MilliCpus: 1}}, ""},
		{&pb.Start{Limits: &pb.Resources{Gpus: 1}, Devices: []string{"GPU-2"}}, "has no GPU GPU-2"},
		{&pb.Start{Limits: &pb.Resources{Gpus: 2}, Devices: []string{"GPU-1"}}, "with 1 GPUs"},
		{&pb.Start{Limits: &pb.Resources{MilliCpus: 2001}}, "2001"},
		{&pb.Start{Limits: &pb.Resources{Memory: 2 << 30}}, "node n1 has"},
	} {
		p := &process{a: a, id: "j1/1/0", start: x.start}
		if why := p.fits(); (why == "") != (x.why == "") || !strings.Contains(why, x.why) {
			t.Errorf("%v: %q, want %q", x.start, why, x.why)
		}
		if x.why != "" {
			if e := p.run(t.Context()); e.GetClass() != "unfit" || e.GetText() != p.fits() {
				t.Errorf("%v: %v", x.start, e)
			}
		}
	}
	for err, want := range map[error]bool{fmt.Errorf("its log: %w", syscall.ENOSPC): true, fmt.Errorf("fork: %w", syscall.EAGAIN): true, fmt.Errorf("exec: %w", syscall.ENOENT): false, nil: false} {
		if lacks(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}
