package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	maxSpec  = 1 << 20 // bytes of a spec
	maxNodes = 100_000 // values in one, aliases expanded
	maxDepth = 64
)

// Load reads and checks a spec. sets are assignments "run.memory=1GiB" applied
// before the check; ${env:NAME} and ${file:path} in values are replaced, so that secrets stay out of specs. t says what
// the spec may do, but for t.Foreign, which Load finds out.
func Load(path string, sets []string, t Trust) (*Spec, error) {
	data, foreign, err := readSpec(path)
	if err != nil {
		return nil, err
	}
	t.Foreign = foreign
	return Parse(filepath.ToSlash(path), data, sets, t)
}

// Parse is Load for a spec in memory, of which t.Foreign is known; file names it in messages. The
// spec beside an error, if there is one, is for Mistakes only.
func Parse(file string, data []byte, sets []string, t Trust) (*Spec, error) {
	if err := t.runs(file); err != nil {
		return nil, err
	}
	if len(data) > maxSpec {
		return nil, fault.New(fault.Invalid, "%s: a spec has at most %d bytes", file, maxSpec)
	}
	data = oneEscape(data)
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fault.New(fault.Invalid, "%s: the spec is empty", file)
		}
		return nil, notYAML(file, data, err)
	}
	if err := dec.Decode(new(yaml.Node)); err != io.EOF {
		return nil, fault.New(fault.Invalid, "%s: a spec is one YAML document; there is a second one", file)
	}
	root := doc.Content[0]
	c := &checker{document: document{file: file, root: root}, referred: map[*yaml.Node]bool{}, unknown: map[*yaml.Node]bool{}, trust: t}
	count := 0
	if !c.bounded(root, 0, &count) {
		return nil, c.err()
	}
	for _, s := range sets {
		if err := c.set(s); err != nil {
			return nil, err
		}
	}
	c.recorded(root)
	c.data = nodesBelow(root, "source", "steps")
	c.references(root, map[*yaml.Node]bool{})
	c.targets(root, map[*yaml.Node]bool{})
	v := c.decode(root, reflect.TypeFor[Spec](), "")
	var s Spec
	j, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(j, &s)
	}
	switch wrong := c.err(); {
	case wrong != nil && err != nil:
		return nil, wrong
	case wrong != nil:
		return &s, c.errWith(&s)
	case err != nil:
		return nil, fault.New(fault.Invalid, "%s: %w", file, err)
	}
	if s.Version != 1 {
		c.add(find(root, "version"), "version", "this program reads version 1, not %d", s.Version)
		return nil, c.err()
	}
	c.rules(root, &s)
	if err := c.errWith(&s); err != nil {
		return &s, err
	}
	s.doc, s.secrets, s.withheld, s.blind, s.mute = &c.document, t.Secrets, c.withheld, c.blind, c.mute
	if err := s.imports(&t); err != nil {
		return nil, err
	}
	return &s, nil
}

// oneEscape writes the two escapes with which JSON has a character beyond U+FFFF as the one that
// YAML has for it, so that a spec may be JSON. YAML allows neither of the two.
func oneEscape(data []byte) []byte {
	if !json.Valid(data) {
		return data
	}
	return escapes.ReplaceAllFunc(data, func(e []byte) []byte {
		if len(e) < 12 { // another escape, a backslash for one
			return e
		}
		high, _ := strconv.ParseUint(string(e[2:6]), 16, 16)
		low, _ := strconv.ParseUint(string(e[8:]), 16, 16)
		return fmt.Appendf(nil, `\U%08X`, utf16.DecodeRune(rune(high), rune(low)))
	})
}

