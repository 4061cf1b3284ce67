package store

import (
	"os"
	"strings"
	"sync"
	"time"
)

// LostAfter is how old the status of a run must be before a controller on another host, which cannot be looked for, counts as lost. Controllers
// write it several times as often ([Heartbeat]).
const LostAfter = 2 * time.Minute

// Heartbeat is the longest time between two calls of SetStatus of a controller at work.
const Heartbeat = 30 * time.Second

// Process names a process so that another one with its number is not taken for it.
type Process struct {
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// Started is the boot of the machine, the namespace of process numbers and the time of the start in it; "" where the system does not tell.
	Started string `json:"started,omitempty"`
}

// Self is this process.
func Self() Process {
	host, _ := os.Hostname() // without a name no process is found again, and counts as lost after a while
	p := Process{Host: host, PID: os.Getpid()}
	p.Started, _ = startOf(p.PID)
	return p
}

// Presence says whether a process is there.
type Presence uint8

const (
	Unknown Presence = iota // it is on another host, or in another container
	Alive
	Lost
)

func (p Presence) String() string { return [...]string{"unknown", "alive", "lost"}[p] }

// Presence looks for the process.
func (p Process) Presence() Presence {
	self := Self()
	if p.Host == "" || p.Host != self.Host || p.PID <= 0 {
		return Unknown
	}
	boot, rest, _ := strings.Cut(p.Started, "/")
	space, _, _ := strings.Cut(rest, "/")
	ownBoot, ownRest, _ := strings.Cut(self.Started, "/")
	ownSpace, _, _ := strings.Cut(ownRest, "/")
	switch {
	case boot != ownBoot:
		return Lost // the machine was booted since
	case space != ownSpace:
		return Unknown
	}
	started, there := startOf(p.PID)
	if !there || started != p.Started {
		return Lost
	}
	return Alive
}

// atWork holds the controllers of this process: runs that have begun and are not closed. It is the only state of the package; with it a process that
// closed a run may open it again, though it lives.
var atWork controllers

type controllers struct {
	sync.Mutex
	ids map[string]struct{}
}

func (c *controllers) add(id string) {
	c.Lock()
	defer c.Unlock()
	if c.ids == nil {
		c.ids = make(map[string]struct{})
	}
	c.ids[id] = struct{}{}
}

func (c *controllers) remove(id string) {
	c.Lock()
	defer c.Unlock()
	delete(c.ids, id)
}

func (c *controllers) has(id string) bool {
	c.Lock()
	defer c.Unlock()
	_, ok := c.ids[id]
	return ok
}
