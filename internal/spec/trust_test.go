package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mask"
	"github.com/penstock-data/penstock/internal/memtest"
)

// What a spec is not trusted with is refused where it would be run, and left out where it is looked
// at.
func TestTrust(t *testing.T) {
	t.Setenv("SECRET", "hunter2hunter2")
	t.Setenv("BUCKET", "s3://b/k")
	dir := t.TempDir()
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := fault.New(fault.Denied, "it belongs to eve")
	const head = "version: 1\nsource: {text: {paths: ["
	const evil = "http://evil.example:9"
	for name, x := range map[string]struct {
		text   string
		trust  Trust
		sets   []string
		runs   string // why it does not run; "": it does
		held   string // what is left out by who looks; "": nothing
		blind  bool
		mute   bool
		masked string
	}{
		"own, local, with references":       {text: head + "'/x/${env:SECRET}']}}\n", masked: "hunter2hunter2"},
		"own, of the cloud":                 {text: head + "'s3://b/k?region=eu-west-1']}}\n"},
		"own, reference in a URL":           {text: head + "'s3://b/${env:SECRET}']}}\n", runs: "in a URL", held: "in a URL", blind: true, mute: true},
		"own, file in a URL":                {text: head + "'s3://b/${file:" + file + "}']}}\n", runs: "in a URL", held: "in a URL", blind: true, mute: true},
		"own, URL from a reference":         {text: head + "'${env:BUCKET}/x']}}\n", runs: "in a URL", held: "in a URL", blind: true, mute: true},
		"trusted, reference in a URL":       {text: head + "'s3://b/${env:SECRET}']}}\n", trust: Trust{Given: true}},
		"typed, reference in a URL":         {text: head + "x]}}\n", trust: Trust{Typed: true}, sets: []string{"source.text.paths=['s3://b/${env:SECRET}']"}},
		"recorded, reference in a URL":      {text: head + "x]}}\n", sets: []string{"source.text.paths=['s3://b/${env:SECRET}']"}, runs: "in a URL", held: "in a URL", blind: true, mute: true},
		"own, reference in a step":          {text: head + "'s3://b/k']}}\nsteps: [{filter: 'text == \"${env:SECRET}\"'}]\n", held: "could tell their values", blind: true},
		"trusted, reference in a step":      {text: head + "'s3://b/k']}}\nsteps: [{filter: 'text == \"${env:SECRET}\"'}]\n", trust: Trust{Given: true}},
		"own, endpoint":                     {text: head + "'s3://b/k?endpoint=" + evil + "']}}\n", runs: "--endpoint " + evil, held: "--endpoint " + evil, blind: true},
		"trusted, endpoint":                 {text: head + "'s3://b/k?endpoint=" + evil + "']}}\n", trust: Trust{Given: true}, runs: "--endpoint " + evil, held: "--endpoint " + evil, blind: true},
		"own, endpoint allowed":             {text: head + "'s3://b/k?endpoint=HTTP://Evil.example:9/']}}\n", trust: Trust{Endpoints: []string{evil}}},
		"own, another endpoint allowed":     {text: head + "'s3://b/k?endpoint=http://evil.example:90']}}\n", trust: Trust{Endpoints: []string{evil}}, runs: "evil.example:90", held: "evil.example:90", blind: true},
		"typed, endpoint":                   {text: head + "x]}}\n", trust: Trust{Typed: true}, sets: []string{"source.text.paths=['s3://b/k?endpoint=" + evil + "']"}},
		"recorded, endpoint":                {text: head + "x]}}\n", sets: []string{"source.text.paths=['s3://b/k?endpoint=" + evil + "']"}, runs: "--endpoint", held: "--endpoint", blind: true},
		"endpoint by an alias":              {text: "version: 1\ntrain: {command: [x], env: [&a 's3://b/k?endpoint=" + evil + "']}\nshards: {global_batch: 1}\nsource: {text: {paths: [*a]}}\n", runs: "--endpoint", held: "--endpoint", blind: true},
		"endpoint of a union":               {text: head + "x]}}\nsteps: [{union: [{source: {text: {paths: ['s3://b/k?endpoint=" + evil + "']}}}]}]\n", runs: "--endpoint", held: "--endpoint", blind: true},
		"endpoint of a sink":                {text: head + "x]}}\nsink: {json: {path: 's3://b/k?endpoint=" + evil + "'}}\n", runs: "--endpoint", held: "--endpoint"},
		"endpoint of a dead letter":         {text: head + "x]}}\nrun: {on_error: {policy: skip, dead_letter: 's3://b/k?endpoint=" + evil + "'}}\n", runs: "--endpoint", held: "--endpoint"},
		"endpoint of runs":                  {text: head + "x]}}\nshards: {global_batch: 1}\ntrain: {storage: 's3://b/k?endpoint=" + evil + "'}\n", runs: "--endpoint", held: "--endpoint"},
		"a program's argument is its own":   {text: head + "x]}}\nsteps: [{exec: {command: [x, 's3://b/k?endpoint=" + evil + "']}}]\n"},
		"foreign, local":                    {text: head + "x]}}\n", trust: Trust{Foreign: foreign}, runs: "this spec is not yours (it belongs to eve)"},
		"foreign, trusted":                  {text: head + "'/x/${env:SECRET}']}}\n", trust: Trust{Foreign: foreign, Given: true}},
		"foreign, of the cloud":             {text: head + "'s3://b/k']}}\n", trust: Trust{Foreign: foreign}, runs: "not yours", held: "nothing is asked of a server", blind: true},
		"foreign, reference":                {text: head + "'/x/${env:SECRET}']}}\n", trust: Trust{Foreign: foreign}, runs: "not yours", held: "not replaced", blind: true, mute: true},
		"foreign, reference beside data":    {text: head + "x]}}\nrun: {cpus: '${env:CPUS}', memory: '${file:/no/such}'}\n", trust: Trust{Foreign: foreign}, runs: "not yours", held: "not replaced"},
		"foreign, endpoint that is allowed": {text: head + "'s3://b/k?endpoint=" + evil + "']}}\n", trust: Trust{Foreign: foreign, Endpoints: []string{evil}}, runs: "not yours", held: "nothing is asked", blind: true},
	} {
		var secrets mask.Set
		x.trust.Secrets = &secrets
		_, err := Parse("s.yaml", []byte(x.text), x.sets, x.trust)
		if (err == nil) != (x.runs == "") || err != nil && !strings.Contains(err.Error(), x.runs) {
			t.Errorf("%s: it runs with %v, want %q", name, err, x.runs)
		}
		x.trust.Looks = true
		s, err := Parse("s.yaml", []byte(x.text), x.sets, x.trust)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		held := s.Withheld()
		if (held == nil) != (x.held == "") || held != nil && !strings.Contains(held.Error(), x.held) || s.Blind() != x.blind || s.Mute() != x.mute {
			t.Errorf("%s: left out %v, blind %v, mute %v; want %q, %v, %v", name, held, s.Blind(), s.Mute(), x.held, x.blind, x.mute)
		}
		if x.masked != "" && secrets.Text("is "+x.masked) != "is ***" {
			t.Errorf("%s: %s is no secret", name, x.masked)
		}
	}
}

