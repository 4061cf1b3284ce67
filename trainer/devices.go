package trainer

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/device"
	"github.com/penstock-data/penstock/trainer/store"
)

// sampleEvery is between two measurements of devices.
const sampleEvery = 5 * time.Second

// leaseDevices leases GPUs; the run is queued while others have them.
func (c *controller) leaseDevices(ctx context.Context) error {
	inv, err := device.Discover(ctx, nil)
	if err != nil {
		return err
	}
	c.lease, err = inv.Lease(ctx, c.cfg.Name, c.cfg.Resources.GPUs, c.cfg.Workers, func(reason string) {
		c.status.set(store.Status{State: store.Queued, Reason: reason})
		c.cfg.Log.Info("the run waits for devices", "run", c.cfg.Name, "reason", reason)
		if f := c.cfg.Events.Status; f != nil {
			f(store.Queued, 0, fault.New(fault.Unavailable, "%s", reason))
		}
	})
	if err != nil {
		return err
	}
	var of []device.Device
	var names []string
	for w := range c.cfg.Workers {
		for i, d := range c.lease.Devices(w) {
			of, names = append(of, d), append(names, fmt.Sprintf("rank%d/gpu%d/", w, i))
		}
	}
	c.measure = func(ctx context.Context) map[string]float64 {
		samples, err := inv.Sample(ctx, of...)
		if err != nil {
			return nil // it always fails from now on, and harms nobody
		}
		out := map[string]float64{}
		for i, s := range samples {
			for name, v := range map[string]float64{"utilisation": s.Utilisation, "memory": s.Memory, "temperature": s.Temperature, "power": s.Power} {
				if !math.IsNaN(v) {
					out[names[i]+name] = v
				}
			}
		}
		return out
	}
	return nil
}

// sampleDevices measures what workers have leased, until the run is over: reports are kept with what was measured last.
func (c *controller) sampleDevices() {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		m := c.measure(c.ctx)
		if m == nil {
			return
		}
		c.post(func() { c.devices = m })
		select {
		case <-t.C:
		case <-c.over:
			return
		}
	}
}
