package trainer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/collective"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// Each rank is told where the next one is, once; an address that is none is believed of nobody.
func TestMeet(t *testing.T) {
	c := quick(t, "meet")
	c.Data, c.Workers = nil, 3
	fitOK(t, func(c *Context) error {
		if _, err := c.meet(wire.Meet{Address: strings.Repeat("x", wire.MaxAddress+1)}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "at most 300") {
			return fmt.Errorf("a long address: %w", err)
		}
		at, err := c.meet(wire.Meet{Address: fmt.Sprintf("host:%d", c.Rank())})
		if err != nil || at != fmt.Sprintf("host:%d", (c.Rank()+1)%3) {
			return fmt.Errorf("rank %d is told %q: %w", c.Rank(), at, err)
		}
		if _, err := c.meet(wire.Meet{}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), fmt.Sprintf("rank %d has met the others before", c.Rank())) {
			return fmt.Errorf("again: %w", err)
		}
		return nil
	}, c)
}

// Ranks that do not come to compute are named to those that wait.
func TestGangRanksMissing(t *testing.T) {
	was := meetTime
	meetTime = 300 * time.Millisecond
	defer func() { meetTime = was }()
	k := newConf(t, "missing")
	k.Loop, k.Workers = "goroutines", 4
	_, errs := trained(t, 2, func(g *gang.Gang, dir string) *Trainer {
		cfg := k.quiet(t, g, dir)
		cfg.Data, cfg.Failures = nil, Failures{Worker: -1}
		return New(func(c *Context) error {
			if c.Rank()%2 == 1 {
				<-c.Done()
				return context.Cause(c)
			}
			err := c.Barrier()
			if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "rank 1; rank 3 on node 1") {
				t.Errorf("rank %d: %v", c.Rank(), err)
			}
			if err := c.Barrier(); err == nil || !strings.Contains(err.Error(), "before") {
				t.Errorf("rank %d comes again: %v", c.Rank(), err)
			}
			return err
		}, cfg)
	})
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "these did not come") {
			t.Error(err)
		}
	}
}

// A worker process whose environment was cleaned does not find its gang, and says what is missing.
func TestNoGang(t *testing.T) {
	c := &Context{w: wire.Welcome{World: 2, Nodes: 2, Rank: 1, Node: 1}}
	leave, err := c.reach(&collective.Options{})
	defer leave()
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), envGang+", which Fit has put into the environment") {
		t.Error(err)
	}
}
