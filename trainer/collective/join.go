package collective

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	version   = 1
	maxNote   = 64 << 10
	maxName   = 4096
	helloTime = 10 * time.Second      // for a connection to say who it is
	buffer    = 1 << 20               // of a connection, in bytes
	packet    = 16 << 10              // bytes that TLS sends at once
	maxPID    = 20                    // digits
	pause     = 20 * time.Millisecond // between two looks for the right neighbour
)

// networkMost is small (Group) where the right neighbour is on another machine: what the system there takes before anybody reads, whatever its settings.
const networkMost = 32 << 10

// hello is what a rank says to its right neighbour when it has dialled.
type hello struct {
	Version int    `json:"version"`
	Group   string `json:"group"`
	Rank    int    `json:"rank"`
	World   int    `json:"world"`
	// Notes says that this connection, between machines, is for notes. That for numbers has nothing on its way back then: what comes there after its end would take from the right neighbour what it has not read yet.
	Notes bool `json:"notes,omitempty"`
}

// reply answers it; an empty Refused is a welcome.
type reply struct {
	Refused string `json:"refused,omitempty"`
	Final   bool   `json:"final,omitempty"` // trying again is of no use
}

// Join meets the other ranks, those of this machine in dir, a folder of mode 0700, and returns when all are there. Each rank listens at a socket in it, so dir has to be short: an
// address has room for 103 bytes. A rank both of whose neighbours are on other machines needs none. Where ranks do not come in time the error (Unavailable) names them; where ctx ends, it is Canceled.
func Join(ctx context.Context, dir string, rank, world int, o *Options) (*Group, error) {
	if o == nil {
		o = &Options{}
	}
	switch {
	case world < 1 || rank < 0 || rank >= world:
		return nil, fault.New(fault.Invalid, "rank %d of %d: ranks are 0 to the number of ranks - 1", rank, world)
	case len(o.Group) > maxName:
		return nil, fault.New(fault.Invalid, "the name of a group has at most %d bytes, not %d", maxName, len(o.Group))
	case o.Nodes != nil && len(o.Nodes) != world:
		return nil, fault.New(fault.Invalid, "the machines of %d ranks, there are %d", len(o.Nodes), world)
	}
	g := &Group{rank: rank, world: world, pids: make([]int, world), turn: make(chan struct{}, 1), failed: make(chan struct{}), most: maxPID}
	g.pids[rank] = os.Getpid()
	g.turn <- struct{}{}
	if world == 1 {
		return g, nil
	}
	m := meeting{g: g, dir: dir, nodes: o.Nodes, me: hello{Version: version, Group: o.Group, Rank: rank, World: world}}
	if !m.together(rank-1, rank) {
		m.left = o.Left
	}
	if !m.together(rank, rank+1) {
		m.right = o.Right
	}
	if (m.left == nil) != m.together(rank-1, rank) || (m.right == nil) != m.together(rank, rank+1) {
		return nil, fault.New(fault.Invalid, "rank %d has a neighbour on another machine, and no way to it: set Left and Right", rank)
	}
	if m.left == nil || m.right == nil {
		if err := private(dir); err != nil {
			return nil, err
		}
	}
	limit := o.Timeout
	if limit <= 0 {
		limit = 5 * time.Minute
	}
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := m.connect(ctx); err != nil {
		if ctx.Err() != nil {
			err = m.absent(parent, limit)
		}
		return nil, err
	}
	if err := g.meet(ctx, m.several()); err != nil {
		g.Close()
		if fault.CodeOf(err) == fault.Canceled || ctx.Err() != nil {
			err = m.absent(parent, limit)
		}
		return nil, err
	}
	return g, nil
}

// meet begins what goes on beside the calls, once both neighbours are connected, and waits until all ranks are; several: they are on more than one machine.
func (g *Group) meet(ctx context.Context, several bool) error {
	if u, ok := g.right.(*net.UnixConn); !ok {
		g.small, g.packet = networkMost, make([]byte, packet)
	} else if u.SetWriteBuffer(buffer) == nil { // Linux gives what it allows, at least 400 KiB
		g.small = plainMost
	}
	g.several = several
	g.scratch = make([]uint64, (headSize+segment)/8)
	g.work.Go(g.watch)
	if several {
		g.work.Go(g.ping)
	}
	// Once around: when everybody's number is here, everybody has come.
	all, err := g.AllGather(ctx, []byte(strconv.Itoa(os.Getpid())))
	if err != nil {
		return err
	}
	for i, b := range all {
		g.pids[i], _ = strconv.Atoi(string(b))
	}
	g.most = maxBlock
	g.all.Store(true)
	if several {
		g.hears.SetReadDeadline(time.Now().Add(silence)) // for who listens already
	}
	return nil
}