// Whose a spec is is that of its file, and of those that it names.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	main, val := filepath.Join(dir, "t.yaml"), filepath.Join(dir, "val.yaml")
	for name, text := range map[string]string{
		main: "version: 1\nsource: {range: {n: 9}}\nshards: {global_batch: 1}\ntrain: {command: [x], data: {val: {spec: val.yaml}}}\n",
		val:  "version: 1\nsource: {range: {n: 9}}\nshards: {global_batch: 1}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := LoadOriginal(main, nil, Trust{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(val, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadOriginal(main, nil, Trust{}); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "val.yaml: every user may write to it") {
		t.Error(err)
	}
	if _, err := Load(val, nil, Trust{}); fault.CodeOf(err) != fault.Denied {
		t.Error(err)
	}
	for _, may := range []Trust{{Given: true}, {Looks: true}} {
		o, _, err := LoadOriginal(main, nil, may)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.DataSpec("val", may); err != nil {
			t.Error(err)
		}
		if _, err := o.DataSpec("val", Trust{}); fault.CodeOf(err) != fault.Denied {
			t.Error(err)
		}
	}
	if os.Getuid() != 0 {
		memtest.Skip(t, "files of another user, which only root can make")
	}
	if err := os.Chown(main, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadOriginal(main, nil, Trust{}); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "belongs to another user") {
		t.Error(err)
	}
}

// A module of another user is not imported for a spec that is one's own: not from beside a link
// that leads to it, nor from a sticky folder.
func TestForeignModules(t *testing.T) {
	dir := t.TempDir()
	home, shared := filepath.Join(dir, "home"), filepath.Join(dir, "shared")
	for _, d := range []string{home, shared} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const text = "version: 1\nsource: {range: {n: 1}}\n"
	python := text + "steps: [{union: [{source: {range: {n: 1}}, steps: [{python: {function: 'mod:f'}}]}]}]\n"
	own, plain := filepath.Join(home, "s.yaml"), filepath.Join(home, "plain.yaml")
	for name, text := range map[string]string{own: python, plain: text, filepath.Join(shared, "s.yaml"): python} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"link.yaml": own, "plain.yaml": plain} {
		if err := os.Symlink(to, filepath.Join(shared, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link.yaml", "s.yaml"} {
		file := filepath.Join(shared, name)
		if _, err := Load(file, nil, Trust{}); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "looked for in "+shared) {
			t.Errorf("%s: %v", name, err)
		}
		for _, trust := range []Trust{{Given: true}, {Looks: true}} {
			if _, err := Load(file, nil, trust); err != nil {
				t.Errorf("%s, %+v: %v", name, trust, err)
			}
		}
	}
	for _, file := range []string{own, filepath.Join(shared, "plain.yaml")} {
		if _, err := Load(file, nil, Trust{}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Chdir(shared) // Python looks there, too
	if _, err := Load(own, nil, Trust{}); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "looked for in .,") {
		t.Errorf("from a sticky folder: %v", err)
	}
	t.Chdir(home)
	s, err := Load("s.yaml", nil, Trust{})
	if err != nil {
		t.Fatal(err)
	}
	if s.folder() != home {
		t.Errorf("modules in %s", s.folder())
	}
}
