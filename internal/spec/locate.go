package spec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-data/penstock/internal/fault"
)

// document is the text that a spec was read from. Nodes that --set brought have negative lines: -1 is sets[0].
type document struct {
	file string
	root *yaml.Node
	sets []string // keys
}

// position is where a node is written: taxi.yaml:5:13, or taxi.yaml: --set run.memory.
func (d *document) position(n *yaml.Node) string {
	if n.Line < 0 {
		return d.file + ": --set " + d.sets[-n.Line-1]
	}
	return fmt.Sprintf("%s:%d:%d", d.file, n.Line, n.Column)
}

// located is an error with the position of what is wrong in the spec.
type located struct {
	at   string
	node *yaml.Node
	err  error
}

func (l *located) Error() string { return l.at + ": " + l.err.Error() }
func (l *located) Unwrap() error { return l.err }

// at says where the value at a path is written, in front of an error that does not say so yet.
func (s *Spec) at(path string, err error) error {
	if _, ok := errors.AsType[*located](err); ok || err == nil || s.doc == nil {
		return err
	}
	n := find(s.doc.root, path)
	return &located{s.doc.position(n), n, err}
}

// most is how many mistakes are told at once.
const most = 20

// inOrder are several mistakes as one error, in the order of the spec's lines; behind them what has no line, and what --set brought.
func inOrder(errs ...error) error {
	all := fault.All(fault.Join(errs...))
	place := func(err error) (kind, line, column int) {
		l, ok := errors.AsType[*located](err)
		switch {
		case !ok:
			return 1, 0, 0
		case l.node.Line < 0:
			return 2, -l.node.Line, 0
		}
		return 0, l.node.Line, l.node.Column
	}
	slices.SortStableFunc(all, func(a, b error) int {
		ak, al, ac := place(a)
		bk, bl, bc := place(b)
		return cmp.Or(ak-bk, al-bl, ac-bc)
	})
	if n := len(all) - most; n > 0 {
		all = append(all[:most], fault.New(fault.CodeOf(all[0]), "and %d more", n))
	}
	return fault.Join(all...)
}

// ofStep finds what an error of a step is about: its value, or the entry of the column that it names.
func (s *Spec) ofStep(path string) func(error) error {
	return func(err error) error {
		at := path
		if s.doc != nil {
			if n := find(s.doc.root, path); n.Kind == yaml.MappingNode {
				for i := 0; i < len(n.Content); i += 2 {
					if k := n.Content[i].Value; k != "on_error" {
						at = path + "." + k
					}
				}
			}
		}
		if c := fault.PlaceOf(err).Column; c != "" && !strings.Contains(c, ".") {
			at += "." + c
		}
		return s.at(at, err)
	}
}

// AtShards says which line of the shards section an error of its batches is about: one that is wrong
// with the spec, and has no line yet.
func (s *Spec) AtShards(err error) error {
	if c := fault.CodeOf(err); c != fault.Invalid && c != fault.Unsupported {
		return err
	}
	text := err.Error()
	if strings.Contains(text, "restore: ") { // of a state, not of the spec
		return err
	}
	if c := fault.PlaceOf(err).Column; c != "" && !strings.Contains(c, ".") {
		return s.at("shards.columns."+c, err)
	}
	for _, key := range []string{"run.on_error.dead_letter", "shards.shuffle.window_rows", "shards.shuffle.window_bytes", "shards.shuffle.lanes",
		"shards.shuffle.resident", "shards.shuffle.mode", "shards.batch_per_rank", "shards.global_batch", "shards.steps_per_epoch", "shards.tail"} {
		name := key[strings.LastIndexByte(key, '.')+1:]
		if strings.Contains(strings.ReplaceAll(text, "dead letter", "dead_letter"), name) && s.has(key) {
			return s.at(key, err)
		}
	}
	if strings.Contains(text, "shuffle: ") {
		return s.at("shards.shuffle", err)
	}
	return s.at("shards", err)
}

// has reports whether a path of keys and indices is written in the spec.
func (s *Spec) has(path string) bool {
	dir, key := "", path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		dir, key = path[:i], path[i+1:]
	}
	if s.doc == nil || dir != "" && !s.has(dir) {
		return false
	}
	n := s.doc.root
	if dir != "" {
		n = find(n, dir)
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.SequenceNode {
		i, err := strconv.Atoi(key)
		return err == nil && i >= 0 && i < len(n.Content)
	}
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// find is the node at a path of keys and indices, or the last one there is on the way.
func find(n *yaml.Node, path string) *yaml.Node {
keys:
	for _, k := range strings.Split(path, ".") {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i < len(n.Content); i += 2 {
				if n.Content[i].Value == k {
					n = n.Content[i+1]
					continue keys
				}
			}
		case yaml.SequenceNode:
			var i int
			if _, err := fmt.Sscan(k, &i); err == nil && i >= 0 && i < len(n.Content) {
				n = n.Content[i]
				continue keys
			}
		}
		return n
	}
	return n
}

// brackets writes steps.0.union.1 as messages and --set do, which count from 1: steps[1].union[2].
func brackets(path string) string {
	var b strings.Builder
	for i, k := range strings.Split(path, ".") {
		switch {
		case k != "" && strings.Trim(k, "0123456789") == "":
			n, _ := strconv.Atoi(k)
			fmt.Fprintf(&b, "[%d]", n+1)
		case i > 0:
			b.WriteString("." + k)
		default:
			b.WriteString(k)
		}
	}
	return b.String()
}
