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
	pause     = 20 * time.Millisecond // between two looks for the right neighbour
)

// hello is what a rank says to its right neighbour when it has dialled.
type hello struct {
	Version int    `json:"version"`
	Group   string `json:"group"`
	Rank    int    `json:"rank"`
	World   int    `json:"world"`
}

// reply answers it; an empty Refused is a welcome.
type reply struct {
	Refused string `json:"refused,omitempty"`
	Final   bool   `json:"final,omitempty"` // trying again is of no use
}

// Join meets the other ranks in dir, a folder of mode 0700 on this machine, and returns when all are there. Each rank listens at a socket in it, so dir has to be short: an
// address has room for 103 bytes. Where ranks do not come in time the error (Unavailable) names them; where ctx ends, it is Canceled.
func Join(ctx context.Context, dir string, rank, world int, o *Options) (*Group, error) {
	if o == nil {
		o = &Options{}
	}
	switch {
	case world < 1 || rank < 0 || rank >= world:
		return nil, fault.New(fault.Invalid, "rank %d of %d: ranks are 0 to the number of ranks - 1", rank, world)
	case len(o.Group) > maxName:
		return nil, fault.New(fault.Invalid, "the name of a group has at most %d bytes, not %d", maxName, len(o.Group))
	}
	g := &Group{rank: rank, world: world, pids: make([]int, world), turn: make(chan struct{}, 1), failed: make(chan struct{}), watched: make(chan struct{})}
	g.pids[rank] = os.Getpid()
	g.turn <- struct{}{}
	if world == 1 {
		close(g.watched)
		return g, nil
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: dir})
	}
	if !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Denied, "%s: ranks meet in a folder that only their user may enter (mode 0700), this is %s", dir, fi.Mode())
	}
	limit := o.Timeout
	if limit <= 0 {
		limit = 5 * time.Minute
	}
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m := meeting{g: g, dir: dir, me: hello{Version: version, Group: o.Group, Rank: rank, World: world}}
	if err := m.connect(ctx); err != nil {
		if fault.CodeOf(err) == fault.Canceled || ctx.Err() != nil {
			err = m.absent(parent, limit)
		}
		return nil, err
	}
	if g.right.SetWriteBuffer(buffer) == nil { // Linux gives what it allows, at least 400 KiB
		g.small = plainMost
	}
	g.scratch = make([]uint64, (headSize+segment)/8)
	go g.watch()
	// Once around: when everybody's number is here, everybody has come.
	all, err := g.AllGather(ctx, []byte(strconv.Itoa(os.Getpid())))
	if err != nil {
		g.Close()
		if fault.CodeOf(err) == fault.Canceled || ctx.Err() != nil {
			err = m.absent(parent, limit)
		}
		return nil, err
	}
	for i, b := range all {
		g.pids[i], _ = strconv.Atoi(string(b))
	}
	return g, nil
}

type meeting struct {
	g   *Group
	dir string
	me  hello
}

// path of a rank's socket. The group is in its name, so that ranks of an earlier attempt, dead or alive, are not in the way.
func (m *meeting) path(rank int) string {
	h := fnv.New32a()
	io.WriteString(h, m.me.Group)
	return filepath.Join(m.dir, fmt.Sprintf("c%d.%08x", rank, h.Sum32()))
}

// connect makes both connections.
func (m *meeting) connect(ctx context.Context) (err error) {
	l, err := m.listen()
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	accepted := make(chan error, 1)
	go func() {
		err := m.accept(l)
		if err != nil {
			end(err)
		}
		accepted <- err
	}()
	err = m.dial(ctx)
	if err != nil {
		end(err)
	}
	err = errors.Join(<-accepted, err)
	stop()
	l.SetUnlinkOnClose(false) // the socket's file stays: it says that this rank came
	l.Close()
	if err != nil {
		for _, c := range []*net.UnixConn{m.g.left, m.g.right} {
			if c != nil {
				c.Close()
			}
		}
		return context.Cause(ctx)
	}
	end(nil)
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

// accept waits for the left neighbour. Others are told why they are refused.
func (m *meeting) accept(l *net.UnixListener) error {
	want := m.me
	want.Rank = (m.me.Rank + m.me.World - 1) % m.me.World
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			return fault.New(fault.Exhausted, "no room for another connection (ulimit -n): %w", err)
		default:
			return fault.New(fault.Canceled, "waiting for rank %d: %w", want.Rank, err)
		}
		c.SetDeadline(time.Now().Add(helloTime))
		var h hello
		if err := receive(c, &h); err != nil {
			c.Close() // somebody who looked whether we are here
			continue
		}
		r := check(h, want)
		if r.Refused == "" {
			if err := send(c, &r); err != nil {
				c.Close()
				continue // it will come again
			}
			c.SetDeadline(time.Time{})
			m.g.left = c
			return nil
		}
		_ = send(c, &r)
		c.Close()
		if r.Final {
			return fault.New(fault.Invalid, "%s", r.Refused)
		}
	}
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

// dial finds the right neighbour, again and again until it is there.
func (m *meeting) dial(ctx context.Context) error {
	var d net.Dialer
	for {
		c, err := d.DialContext(ctx, "unix", m.path((m.me.Rank+1)%m.me.World))
		if err == nil {
			c := c.(*net.UnixConn)
			stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
			var r reply
			err = send(c, &m.me)
			if err == nil {
				err = receive(c, &r)
			}
			stopped := stop()
			switch {
			case err == nil && r.Refused == "" && stopped:
				m.g.right = c
				return nil
			case err == nil && r.Final:
				c.Close()
				return fault.New(fault.Invalid, "%s", r.Refused)
			}
			c.Close()
		} else if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
			return fault.WithCode(fault.Denied, err)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
	}
}

// absent is the error when the time is over: it names the ranks that never listened.
func (m *meeting) absent(parent context.Context, limit time.Duration) error {
	var missing []string
	for r := range m.me.World {
		if _, err := os.Lstat(m.path(r)); err != nil {
			missing = append(missing, strconv.Itoa(r))
		}
	}
	who := "ranks " + strings.Join(missing, ", ") + " did not come"
	switch len(missing) {
	case 0:
		who = "all ranks came, and one of them has gone again or stands still"
	case 1:
		who = "rank " + missing[0] + " did not come"
	}
	if parent.Err() != nil {
		return fault.New(fault.Canceled, "rank %d of %d gave up waiting for the others; %s: %w", m.me.Rank, m.me.World, who, context.Cause(parent))
	}
	return fault.New(fault.Unavailable, "%s within %s, of %d: look at their logs, or give them more time to start", who, limit, m.me.World)
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
