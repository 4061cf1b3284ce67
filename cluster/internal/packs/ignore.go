package packs

import (
	"os"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/penstock-data/penstock/internal/fault"
)

// IgnoreFile, in the folder that is packed, names what is not.
const IgnoreFile = ".penstockignore"

// Ignore says which paths are left out. A file of it has a pattern per line, as in a .gitignore: * and ? and [a-z] match within a name and ** across folders; a pattern with a slash at its
// beginning or within is one of paths from the top, others match at any depth; one that ends in a slash matches folders only; ! takes in again what an earlier line left out, but not below a
// folder that is left out; # begins a comment, and a backslash takes the next character as it is. The last line that matches decides. .git is left out unless a line takes it in.
type Ignore struct{ rules []rule }

type rule struct {
	pattern  string
	folders  bool
	takeIn   bool
	baseOnly bool // compared with the name alone
}

var always = rule{pattern: ".git", baseOnly: true}

// maxIgnore is the most bytes of an IgnoreFile.
const maxIgnore = 1 << 20

// ParseIgnore reads the lines of a file; what is no pattern is an error with its line.
func ParseIgnore(text string) (*Ignore, error) {
	ig := &Ignore{rules: []rule{always}}
	for i, line := range strings.Split(text, "\n") {
		p := strings.TrimRight(line, " \t\r")
		if p == "" || p[0] == '#' {
			continue
		}
		var r rule
		if p, r.takeIn = strings.CutPrefix(p, "!"); p == "" {
			return nil, fault.New(fault.Invalid, "line %d: a ! without a pattern", i+1)
		}
		p, r.folders = strings.CutSuffix(p, "/")
		r.baseOnly = !strings.Contains(p, "/")
		r.pattern = strings.TrimPrefix(p, "/")
		if r.pattern == "" || !doublestar.ValidatePattern(r.pattern) {
			return nil, fault.New(fault.Invalid, "line %d: %q is no pattern", i+1, line)
		}
		ig.rules = append(ig.rules, r)
	}
	return ig, nil
}

// Match says whether the path (with slashes, from the top) is left out.
func (ig *Ignore) Match(p string, folder bool) bool {
	base := path.Base(p)
	for i := len(ig.rules) - 1; i >= 0; i-- {
		r := &ig.rules[i]
		subject := p
		if r.baseOnly {
			subject = base
		}
		if folder || !r.folders {
			if ok, _ := doublestar.Match(r.pattern, subject); ok { // patterns were validated
				return !r.takeIn
			}
		}
	}
	return false
}

// LeftOut says whether the IgnoreFile of dir leaves out the file p, a path with slashes from there.
func LeftOut(dir, p string) (bool, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	ig, err := readIgnore(root)
	if err != nil {
		return false, err
	}
	for i := range len(p) { // what is below a folder that is left out is left out
		if p[i] == '/' && ig.Match(p[:i], true) {
			return true, nil
		}
	}
	return ig.Match(p, false), nil
}

// readIgnore reads the IgnoreFile of a folder; without one only .git is left out.
func readIgnore(root *os.Root) (*Ignore, error) {
	at := fault.Place{File: path.Join(root.Name(), IgnoreFile)}
	fi, err := root.Lstat(IgnoreFile)
	if os.IsNotExist(err) {
		return &Ignore{rules: []rule{always}}, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, at)
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxIgnore {
		return nil, fault.New(fault.Invalid, "is to be a regular file of at most %d bytes", maxIgnore).At(at)
	}
	b, err := root.ReadFile(IgnoreFile)
	if err != nil {
		return nil, fault.Wrap(err, at)
	}
	ig, err := ParseIgnore(string(b))
	return ig, fault.Wrap(err, at)
}
