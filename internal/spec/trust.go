package spec

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mask"
	"github.com/penstock-data/penstock/io/blobio"
)

// Trust is what a person lets a spec do; docs/trust.md has it as a table. The zero Trust is that of
// a file of one's own.
type Trust struct {
	// Foreign is why the spec is not the person's own; nil where it is. A foreign one may only be
	// looked at.
	Foreign error
	// Given: the person said that this spec may do what specs can. Then it is as one's own, and
	// references may be part of URLs.
	Given bool
	// Typed: the person typed the assignments, so that they may do all that the person may.
	Typed bool
	// Looks: nothing is run. What the spec is not trusted with is left out, which is no error: see
	// [Spec.Withheld].
	Looks bool
	// Endpoints are servers that URLs may name, as [blobio.Origin] has them.
	Endpoints []string
	// Secrets gets the values of all references; it may be nil.
	Secrets *mask.Set
}

// foreign reports that the spec may only be looked at.
func (t *Trust) foreign() bool { return t.Foreign != nil && !t.Given }

// runs refuses a spec that is to be run, and may not be.
func (t *Trust) runs(file string) error {
	if t.Looks || !t.foreign() {
		return nil
	}
	return fault.New(fault.Denied, "%s: this spec is not yours (%w), and it may run programs, read files and write as you: read it, and then give --trust; penstock validate checks it without that", file, t.Foreign)
}

// Withheld is what was left out of a spec that is only looked at, as it is not trusted with it;
// nil: nothing.
func (s *Spec) Withheld() error { return inOrder(s.withheld...) }

// Blind reports that the sources of the spec must not be looked at: there are some on servers, and
// the spec is not trusted to have something asked of them.
func (s *Spec) Blind() bool { return s.blind }

// Mute reports that the spec's source and steps have references that were not replaced. Such a spec
// is blind, too.
func (s *Spec) Mute() bool { return s.mute }

// withhold leaves out what n asks for, or refuses it where it would be needed.
func (c *checker) withhold(n *yaml.Node, format string, args ...any) {
	if !c.trust.Looks {
		c.add(n, "", format, args...)
		return
	}
	c.withheld = append(c.withheld, &located{c.position(n), n, fault.New(fault.Denied, format, args...)})
	c.blind = c.blind || c.data[n]
}

// nodesBelow are the values under some keys, also those that aliases stand for.
func nodesBelow(root *yaml.Node, keys ...string) map[*yaml.Node]bool {
	all := map[*yaml.Node]bool{}
	var add func(n *yaml.Node)
	add = func(n *yaml.Node) {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if !all[n] {
			all[n] = true
			for _, e := range n.Content {
				add(e)
			}
		}
	}
	for _, key := range keys {
		if n := lookup(root, key); n != nil {
			add(n)
		}
	}
	return all
}

// typedBy reports that the person typed a value.
func (c *checker) typedBy(n *yaml.Node) bool { return c.trust.Typed && n.Line < 0 }

// references replaces ${env:NAME} and ${file:path} in values. Those of a foreign spec are left as
// they are, and so are those in URLs of servers, which would get them, unless the person trusts the
// spec with it.
func (c *checker) references(n *yaml.Node, seen map[*yaml.Node]bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if seen[n] {
		return
	}
	seen[n] = true
	for _, e := range n.Content {
		c.references(e, seen)
	}
	if n.Kind != yaml.ScalarNode || !strings.Contains(n.Value, "${") {
		return
	}
	value, refers, ok := c.replaced(n)
	switch {
	case !ok:
	case refers && c.trust.foreign() && !c.typedBy(n):
		c.unreplaced(n, "a reference, which is not replaced: the spec is not yours (give --trust if it may read your files and environment)")
	case refers && !c.trust.Given && !c.typedBy(n) && (blobio.Remote(n.Value) || blobio.Remote(value)):
		c.unreplaced(n, "a reference in a URL, whose value would be sent there: give --trust if the spec may do that, or the whole value by --set KEY=VALUE")
	default:
		n.Value = value
		c.referred[n] = refers
	}
}