// private refuses a folder that is not closed to others.
func private(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return fault.Wrap(err, fault.Place{File: dir})
	}
	if !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 {
		return fault.New(fault.Denied, "%s: ranks meet in a folder that only their user may enter (mode 0700), this is %s", dir, fi.Mode())
	}
	return nil
}

type meeting struct {
	g           *Group
	dir         string
	nodes       []int // nil: one
	me          hello
	left, right func(context.Context) (net.Conn, error) // nil: the neighbour is on this machine
}

// together reports whether two ranks, counted around, are on one machine.
func (m *meeting) together(a, b int) bool {
	n := m.me.World
	return m.nodes == nil || m.nodes[(a+n)%n] == m.nodes[(b+n)%n]
}

// several reports whether the ranks are on more than one machine.
func (m *meeting) several() bool {
	return slices.ContainsFunc(m.nodes, func(n int) bool { return n != m.nodes[0] })
}

// path of a rank's socket. The group is in its name, so that ranks of an earlier attempt, dead or alive, are not in the way.
func (m *meeting) path(rank int) string {
	h := fnv.New32a()
	io.WriteString(h, m.me.Group)
	return filepath.Join(m.dir, fmt.Sprintf("c%d.%08x", rank, h.Sum32()))
}

// connect makes the connections to both neighbours.
func (m *meeting) connect(ctx context.Context) (err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	take := m.left
	if take == nil {
		l, err := m.listen()
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
		defer func() {
			stop()
			l.SetUnlinkOnClose(false) // the socket's file stays: it says that this rank came
			l.Close()
		}()
		take = func(context.Context) (net.Conn, error) { return m.next(l) }
	}
	accepted := make(chan error, 1)
	go func() {
		err := m.accept(ctx, take)
		if err != nil {
			end(err)
		}
		accepted <- err
	}()
	if err = m.dial(ctx); err != nil {
		end(err)
	}
	if err = errors.Join(<-accepted, err); err != nil {
		m.g.hangUp()
		return context.Cause(ctx)
	}
	return nil
}

// listen takes the rank's socket. One that nobody listens on any more is replaced.
func (m *meeting) listen() (*net.UnixListener, error) {
	path := m.path(m.me.Rank)
	if len(path) > 103 {
		return nil, fault.New(fault.Invalid, "%s: the path of a socket has at most 103 bytes: choose a shorter folder", path)
	}
	for try := 0; ; try++ {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || try == 3 {
			return nil, fault.Wrap(err, fault.Place{File: path})
		}
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			return nil, fault.New(fault.Exists, "rank %d of this group is there already: every process needs a rank of its own", m.me.Rank)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}

// next is who comes to the rank's socket.
func (m *meeting) next(l *net.UnixListener) (net.Conn, error) {
	c, err := l.AcceptUnix()
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return nil, fault.New(fault.Exhausted, "no room for another connection (ulimit -n): %w", err)
	}
	return nil, fault.Wrap(err, fault.Place{File: m.path(m.me.Rank)})
}

// accept waits for the left neighbour. Others are told why they are refused.
func (m *meeting) accept(ctx context.Context, take func(context.Context) (net.Conn, error)) error {
	want := m.me
	want.Rank = (m.me.Rank + m.me.World - 1) % m.me.World
	for m.g.left == nil || m.g.tells == nil {
		c, err := take(ctx)
		if err != nil {
			return err
		}
		c.SetDeadline(time.Now().Add(helloTime))
		stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
		var h hello
		r := reply{}
		if err = receive(c, &h); err == nil { // else somebody who looked whether we are here
			r = check(h, want)
			err = send(c, &r) // one that does not get it will come again
		}
		if !stop() || err != nil || r.Refused != "" {
			c.Close()
			if r.Final {
				return fault.New(fault.Invalid, "%s", r.Refused)
			}
			continue
		}
		c.SetDeadline(time.Time{})
		if m.left == nil {
			m.g.left, m.g.tells = c, c
			return nil
		}
		of := &m.g.left
		if h.Notes {
			of = &m.g.tells
		}
		if *of != nil { // it did not hear that it was let in
			(*of).Close()
		}
		*of = c
	}
	return nil
}

