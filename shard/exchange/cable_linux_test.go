package exchange

import (
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/hosttest"
	"github.com/penstock-data/penstock/internal/memtest"
)

// Where the cable between two machines is cut, nothing ends a connection: each loses the other after the time of Silence, though it sends.
func TestCable(t *testing.T) {
	if testing.Short() {
		memtest.Skip(t, "not with -short: it takes 20 s")
	}
	t.Parallel()
	w := hosttest.New(t)
	var before [][]string
	var hosts []string
	for _, node := range []string{"a", "b"} {
		w.Plug(node)
		before, hosts = append(before, w.In(node)), append(hosts, w.Addr(node))
	}
	all := processes(t, "tensors", documents(t), "endless", []int{0, 1, 1, 0}, before, hosts)
	begun(t, all)
	// Packets go nowhere, and nobody is told.
	begin := time.Now()
	w.Between("a", "b")
	w.Between("b", "a")
	for k := range all {
		took := loses(t, all, k, 1-k).Sub(begin)
		t.Logf("node %d after %v", k, took.Round(time.Millisecond))
		if took > Silence+2*time.Second || took < Silence/2 {
			t.Errorf("node %d saw it after %v", k, took)
		}
	}
	w.Heal() // what dropped nothing was no fault
}