// unreplaced leaves a reference as it is.
func (c *checker) unreplaced(n *yaml.Node, why string) {
	c.withhold(n, "%s", why)
	c.unknown[n] = true
	c.mute = c.mute || c.data[n]
}

// replaced is the value of n, and whether there are references in it. Those of a foreign spec are
// not looked up.
func (c *checker) replaced(n *yaml.Node) (value string, refers, ok bool) {
	var b strings.Builder
	rest := n.Value
	for {
		before, after, more := strings.Cut(rest, "${")
		if escaped, cut := strings.CutSuffix(before, "$"); more && cut { // $${ stands for ${
			b.WriteString(escaped + "${")
			rest = after
			continue
		}
		b.WriteString(before)
		if !more {
			return b.String(), refers, true
		}
		ref, tail, closed := strings.Cut(after, "}")
		kind, name, _ := strings.Cut(ref, ":")
		switch {
		case !closed:
			c.add(n, "", "${ without }: write $${ for the text itself")
			return "", false, false
		case kind != "env" && kind != "file":
			c.add(n, "", "${%s}: references are ${env:NAME} and ${file:path}", ref)
		case !c.trust.foreign() || c.typedBy(n):
			b.WriteString(c.refer(n, kind, name))
		}
		refers = true
		rest = tail
	}
}

// refer is the value of a reference.
func (c *checker) refer(n *yaml.Node, kind, name string) string {
	v, err := "", error(nil)
	if kind == "env" {
		var set bool
		if v, set = os.LookupEnv(name); !set {
			err = fmt.Errorf("environment variable %s is not set", name)
			if os.Getenv("PENSTOCK_JOB") != "" { // it was where the job was submitted
				err = fmt.Errorf("environment variable %s is not set on this node: submit the job with --env %[1]s, or --secret %[1]s", name)
			}
		}
	} else if b, e := readSmall(name); e != nil {
		err = fmt.Errorf("reference to a file: %w", e)
	} else {
		v = strings.TrimRight(string(b), "\r\n")
	}
	if err != nil {
		c.add(n, "", "%v", err)
		c.unknown[n] = true
	}
	if c.trust.Secrets != nil {
		c.trust.Secrets.Add(v)
	}
	return v
}

// readSmall reads a regular file of at most 64 KiB.
func readSmall(name string) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > 64<<10 {
		return nil, fmt.Errorf("%s is no regular file of at most 64 KiB", name)
	}
	return os.ReadFile(name)
}

// opaque are keys whose values are for programs, which do with URLs what they like.
var opaque = []string{"command", "env", "config"}

// targets looks at all URLs of servers: where requests and credentials would go.
func (c *checker) targets(n *yaml.Node, seen map[*yaml.Node]bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if seen[n] {
		return
	}
	seen[n] = true
	for i, e := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && slices.Contains(opaque, n.Content[i-1].Value) {
			continue
		}
		c.targets(e, seen)
	}
	if n.Kind != yaml.ScalarNode || c.unknown[n] || !blobio.Remote(n.Value) || c.typedBy(n) {
		return
	}
	if _, _, err := blobio.Split(n.Value); err != nil {
		return // who opens it says what is wrong, and where
	}
	switch target, err := blobio.Target(n.Value); {
	case err != nil:
		c.add(n, "", "%v", err)
		c.unknown[n] = true
	case target != "" && !slices.Contains(c.trust.Endpoints, target):
		c.withhold(n, "it names a server, %s, to which requests and credentials would go: give --endpoint %[1]s if they may", target)
	case c.data[n] && c.trust.Looks && c.trust.foreign():
		c.withhold(n, "nothing is asked of a server for a spec that is not yours (give --trust if that may be)")
	case c.data[n] && c.trust.Looks && !c.trust.Given && c.refersData():
		c.withhold(n, "nothing is asked of a server for a spec with references in its source or steps, which could tell their values (give --trust if that may be)")
	}
}

// refersData reports that what is read, or what is asked of where it is, depends on references.
func (c *checker) refersData() bool {
	for n, refers := range c.referred {
		if refers && c.data[n] && !c.typedBy(n) {
			return true
		}
	}
	return false
}
