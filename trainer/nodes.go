package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
	"golang.org/x/sync/errgroup"
)

// nodes are the other machines of a run, as its controller sees them: each has a hand (hand.go).
type nodes struct {
	c         *controller
	listeners []*gang.Listener
	door      *gang.Listener // of them: that of hands
	all       []*node        // by number; nil at the controller's own
	work      sync.WaitGroup
	notices   chan string   // of all members
	come      chan struct{} // closed when all hands have come, or one is refused
	there     chan struct{} // closed when all have come
	fed       chan struct{} // closed when the lines of all feeders have

	mu      sync.Mutex
	hands   int // that have not come
	feeders int
	refused error
	over    bool              // the run is: who goes is not lost
	unknown map[net.Conn]bool // that have not said whose hand they are; nil once nothing is heard any more
}

// node is a machine with a hand.
type node struct {
	number int
	of     *nodes
	feeds  net.Conn      // under nodes.mu
	left   bool          // nothing is taken of it any more; under nodes.mu
	gone   chan struct{} // closed when the hand is lost, or has ended

	// set before nodes.come is closed
	line *handLine
	host string

	logs    string // set by welcome, as is sockets
	sockets string
	devices [][]string // of its workers, set by lease

	mu    sync.Mutex
	last  int64
	waits map[int64]*handWait
	exits func(wire.HandExit) // of the current attempt's; nil: none
	why   error               // it is gone
}

// String names the node for people: by its host, or by the address of one that has not said it.
func (n *node) String() string {
	cfg := &n.of.c.cfg
	what, host := "node", n.host
	if n.number >= cfg.trains() {
		what = "data node"
	}
	if host == "" {
		host = cfg.Gang.Host(n.number)
	}
	return fmt.Sprintf("%s %d (%s)", what, n.number, host)
}

// handWait is a request that is not answered yet.
type handWait struct {
	files  []wire.HandFile // that came so far
	answer chan wire.HandAnswer
}

// lostNode is the end of a run one of whose machines is gone.
type lostNode struct{ error }

func (e *lostNode) Unwrap() error { return e.error }

// listen begins to hear the other nodes.
func (c *controller) listenNodes() error {
	n := c.cfg.nodes()
	ns := &nodes{c: c, all: make([]*node, n), come: make(chan struct{}), there: make(chan struct{}), fed: make(chan struct{}), hands: n - 1, feeders: n - 1, notices: make(chan string, 1), unknown: map[net.Conn]bool{}}
	c.nodes = ns
	for k := 1; k < n; k++ {
		ns.all[k] = &node{number: k, of: ns, gone: make(chan struct{}), waits: map[int64]*handWait{}}
	}
	for service, take := range map[string]func(net.Conn, int){
		serviceHand:   ns.hear,
		serviceFeeder: ns.feed,
		serviceWorker: func(conn net.Conn, k int) { c.take(conn, k) },
	} {
		l, err := c.cfg.Gang.Listen(service)
		if err != nil {
			return err
		}
		ns.listeners = append(ns.listeners, l)
		if service == serviceHand {
			ns.door = l
		}
		ns.work.Go(func() {
			for {
				conn, k, err := l.Accept(context.Background())
				if err != nil { // closed
					return
				}
				if k == 0 {
					conn.Close()
					continue
				}
				ns.work.Go(func() { take(conn, k) })
			}
		})
	}
	own := c.cfg.Preemption.Notice
	c.cfg.Preemption.Notice = ns.notices
	if own != nil {
		ns.work.Go(func() { ns.hearOwn(own) })
	}
	return nil
}

// hearOwn passes on the notices of this node, until all nodes are told of the end.
func (ns *nodes) hearOwn(notices <-chan string) {
	for {
		select {
		case reason, ok := <-notices:
			if !ok {
				return
			}
			ns.notice(reason)
		case <-ns.c.gone:
			return
		}
	}
}

func (ns *nodes) notice(reason string) {
	select {
	case ns.notices <- reason:
	default: // told already
	}
}

// feed takes the line of a node's feeder, once.
func (ns *nodes) feed(conn net.Conn, k int) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if n := ns.all[k]; n.feeds == nil && !n.left && !ns.over {
		n.feeds = conn
		if ns.feeders--; ns.feeders == 0 {
			close(ns.fed)
		}
		return
	}
	conn.Close()
}

