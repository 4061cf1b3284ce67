//go:build linux

package hosttest

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// delay is a node's cable that goes through this process: our end of it is on a bridge of its own, and what comes there is written to the network's bridge later, and the other way around.
type delay struct {
	node   string
	ends   [2]*os.File // taps: the node's side, the network's
	passed [2]atomic.Int64
	done   sync.WaitGroup
}

// Delay makes what goes through a node's cable late, each way, by a time between least and least+jitter that is drawn for every packet. Their order stays. Connections that are there go on.
func (w *Wire) Delay(node string, least, jitter time.Duration) {
	w.t.Helper()
	d := &delay{node: node}
	for i := range d.ends {
		var err error
		if d.ends[i], err = tap(w.side(d, "pt") + "ab"[i:i+1]); err != nil {
			if i > 0 {
				d.ends[0].Close()
			}
			if errors.Is(err, fs.ErrNotExist) {
				w.t.Skip(err) // not memtest.Skip: containers of CI may not have the device
			}
			lacks(w.t, err, "packets cannot be delayed here")
		}
	}
	w.late, w.broken = append(w.late, d), true
	for i := range d.ends {
		d.done.Go(func() { d.pass(i, least, jitter) })
	}
	w.run("ip", "link", "add", w.side(d, "pb"), "type", "bridge")
	w.run("ip", "link", "set", w.side(d, "pb"), "up")
	w.run("ip", "link", "set", w.side(d, "pt")+"a", "master", w.side(d, "pb"), "up")
	w.run("ip", "link", "set", w.side(d, "pt")+"b", "master", "pb"+w.id, "up")
	w.run("ip", "link", "set", w.link(node), "master", w.side(d, "pb"))
}

// side is the name of a device of a delay.
func (w *Wire) side(d *delay, kind string) string {
	return fmt.Sprintf("%s%sd%d", kind, w.id, slices.Index(w.order, d.node))
}

// inTime ends a delay; what is under way is lost.
func (w *Wire) inTime(d *delay) {
	w.t.Helper()
	w.run("ip", "link", "set", w.link(d.node), "master", "pb"+w.id)
	for _, end := range d.ends {
		end.Close() // and the tap is gone
	}
	d.done.Wait()
	w.run("ip", "link", "del", w.side(d, "pb"))
	if d.passed[0].Load() == 0 || d.passed[1].Load() == 0 {
		w.t.Errorf("not both ways of node %s were delayed: %d packets from it, %d to it", d.node, d.passed[0].Load(), d.passed[1].Load())
	}
}

// tap makes an Ethernet device whose other end is a file; it is there for as long as that is open.
func tap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// pass carries what comes at one end to the other, until they are closed.
func (d *delay) pass(from int, least, jitter time.Duration) {
	type packet struct {
		due   time.Time
		frame []byte
	}
	queue := make(chan packet, 1000) // what is more waits in the device, which drops what is too much
	d.done.Go(func() {
		for p := range queue {
			time.Sleep(time.Until(p.due)) // this is the fault: no test waits for it
			_, _ = d.ends[1-from].Write(p.frame)
		}
	})
	defer close(queue)
	for buf := make([]byte, 1<<16); ; {
		n, err := d.ends[from].Read(buf)
		if err != nil {
			return
		}
		if n > 14 && buf[12] == 8 && buf[13] == 0 { // IPv4: by IPv6 a network says something to itself
			d.passed[from].Add(1)
		}
		queue <- packet{time.Now().Add(least + rand.N(jitter+1)), slices.Clone(buf[:n])} // later than the one before it, which is written first in any case
	}
}
