package group

import (
	"testing"
	"time"
)

// A shell that was stopped does not take its absence for a worker's silence; one that was not does.
func TestClock(t *testing.T) {
	const hang = 30 * time.Minute
	for _, c := range []struct {
		name    string
		silent  time.Duration // from the hello on, with somebody who listens
		stopped time.Duration // then
		said    time.Duration // what was said meanwhile is heard so long after the return; < 0: nothing was
		looks   time.Duration // between looks
		asks    time.Duration // for stacks, in the time that counts
	}{
		{name: "silence", said: -1, looks: Look, asks: hang},
		{name: "late looks", said: -1, looks: absent, asks: hang},
		{name: "stopped beyond the deadline", silent: time.Minute, stopped: time.Hour, said: absent / 2, looks: Look, asks: time.Minute + hang},
		{name: "stopped before the deadline", silent: hang - Look, stopped: 2 * time.Second, said: absent / 2, looks: Look, asks: hang - Look + hang},
		{name: "stopped, and silent after it", silent: time.Minute, stopped: time.Hour, said: -1, looks: Look, asks: hang},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := New(Config{World: 1, HangTimeout: hang, StopTimeout: time.Second})
			var clock Clock
			real, before := time.Duration(0), time.Duration(0)
			step := func(e Event) (asked bool) {
				e.At = clock.At(real)
				if e.At < before {
					t.Fatalf("the time went back from %v to %v", before, e.At)
				}
				before = e.At
				for _, a := range g.Step(e) {
					asked = asked || a.Do == Stacks
				}
				return asked
			}
			step(Event{Kind: Tick})
			step(Event{Kind: Launched, Attempt: 1})
			step(Event{Kind: Hello, Attempt: 1})
			for real < c.silent {
				real = min(real+c.looks, c.silent)
				if step(Event{Kind: Tick}) {
					t.Fatalf("asked at %v", real)
				}
			}
			real += c.stopped
			back := real
			asked := false
			for heard := c.said < 0; !asked && real < back+time.Hour; real += c.looks {
				if !heard && real >= back+c.said {
					heard = true
					asked = step(Event{Kind: Alive, Attempt: 1})
				} else {
					asked = step(Event{Kind: Tick})
				}
			}
			if at := before; !asked || at < c.asks || at > c.asks+2*c.looks {
				t.Errorf("asked: %v at %v (really %v), want %v", asked, at, real, c.asks)
			}
		})
	}
}
