package place

import (
	"encoding/binary"
	"iter"
	"maps"
	"math/bits"
	"slices"
)

// class is nodes that are alike to every demand, but for their ids: they stand alike, offer the same, have the same labels, and as much is free there and kept. A placement looks at one of them for all, and takes the lowest ids: it costs the kinds
// of nodes that there are, and those that it takes.
type class struct {
	key   string
	nodes []uint64 // a bit for each node, by its place in Machine.order
	n     int      // of them
	at    int      // in Machine.classes
}

// classify puts a node into its class, after anything of it has changed.
func (m *Machine) classify(n *node) {
	m.key = n.key(m.key[:0])
	if n.class != nil && n.class.key == string(m.key) {
		return
	}
	for _, s := range m.shelves {
		s.put(n)
	}
	m.unclassify(n)
	c := m.byKey[string(m.key)]
	if c == nil {
		c = &class{key: string(m.key), at: len(m.classes)}
		m.byKey[c.key] = c
		m.classes = append(m.classes, c)
	}
	c.add(n)
}

func (c *class) add(n *node) {
	for len(c.nodes) <= n.rank/64 {
		c.nodes = append(c.nodes, 0)
	}
	c.nodes[n.rank/64] |= 1 << (n.rank % 64)
	c.n++
	n.class = c
}

// unclassify takes a node out of its class, if it is in one.
func (m *Machine) unclassify(n *node) {
	c := n.class
	if c == nil {
		return
	}
	n.class = nil
	c.nodes[n.rank/64] &^= 1 << (n.rank % 64)
	if c.n--; c.n > 0 {
		return
	}
	delete(m.byKey, c.key)
	last := len(m.classes) - 1
	m.classes[c.at] = m.classes[last]
	m.classes[c.at].at = c.at
	m.classes[last] = nil
	m.classes = m.classes[:last]
}

// rerank numbers the nodes anew, after one has come or gone.
func (m *Machine) rerank() {
	for _, c := range m.classes {
		clear(c.nodes)
		c.n = 0
	}
	for i, n := range m.order {
		n.rank = i
		if n.class != nil {
			n.class.add(n)
		}
	}
}

// of yields the nodes of a class, by id.
func (m *Machine) of(c *class) iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for i, word := range c.nodes {
			for ; word != 0; word &= word - 1 {
				if !yield(m.order[64*i+bits.TrailingZeros64(word)]) {
					return
				}
			}
		}
	}
}

// one of a class, which is as good as any for what they have in common.
func (m *Machine) one(c *class) *node {
	for n := range m.of(c) {
		return n
	}
	return nil // never: a class has nodes
}

// shape is the part of a node's key that stays while it is attached.
func shape(n Node) string { return string(appendLabels(n.Capacity.key(nil), n.Labels)) }

// key appends what a node's class is known by.
func (n *node) key(b []byte) []byte {
	drains := byte(0)
	if n.draining {
		drains = 1
	}
	b = append(b, byte(n.is), drains)
	b = n.free.key(b)
	b = n.kept.key(b)
	return append(b, n.shape...)
}

// key appends what resources are known by.
func (r Resources) key(b []byte) []byte {
	for _, v := range [...]int64{r.MilliCPUs, r.GPUs, r.Memory, int64(len(r.Named))} {
		b = binary.AppendVarint(b, v)
	}
	if len(r.Named) == 0 {
		return b
	}
	for _, k := range slices.Sorted(maps.Keys(r.Named)) {
		b = binary.AppendVarint(appendText(b, k), r.Named[k])
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendVarint(b, int64(len(s))), s...)
}

func appendLabels(b []byte, labels map[string]string) []byte {
	b = binary.AppendVarint(b, int64(len(labels)))
	if len(labels) == 0 {
		return b
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b = appendText(appendText(b, k), labels[k])
	}
	return b
}
