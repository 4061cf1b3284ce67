package expr

// Limits on expressions, so that no text can take the process down.
const (
	maxText  = 64 << 10 // bytes of text
	maxDepth = 256      // nesting of the tree
	maxRegex = 4 << 10  // bytes of a regular expression
)

type kind uint8

const (
	kColumn  kind = iota
	kLiteral      // val
	kList         // args
	kField        // args[0].name
	kCall         // function name, or an operator by its symbol, of args
)

// node is a part of an expression. Immutable: trees share nodes.
type node struct {
	kind kind
	name string
	val  any // nil, bool, int64, uint64, float64, string or blob
	args []*node
	// size and depth of the tree below; size saturates.
	size, depth int
}

// blob is the value of a bytes literal.
type blob string

func newNode(k kind, name string, args ...*node) *node {
	n := &node{kind: k, name: name, args: args, size: 1}
	for _, a := range args {
		n.size = min(n.size+a.size, 1<<30)
		n.depth = max(n.depth, a.depth+1)
	}
	return n
}

func litNode(v any) *node { return &node{kind: kLiteral, val: v, size: 1} }

func call(name string, args ...*node) *node { return newNode(kCall, name, args...) }

// junction is && or || of args, with nested ones of the same kind taken in: one
// tree for every way to write it.
func junction(op string, args ...*node) *node {
	var flat []*node
	for _, a := range args {
		if a.kind == kCall && a.name == op {
			flat = append(flat, a.args...)
		} else {
			flat = append(flat, a)
		}
	}
	return call(op, flat...)
}

func (n *node) is(name string) bool { return n.kind == kCall && n.name == name }

// rewrite replaces nodes from the leaves up; f returns its argument to keep it.
// Shared nodes are visited once.
func (n *node) rewrite(f func(*node) *node, seen map[*node]*node) *node {
	if m, ok := seen[n]; ok {
		return m
	}
	out := n
	if len(n.args) > 0 {
		args, changed := make([]*node, len(n.args)), false
		for i, a := range n.args {
			args[i] = a.rewrite(f, seen)
			changed = changed || args[i] != a
		}
		switch {
		case !changed:
		case n.is("&&") || n.is("||"):
			out = junction(n.name, args...)
		default:
			out = newNode(n.kind, n.name, args...)
		}
	}
	out = f(out)
	seen[n] = out
	return out
}

// walk visits every node once.
func (n *node) walk(f func(*node), seen map[*node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	f(n)
	for _, a := range n.args {
		a.walk(f, seen)
	}
}