// hear talks with the hand of a node.
func (ns *nodes) hear(conn net.Conn, k int) {
	l := newHandLine(conn)
	defer l.close()
	m, err := ns.hello(l)
	if err != nil {
		return // it comes again, or its machine is lost
	}
	n := ns.all[k]
	ns.mu.Lock()
	switch {
	case ns.over || n.line != nil:
		ns.mu.Unlock()
		return
	case m.Hello == nil:
		err = fault.New(fault.Corrupt, "%s does not say hello: use one release for all", n)
	case m.Hello.Version != wire.HandVersion:
		n.host = m.Hello.Host
		err = fault.New(fault.Unsupported, "%s speaks version %d of the hand's protocol, node 0 version %d: use one release for all", n, m.Hello.Version, wire.HandVersion)
	default:
		n.host = m.Hello.Host
		err = differs(n.String(), m.Hello.Config, ns.c.fields())
	}
	n.line = l
	ns.hands--
	if ns.hands == 0 {
		close(ns.there)
	}
	if ns.refused == nil && (err != nil || ns.hands == 0) {
		ns.refused = err
		close(ns.come)
	}
	ns.mu.Unlock()
	ns.work.Go(func() { l.beats(wire.ToHand{Beat: &wire.Beat{}}) })
	for err = nil; err == nil; { // one that is refused is told with the others
		if m, err = l.read.FromHand(); err == nil {
			n.hear(m)
		}
	}
	if err == io.EOF {
		err = fault.New(fault.Unavailable, "its process has ended")
	}
	n.lose(err)
}

// hello reads the first line of a connection. The time for it is short, and the end of the run does not wait for it.
func (ns *nodes) hello(l *handLine) (m wire.FromHand, err error) {
	ns.mu.Lock()
	if ns.unknown == nil {
		ns.mu.Unlock()
		return m, net.ErrClosed
	}
	ns.unknown[l.conn] = true
	ns.mu.Unlock()
	late := time.AfterFunc(helloTime, l.close)
	m, err = l.read.FromHand()
	if !late.Stop() && err == nil {
		err = net.ErrClosed
	}
	ns.mu.Lock()
	delete(ns.unknown, l.conn)
	ns.mu.Unlock()
	return m, err
}

func (n *node) hear(m wire.FromHand) {
	c := n.of.c
	switch {
	case m.Answer != nil:
		a := m.Answer
		n.mu.Lock()
		w := n.waits[a.ID]
		if w != nil {
			w.files = append(w.files, a.Files...)
			if !a.More {
				delete(n.waits, a.ID)
				a.Files = w.files
				w.answer <- *a
			}
		}
		n.mu.Unlock()
	case m.Exit != nil:
		n.mu.Lock()
		f := n.exits
		n.mu.Unlock()
		if f != nil {
			f(*m.Exit)
		}
	case m.Waits != nil:
		c.queued(fmt.Sprintf("%s: %s", n, m.Waits.Reason))
	case m.Devices != nil:
		c.post(func() { c.devices[n.number] = m.Devices.Metrics })
	case m.Notice != nil:
		n.of.notice(fmt.Sprintf("%s at %s", m.Notice.Reason, n))
	case m.Stopped != nil:
		err := fault.New(fault.Canceled, "%s: %w", n, m.Stopped.Error.Err())
		c.stop(err)
	}
}

// lose: the hand is gone, and with it all that it has.
func (n *node) lose(err error) {
	n.mu.Lock()
	n.why = fault.New(fault.WorkerLost, "%s of the job is lost: %w", n, err)
	n.mu.Unlock()
	n.of.mu.Lock()
	n.left = true
	if n.feeds != nil {
		n.feeds.Close()
	}
	over := n.of.over || n.of.refused != nil
	n.of.mu.Unlock()
	if !over {
		n.of.c.stop(&lostNode{fault.New(fault.Canceled, "%s of the job is lost (%w): the run can be resumed", n, err)})
	}
	close(n.gone)
}

// ask sends a request and waits for its answer. The end of ctx gives the request up, which is answered soon.
func (n *node) ask(ctx context.Context, m wire.ToHand) (wire.HandAnswer, error) {
	w := &handWait{answer: make(chan wire.HandAnswer, 1)}
	n.mu.Lock()
	n.last++
	m.ID = n.last
	n.waits[m.ID] = w
	n.mu.Unlock()
	if err := n.line.send(m); err != nil && fault.CodeOf(err) != fault.Unavailable {
		n.mu.Lock()
		delete(n.waits, m.ID)
		n.mu.Unlock()
		return wire.HandAnswer{}, err
	}
	for done := ctx.Done(); ; {
		select {
		case a := <-w.answer:
			err := a.Error.Err()
			if err != nil && done == nil {
				err = fault.WithCode(fault.Canceled, context.Cause(ctx))
			}
			if err != nil {
				err = fault.New(fault.CodeOf(err), "%s: %w", n, err)
			}
			return a, err
		case <-n.gone:
			return wire.HandAnswer{}, n.lost()
		case <-done:
			done = nil
			_ = n.line.send(wire.ToHand{Cancel: &wire.HandCancel{ID: m.ID}}) // else it is lost
		}
	}
}

func (n *node) lost() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.why
}

// others are the nodes with a hand.
func (ns *nodes) others() []*node {
	if ns == nil {
		return nil
	}
	return ns.all[1:]
}