// check says what is wrong with a hello.
func check(h, want hello) reply {
	switch {
	case h.Group != want.Group:
		return reply{Refused: fmt.Sprintf("rank %d is of group %.200q, here is %q", h.Rank, h.Group, want.Group)}
	case h.Version != want.Version:
		return reply{Refused: fmt.Sprintf("rank %d speaks version %d of the protocol, others %d: build all ranks from the same version", h.Rank, h.Version, want.Version), Final: true}
	case h.World != want.World:
		return reply{Refused: fmt.Sprintf("rank %d counts %d ranks, others %d: all need the same number", h.Rank, h.World, want.World), Final: true}
	case h.Rank != want.Rank:
		return reply{Refused: fmt.Sprintf("rank %d came, rank %d is expected here", h.Rank, want.Rank), Final: true}
	}
	return reply{}
}

// dial finds the right neighbour.
func (m *meeting) dial(ctx context.Context) (err error) {
	if m.right == nil {
		var d net.Dialer
		m.g.right, err = m.call(ctx, m.me, func(ctx context.Context) (net.Conn, error) {
			return d.DialContext(ctx, "unix", m.path((m.me.Rank+1)%m.me.World))
		})
		m.g.hears = m.g.right
		return err
	}
	if m.g.right, err = m.call(ctx, m.me, m.right); err == nil {
		notes := m.me
		notes.Notes = true
		m.g.hears, err = m.call(ctx, notes, m.right)
	}
	return err
}

// call says hello to the right neighbour, again and again until it is there. The connection is nil after an error.
func (m *meeting) call(ctx context.Context, hello hello, reach func(context.Context) (net.Conn, error)) (net.Conn, error) {
	for {
		c, err := reach(ctx)
		switch {
		case err == nil:
			stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
			var r reply
			if err = send(c, &hello); err == nil {
				err = receive(c, &r)
			}
			stopped := stop()
			switch {
			case err == nil && r.Refused == "" && stopped:
				return c, nil
			case err == nil && r.Final:
				c.Close()
				return nil, fault.New(fault.Invalid, "%s", r.Refused)
			}
			c.Close()
		case ctx.Err() != nil:
		case m.right != nil: // which tries as long as that is of use
			return nil, err
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			return nil, fault.WithCode(fault.Denied, err)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
	}
}

// absent is the error when the time is over: it names the ranks that never listened, of those of which that is known here.
func (m *meeting) absent(parent context.Context, limit time.Duration) error {
	var missing []string
	n := m.me.World
	for r := range n {
		here := m.together(r, m.me.Rank) && m.together(r-1, r)
		_, err := os.Lstat(m.path(r))
		if here && err != nil || m.left != nil && r == (m.me.Rank+n-1)%n && m.g.left == nil || m.right != nil && r == (m.me.Rank+1)%n && m.g.right == nil {
			missing = append(missing, strconv.Itoa(r))
		}
	}
	who := "ranks " + strings.Join(missing, ", ") + " did not come"
	switch len(missing) {
	case 0:
		who = "all ranks came, and one of them has gone again or stands still"
		if m.nodes != nil {
			who = "a rank on another machine did not come, or one has gone again or stands still"
		}
	case 1:
		who = "rank " + missing[0] + " did not come"
	}
	if parent.Err() != nil {
		return fault.New(fault.Canceled, "rank %d of %d gave up waiting for the others; %s: %w", m.me.Rank, n, who, context.Cause(parent))
	}
	return fault.New(fault.Unavailable, "%s within %s, of %d: look at their logs, or give them more time to start", who, limit, n)
}

// send writes a message: its length, then JSON, in one write.
func send(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxNote {
		return fault.New(fault.Internal, "a message of %d bytes", len(b))
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

// receive reads one, and nothing behind it.
func receive(r io.Reader, v any) error {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > maxNote {
		return fault.New(fault.Corrupt, "a message of %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
