package trainer

import (
	"fmt"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/trainer/store"
)

// A program may call Fit several times: a node that has heard of the end of a run, and is in the next call before node 0 is, waits for it there.
func TestGangFitsInARow(t *testing.T) {
	k := newConf(t, "fit")
	k.Loop, k.Workers = "goroutines", 3
	gs, dirs := gangtest.WithFolders(t, k.Workers)
	var all sync.WaitGroup
	for node, g := range gs {
		all.Go(func() {
			for i := range 20 {
				cfg := k.quiet(t, g, dirs[node])
				cfg.Name, cfg.Data, cfg.DataProcess = fmt.Sprintf("fit%d", i), nil, nil
				if res, err := New(nothing, cfg).Fit(t.Context()); err != nil || res.State != store.Finished {
					t.Errorf("node %d, call %d: %+v, %v", node, i, res, err)
					g.Close() // the others are not to wait
					return
				}
			}
		})
	}
	all.Wait()
}