// each does something with all other nodes at once.
func (ns *nodes) each(ctx context.Context, do func(context.Context, *node) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range ns.others() {
		g.Go(func() error { return do(ctx, n) })
	}
	return g.Wait()
}

// meet waits for all hands and tells them what the run is. It returns their feeders.
func (ns *nodes) meet(ctx context.Context) (feeders []feeder.Feeder, err error) {
	late := time.NewTimer(ns.c.cfg.StartTimeout)
	defer late.Stop()
	await := func(all <-chan struct{}) error {
		select {
		case <-all:
			ns.mu.Lock()
			defer ns.mu.Unlock()
			return ns.refused
		case <-ctx.Done():
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		case <-late.C:
			return fault.New(fault.Unavailable, "%s did not come within %v (start_timeout)", strings.Join(ns.absent(), ", "), ns.c.cfg.StartTimeout)
		}
	}
	if err := await(ns.come); err != nil {
		return nil, err
	}
	err = ns.each(ctx, func(ctx context.Context, n *node) error {
		a, err := n.ask(ctx, wire.ToHand{Welcome: &wire.HandWelcome{Run: ns.c.run.Name(), ID: ns.c.run.Record().ID}})
		n.logs, n.sockets = a.Logs, a.Sockets
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := await(ns.fed); err != nil {
		return nil, err
	}
	for _, n := range ns.others() {
		feeders = append(feeders, feeder.Remote(n.feeds))
	}
	return feeders, nil
}

// absent are the nodes that have not come.
func (ns *nodes) absent() (names []string) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, n := range ns.others() {
		if n.line == nil || n.feeds == nil {
			names = append(names, n.String())
		}
	}
	return names
}

const (
	byeTime  = 20 * time.Second // for hands to end once they know that the run is over
	lateTime = 5 * time.Second  // for those that have not come, to hear that nothing was begun
)

// await waits for hands that have not come. Where the run was finished before this call, as in a job that started again, they have all of StartTimeout: one that finds nobody would have the job start once more, for ever. The end of
// ctx ends that, and a notice, as this node's time may be short.
func (ns *nodes) await(ctx context.Context, over *wire.HandOver) {
	select {
	case <-ns.there:
		return
	case <-time.After(lateTime):
	}
	if over.State != store.Finished || ns.c.noticed != nil {
		return
	}
	select {
	case <-ns.there:
	case <-time.After(ns.c.cfg.StartTimeout - lateTime):
	case <-ns.notices:
	case <-ctx.Done():
	}
}

// bye tells all hands how the run ended, and waits until they have heard it.
func (ns *nodes) bye(ctx context.Context, over *wire.HandOver) {
	if lostOf(ns.c.ctx) == nil {
		ns.await(ctx, over)
	}
	if ns.door != nil { // who has heard of the end may come at once for the next call of Fit, and waits until that is there
		ns.door.Close()
	}
	ns.mu.Lock()
	ns.over = true
	var all []*node
	for _, n := range ns.others() {
		if n.line != nil {
			all = append(all, n)
		} else if n.feeds != nil {
			n.feeds.Close()
		}
	}
	ns.mu.Unlock()
	var told sync.WaitGroup
	for _, n := range all { // at once: one that does not read holds up nobody
		told.Go(func() {
			late := time.NewTimer(byeTime)
			defer late.Stop()
			_ = n.line.send(wire.ToHand{Over: over}) // who is gone need not know
			select {
			case <-n.gone:
			case <-late.C:
				n.line.close()
			}
		})
	}
	told.Wait()
}

// close ends the listening, and what has come and not said who it is.
func (ns *nodes) close() {
	for _, l := range ns.listeners {
		l.Close()
	}
	ns.mu.Lock()
	for conn := range ns.unknown {
		conn.Close()
	}
	ns.unknown = nil
	ns.mu.Unlock()
	ns.work.Wait()
}

// overOf is the end of a run for its hands.
func overOf(res *Result, err error) *wire.HandOver {
	o := &wire.HandOver{Error: wire.FromError(err)}
	if res != nil {
		o.State, o.Run, o.Storage, o.Reports, o.Metrics = res.State, res.Run, res.Storage, res.Reports, maps.Clone(res.Metrics)
		o.Attempts, o.Attempt, o.Checkpoint = res.Attempts, res.Attempt, res.Checkpoint
	}
	return o
}

// resultOf is the result of a hand.
func resultOf(o *wire.HandOver) (*Result, error) {
	err := o.Error.Err()
	if o.State == "" {
		return nil, err
	}
	return &Result{Run: o.Run, Storage: o.Storage, State: o.State, Reports: o.Reports, Metrics: o.Metrics, Attempts: o.Attempts, Attempt: o.Attempt, Checkpoint: o.Checkpoint, Err: err}, err
}

// lostOf is the loss of a node that ended ctx; nil: none did.
func lostOf(ctx context.Context) error {
	if e, ok := errors.AsType[*lostNode](context.Cause(ctx)); ok {
		return e
	}
	return nil
}
