package operators

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
)

// command is what the children of a pool have in common. Immutable.
type command struct {
	args    []string
	program string // what is started; args[0] is its name
	env     []string
	in      *arrow.Schema
	told    *arrow.Schema // in, with answer in its metadata
	answer  *arrow.Schema // what comes back
	timeout time.Duration // for one batch
	limit   int           // bytes of one buffer of an answer, and of one message
}

func (c *command) String() string {
	s := strings.Join(c.args, " ")
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return s
}

// pool keeps children that are alive and idle. Safe for concurrent use.
type pool struct {
	cmd   *command
	slots chan struct{} // one per child that may exist

	mu   sync.Mutex
	idle []*child
	free []int // numbers of children that there are not, the next one last
}

func newPool(workers int, c *command) *pool {
	p := &pool{cmd: c, slots: make(chan struct{}, workers)}
	for n := range workers {
		p.free = append(p.free, workers-1-n)
	}
	return p
}

// call gives rec to a child, waiting for one if all are at work, and returns its
// answer. A child that fails is killed before call returns; one that refuses the batch is kept.
func (p *pool) call(ctx context.Context, rec arrow.RecordBatch, env *exec.Env) (arrow.RecordBatch, error) {
	alloc := env.Alloc
	if a, ok := alloc.(*exec.Account); ok {
		// Memory is waited for before there is a child, about as much as is sent, and not while
		// one is held: the task that frees the memory may wait for the child.
		a.Borrow(exec.SizeOf(rec))()
		alloc = a.Urgent()
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c, number := p.take()
	if c == nil {
		var err error
		if c, err = start(p.cmd, number); err != nil {
			p.freed(number)
			return nil, err
		}
	}
	out, err := c.call(ctx, rec, alloc)
	if err != nil && !isRefused(err) {
		p.freed(c.number)
		return nil, err
	}
	p.mu.Lock()
	p.idle = append(p.idle, c)
	p.mu.Unlock()
	return out, err
}

// take is an idle child, or the number of a new one.
func (p *pool) take() (c *child, number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		c, p.idle = p.idle[n-1], p.idle[:n-1]
		return c, c.number
	}
	n := len(p.free) // not 0: a child that is at work has a slot
	number, p.free = p.free[n-1], p.free[:n-1]
	return nil, number
}

// freed says that there is no child of this number any more.
func (p *pool) freed(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, number)
}

// close ends the idle children, at the same time, and waits for them. The pool
// may be used again.
func (p *pool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range idle {
		wg.Go(func() {
			c.finish()
			p.freed(c.number)
		})
	}
	wg.Wait()
}
