package trainer

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// maxField is the most bytes of a part of a configuration that is compared as text, so that a difference can be shown: of what is longer only its sum is.
const maxField = 1 << 20

// fields are what all members of a gang must have in common, where each is configured by a call of its own.
func (s *site) fields() (all []wire.HandField) {
	c := &s.cfg
	add := func(name string, v any) {
		b, err := json.Marshal(v)
		text := string(b)
		if s, ok := v.(string); ok {
			text = s
		}
		if err != nil || len(text) > maxField {
			text = sum(text)
		}
		all = append(all, wire.HandField{Name: name, Text: text})
	}
	add("program", s.program) // a loop, and the functions of a plan, are nowhere else
	add("number of workers", c.Workers)
	add("number of nodes", c.nodes())
	add("number of data nodes", len(c.reads()))
	add("name of the run", c.Name)
	add("storage", c.Storage)
	how, command := "a program", s.argv
	if s.work != nil { // the program is where its node has it
		how, command = "goroutines", append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...)
		if c.Processes {
			how = "processes"
		}
	}
	add("way to run workers", how)
	add("command", command)
	add("spec", c.Spec)
	add("settings", c.Settings)
	sets := map[string]bool{}
	for _, name := range c.dataNames() {
		sets[name] = c.eval(name)
	}
	add("data sets (true: for evaluation)", sets)
	add("resources of a worker", c.Resources)
	add("way to upload (async)", c.Checkpoint.Async)
	env := slices.Clone(c.Env)
	slices.Sort(env)
	add("environment of workers (its sum)", sum(strings.Join(env, "\x00"))) // it may hold secrets
	return all
}

func sum(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }

// differs is an error where a member, who, has another configuration than this one; it says what differs first.
func differs(who string, theirs, ours []wire.HandField) error {
	of := map[string]string{}
	for _, f := range theirs {
		of[f.Name] = f.Text
	}
	for _, f := range ours {
		text, ok := of[f.Name]
		delete(of, f.Name)
		if !ok {
			return fault.New(fault.Unsupported, "%s says nothing of the %s: use one release for all nodes", who, f.Name)
		}
		if text != f.Text {
			a, b := apart(text, f.Text)
			return fault.New(fault.Invalid, "%s was started with another %s than node 0: %q there, %q here; all nodes of a job run the same command on the same files", who, f.Name, a, b)
		}
	}
	if len(of) > 0 {
		return fault.New(fault.Unsupported, "%s speaks of the %s: use one release for all nodes", who, slices.Sorted(maps.Keys(of))[0])
	}
	return nil
}

// apart are the lines in which two texts differ first. A line feed may be written as in JSON.
func apart(a, b string) (string, string) {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	from := strings.LastIndexByte(a[:n], '\n') + 1
	if i := strings.LastIndex(a[:n], `\n`); i >= 0 {
		from = max(from, i+len(`\n`))
	}
	line := func(s string) string {
		s = s[min(from, len(s)):]
		if i := strings.IndexByte(s, '\n'); i >= 0 {
			s = s[:i]
		}
		if i := strings.Index(s, `\n`); i >= 0 {
			s = s[:i]
		}
		return strings.ToValidUTF8(s[:min(len(s), 120)], "")
	}
	x, y := line(a), line(b)
	if x == y { // further along a line that is long
		cut := func(s string) string { return strings.ToValidUTF8(s[n:min(len(s), n+60)], "") }
		return cut(a), cut(b)
	}
	return x, y
}
