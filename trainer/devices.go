package trainer

import (
	"context"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
	"golang.org/x/sync/errgroup"
)

// sampleEvery is between two measurements of devices.
const sampleEvery = 5 * time.Second

// leaseDevices leases GPUs on all nodes; the run is queued while others have them.
func (c *controller) leaseDevices(ctx context.Context) error {
	all, actx := errgroup.WithContext(ctx)
	all.Go(func() error { return c.site.leaseDevices(actx, c.queued) })
	for _, n := range c.nodes.others() {
		if n.number >= c.cfg.trains() {
			continue
		}
		all.Go(func() (err error) {
			a, err := n.ask(actx, wire.ToHand{Lease: &wire.HandLease{}})
			if n.devices = a.Devices; err == nil && len(a.Devices) != c.cfg.perNode() {
				err = fault.New(fault.Internal, "node %d leased devices for %d workers", n.number, len(a.Devices))
			}
			return err
		})
	}
	return all.Wait()
}

// queued says what the run waits for.
func (c *controller) queued(reason string) {
	c.queueing.Lock()
	defer c.queueing.Unlock()
	c.reason = reason
	c.write(store.Queued)
	c.cfg.Log.Info("the run "+reason, "run", c.cfg.Name)
	if f := c.cfg.Events.Status; f != nil {
		f(store.Queued, 0, fault.New(fault.Unavailable, "%s", reason))
	}
}

// sample measures what workers have leased, until ctx ends.
func sample(ctx context.Context, measure func(context.Context) map[string]float64, f func(map[string]float64)) {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		m := measure(ctx)
		if m == nil {
			return
		}
		f(m)
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// sampleDevices measures what workers of this node have leased, until the run is over: reports are kept with what was measured last.
func (c *controller) sampleDevices() {
	sample(c.ctx, c.measure, func(m map[string]float64) { c.post(func() { c.devices[c.node] = m }) })
}
