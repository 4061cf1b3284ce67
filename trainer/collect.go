package trainer

import "github.com/penstock-data/penstock/trainer/collective"

// Group of all ranks, for collectives on CPUs. The first call waits for all ranks; the group is closed with the loop.
func (c *Context) Group() (*collective.Group, error) {
	c.mu.Lock()
	ring := c.ring
	c.mu.Unlock()
	c.alive(false)
	if ring != nil {
		return ring, nil
	}
	ring, err := c.joinRing()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring = ring
	return ring, nil
}

// Barrier waits for all ranks.
func (c *Context) Barrier() error {
	g, err := c.Group()
	if err != nil {
		return err
	}
	return g.Barrier(c)
}

// Broadcast gives every rank the bytes of root.
func (c *Context) Broadcast(root int, b []byte) ([]byte, error) {
	g, err := c.Group()
	if err != nil {
		return nil, err
	}
	return g.Broadcast(c, root, b)
}

// AllGather gives every rank the bytes of all, by rank.
func (c *Context) AllGather(b []byte) ([][]byte, error) {
	g, err := c.Group()
	if err != nil {
		return nil, err
	}
	return g.AllGather(c, b)
}

// AllReduce replaces x by the sum, mean, least or greatest of what all ranks gave, number by number.
func AllReduce[T collective.Number](c *Context, x []T, op collective.Op) error {
	g, err := c.Group()
	if err != nil {
		return err
	}
	return collective.AllReduce(c, g, x, op)
}