var escapes = regexp.MustCompile(`\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)

// notYAML gives a syntax error its place as other errors have it, and says what is most often wrong.
func notYAML(file string, data []byte, err error) error {
	text, at, number := strings.TrimPrefix(err.Error(), "yaml: "), file, 0
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if n, what, ok := strings.Cut(rest, ": "); ok {
			number, _ = strconv.Atoi(n)
			if strings.HasPrefix(what, "did not find expected") { // by the parser, which counts from 0
				number = min(number+1, bytes.Count(data, []byte("\n"))+1)
			}
			at, text = fmt.Sprintf("%s:%d", file, number), what
		}
	}
	var line []byte
	if lines := bytes.Split(data, []byte("\n")); number > 0 && number <= len(lines) {
		line = lines[number-1]
	}
	hint := ""
	switch {
	case bytes.IndexByte(line, '\t') >= 0 && strings.Contains(text, "cannot start any token"), strings.Contains(text, "tab character"):
		hint = ": there is a tab; YAML indents with spaces only"
	case strings.Contains(text, "cannot start any token"):
		hint = ": a value that begins with @, %, ` or another sign of YAML needs quotes"
	case strings.Contains(text, "escape"):
		hint = `: in double quotes, a backslash begins an escape such as \n or \u00e9; single quotes take text as it stands`
	case strings.Contains(text, "did not find expected"), strings.Contains(text, "mapping values are not allowed"):
		hint = ": an expression that holds a comma, a quote, a brace or a colon needs quotes around all of it"
	case strings.Contains(text, "UTF-8"), strings.Contains(text, "control characters"):
		hint = ": a spec is text in UTF-8"
	case strings.Contains(text, "end of stream"), strings.Contains(text, "document indicator"):
		hint = ": a quote or a bracket is open at the end"
	case strings.Contains(text, "unknown anchor"):
		hint = ": a value that begins with * stands for another, which is marked with &; one that is text needs quotes"
	case strings.Contains(text, "directive"), strings.Contains(text, "incompatible"), strings.Contains(text, "version number"):
		hint = ": lines that begin with % are directives of YAML, and a spec needs none"
	case strings.Contains(text, "tag"), strings.Contains(text, "URI"), strings.Contains(text, "the expected '>'"):
		hint = ": a value that begins with ! needs quotes"
	default:
		hint = ": it cannot be read here"
	}
	return fault.New(fault.Invalid, "%s: this is no YAML%s (%s)", at, hint, text)
}

// bounded refuses documents that aliases or nesting blow up.
func (c *checker) bounded(n *yaml.Node, depth int, count *int) bool {
	if *count++; *count > maxNodes || depth > maxDepth {
		c.add(n, "", "too large: at most %d values, nested at most %d deep", maxNodes, maxDepth)
		return false
	}
	if n.Kind == yaml.AliasNode {
		return c.bounded(n.Alias, depth+1, count)
	}
	for _, e := range n.Content {
		if !c.bounded(e, depth+1, count) {
			return false
		}
	}
	return true
}

// set applies "a.b.0.c=value"; the value is YAML.
func (c *checker) set(assignment string) error {
	path, value, ok := strings.Cut(assignment, "=")
	if !ok || path == "" {
		return fault.New(fault.Invalid, "--set %s: want key=value, such as run.memory=1GiB", assignment)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); err != nil {
		return notYAML("--set "+assignment, []byte(value), err)
	}
	val := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str"}
	if len(doc.Content) > 0 {
		val = doc.Content[0]
	}
	c.sets = append(c.sets, path)
	mark := -len(c.sets)
	markAll(val, mark)
	n := c.root
	keys := strings.Split(path, ".")
	for i, k := range keys {
		last := i == len(keys)-1
		if n.Kind == yaml.AliasNode {
			return fault.New(fault.Invalid, "--set %s: %s is an alias; set what it stands for", assignment, strings.Join(keys[:i], "."))
		}
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			*n = yaml.Node{Kind: yaml.MappingNode, Line: mark}
		}
		switch n.Kind {
		case yaml.MappingNode:
			at := -1
			for j := 0; j < len(n.Content); j += 2 {
				if n.Content[j].Value == k {
					at = j + 1
				}
			}
			if at < 0 {
				n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k, Line: mark},
					&yaml.Node{Kind: yaml.MappingNode, Line: mark})
				at = len(n.Content) - 1
			}
			if last {
				n.Content[at] = val
			}
			n = n.Content[at]
		case yaml.SequenceNode:
			j, err := strconv.Atoi(k)
			if j--; err != nil || j < 0 || j >= len(n.Content) {
				return fault.New(fault.Invalid, "--set %s: %q is no item of a list of %d; they count from 1", assignment, k, len(n.Content))
			}
			if last {
				n.Content[j] = val
			}
			n = n.Content[j]
		default:
			return fault.New(fault.Invalid, "--set %s: %s holds a value, not keys: set the whole of it, as --set '%[2]s={%[3]s: ...}'", assignment, strings.Join(keys[:i], "."), k)
		}
	}
	return nil
}

// markAll gives all nodes of a value a line.
func markAll(n *yaml.Node, line int) {
	n.Line = line
	for _, e := range n.Content {
		markAll(e, line)
	}
}
