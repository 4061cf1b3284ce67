// Package doctest holds what documents say in numbers against the constants of the code. A number
// that moves in one place only fails here.
package doctest

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// says is what a document says: of is the constants in the place of each %, in their order, as
// folder.name, or as folder.variable.Field of a literal. %n is a number, %c one with commas, %b
// bytes, %d a duration.
type says struct {
	text string
	of   string
}

var documents = map[string][]says{
	"docs/feed.md": {
		{"Version %n; both sides speak the same", "shard/feed.version"},
		{"Meta is at most %b, of welcome, restore, done and started %b, of an error %b.", "shard/feed.maxMeta shard/feed.maxState shard/feed.maxText"},
		{"no allocation beyond %b before the bytes have come", "shard/feed.believed"},
		{"| %n restore |", "shard/feed.frameRestore"}, {"| %n begin |", "shard/feed.frameBegin"}, {"| %n more |", "shard/feed.frameMore"},
		{"| %n bye |", "shard/feed.frameBye"}, {"| %n free |", "shard/feed.frameFree"}, {"| %n welcome |", "shard/feed.frameWelcome"},
		{"| %n done |", "shard/feed.frameDone"}, {"| %n started |", "shard/feed.frameStarted"}, {"| %n record, %n tensors |", "shard/feed.frameRecord shard/feed.frameTensors"},
		{"| %n end |", "shard/feed.frameEnd"}, {"| %n over |", "shard/feed.frameOver"}, {"| %n error |", "shard/feed.frameError"},
		{"frames wanted (u32, at most %n in all", "shard/feed.maxAhead"},
		{"they take %b, or, over all ranks", "shard/feed.aheadBytes"},
		{"at least %n, at most %n, and no more than it uses in %d of late", "shard/feed.aheadLeast shard/feed.aheadMost shard/feed.aheadTime"},
		{"once %b are free", "shard/feed.freeBytes"},
		{"addresses, %b to %b:", "shard/feed.ringLeast shard/feed.ringMost"},
		{"each padded to %n bytes", "shard/feed.alignment"}, {"Offsets are multiples of %n.", "shard/feed.alignment"},
	},
	"docs/order.md": {
		{"its JSON (version %n)", "shard.StateVersion"}, {`{"version": %n,`, "shard.StateVersion"},
	},
	"docs/cluster.md": {
		{"%b packed, %b and %c files are the most", "cluster/internal/packs.DefaultLimits.Packed cluster/internal/packs.DefaultLimits.Unpacked cluster/internal/packs.DefaultLimits.Files"},
		{"%c such), and how a job with an id ended for %c ids", "cluster/internal/head.mostRecent cluster/internal/head.mostPast"},
	},
	"docs/security.md": {
		{"| message, headers of a call | %b, %b |", "cluster/internal/rpc.DefaultLimits.Message cluster/internal/rpc.DefaultLimits.Header"},
		{"| nodes; calls at once of a connection; connections | %c; %n; ", "cluster/internal/head.mostNodes cluster/internal/rpc.DefaultLimits.Streams"},
		{"| TLS handshake; a connection that has not proved who calls | %d; %d |", "cluster/internal/rpc.DefaultLimits.Handshake cluster/internal/rpc.DefaultLimits.Unproved"},
		{"| wrong tokens from one address | %n at once, then %n a second; joins at once: %n |",
			"cluster/internal/rpc.failures cluster/internal/rpc.perSecond cluster/internal/rpc.DefaultLimits.Newcomers"},
		{"| nodes of a job; address, certificate request of a process | %n; 64 bytes, %b |", "cluster/internal/head.mostMembers cluster/internal/pki.maxCSR"},
		{"| pack: packed, unpacked, files, memory to decompress | %b, %b, %c,",
			"cluster/internal/packs.DefaultLimits.Packed cluster/internal/packs.DefaultLimits.Unpacked cluster/internal/packs.DefaultLimits.Files"},
		{"| connections of a process of a job that have not proved who calls; from one machine | %n; %n |", "cluster/gang.maxUnproven cluster/gang.maxFrom"},
		{"that have not proved who calls; of a node; of a token | %n; %n; an eighth of all |", "cluster/internal/rpc.DefaultLimits.Strangers cluster/internal/rpc.perNode"},
		{"| a call's message, and each part of what is uploaded | %d |", "cluster/internal/rpc.DefaultLimits.Body"},
		{"| audit log: what was done, what was refused | %c (%b), %c |", "cluster/internal/head.mostAudited cluster/internal/head.mostAuditBytes cluster/internal/head.mostRefusals"},
	},
}

// python is what the Python client says of its own.
var python = map[string]string{
	"VERSION": "shard/feed.version", "_MAX_META": "shard/feed.maxMeta", "_MAX_STATE": "shard/feed.maxState", "_MAX_ROWS": "shard/feed.maxRows",
	"_MAX_RING": "shard/feed.maxRing", "_MAX_AHEAD": "shard/feed.maxAhead", "_SOON": "shard/feed.freeBytes",
}

func TestDocuments(t *testing.T) {
	known := packages{}
	for doc, all := range documents {
		text := read(t, doc)
		for _, s := range all {
			want, names := s.text, strings.Fields(s.of)
			for _, name := range names {
				i := strings.IndexByte(want, '%')
				want = want[:i] + written(want[i+1], known.value(t, name)) + want[i+2:]
			}
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q, which is what the code has (%s): set the document right, or what is looked for here", doc, want, s.of)
			}
		}
	}
}

func TestPythonFeed(t *testing.T) {
	known := packages{}
	const file = "python/penstock/_feed.py"
	text := read(t, file)
	for name, is := range python {
		_, rest, ok := strings.Cut(text, " "+name+" = ")
		words := strings.Fields(rest)
		n := 1 // words of the number: 16, or 1 << 10
		for ok && len(words) > n+1 && words[n] == "<<" {
			n += 2
		}
		e, err := parser.ParseExpr(strings.Join(words[:min(n, len(words))], " "))
		if !ok || err != nil {
			t.Errorf("%s: no number %s", file, name)
			continue
		}
		if got, want := (&folder{}).eval(e, 0), known.value(t, is); got == nil || !constant.Compare(got, token.EQL, want) {
			t.Errorf("%s: %s is %v, and %s is %v", file, name, got, is, want)
		}
	}
	if want := fmt.Sprintf("``shard/feed``, version %s:", known.value(t, "shard/feed.version")); !strings.Contains(text, want) {
		t.Errorf("%s does not say %q", file, want)
	}
}

// Every promise of docs/security.md names a test, and every test that it names is there.
func TestPromises(t *testing.T) {
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	promises, in := 0, false
	for line := range strings.Lines(string(b)) {
		switch {
		case strings.HasPrefix(line, "| promise | how | test |"):
			in = true
			continue
		case !strings.HasPrefix(line, "|"):
			in = false
		}
		if !in || strings.HasPrefix(line, "|---") {
			continue
		}
		promises++
		cells := strings.Split(strings.TrimSpace(line), " | ")
		named := testRE.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(named) == 0 {
			t.Errorf("no test is named for: %s", line)
		}
		for _, m := range named {
			if !tests[m[1]] {
				t.Errorf("there is no test %s: %s", m[1], line)
			}
		}
	}
	if promises < 35 {
		t.Errorf("only %d promises were found", promises)
	}
}

var (
	testRE   = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]*|test_[a-z0-9_]*)`")
	testFunc = regexp.MustCompile(`(?m)^\s*(?:func|def) ((?:Test|Fuzz)[A-Za-z0-9]*|test_[a-z0-9_]*)\(`)
)

// testNames are the names of all tests of the repository.
func testNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || name == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, "_test.go") && !(strings.HasPrefix(name, "test_") && strings.HasSuffix(name, ".py")):
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(b, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// read is a file of the repository, with each run of white space one space.
func read(t *testing.T, name string) string {
	b, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return " " + strings.Join(strings.Fields(string(b)), " ")
}

// written is a number as documents write it.
func written(as byte, v constant.Value) string {
	n, _ := constant.Int64Val(constant.ToInt(v))
	switch as {
	case 'b':
		units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
		i := 0
		for ; i+1 < len(units) && n >= 1<<10 && n%(1<<10) == 0; i++ {
			n >>= 10
		}
		return fmt.Sprintf("%d %s", n, units[i])
	case 'c':
		s := fmt.Sprint(n)
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case 'd':
		return fmt.Sprintf("%v s", time.Duration(n).Seconds())
	}
	return fmt.Sprint(n)
}

// packages are the folders that were read.
type packages map[string]*folder

// folder is the constants of a package, and the fields of literals of its variables, that are
// computed from numbers and each other.
type folder struct {
	exprs map[string]ast.Expr
	iota  map[string]int64
}

// value is that of folder.name.
func (p packages) value(t *testing.T, name string) constant.Value {
	t.Helper()
	dot := strings.LastIndexByte(name, '/') + 1
	dot += strings.IndexByte(name[dot:], '.')
	dir, name := name[:dot], name[dot+1:]
	f := p[dir]
	if f == nil {
		f = load(t, filepath.Join("..", "..", filepath.FromSlash(dir)))
		p[dir] = f
	}
	v := f.named(name)
	if v == nil {
		t.Fatalf("%s has no constant %s that is a number", dir, name)
	}
	return v
}

func load(t *testing.T, dir string) *folder {
	f := &folder{exprs: map[string]ast.Expr{}, iota: map[string]int64{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				f.declared(g)
			}
		}
	}
	return f
}

func (f *folder) declared(g *ast.GenDecl) {
	var last []ast.Expr
	for i, s := range g.Specs {
		s, ok := s.(*ast.ValueSpec)
		if !ok {
			return
		}
		if len(s.Values) > 0 {
			last = s.Values
		}
		for k, name := range s.Names {
			if k >= len(last) {
				break
			}
			f.exprs[name.Name], f.iota[name.Name] = last[k], int64(i)
			if lit, ok := last[k].(*ast.CompositeLit); ok {
				for _, e := range lit.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						if key, ok := kv.Key.(*ast.Ident); ok {
							f.exprs[name.Name+"."+key.Name] = kv.Value
						}
					}
				}
			}
		}
	}
}

func (f *folder) named(name string) constant.Value {
	if e := f.exprs[name]; e != nil {
		return f.eval(e, f.iota[name])
	}
	return nil
}

// eval is the number that e is; nil for what is none.
func (f *folder) eval(e ast.Expr, iota int64) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return f.eval(e.X, iota)
	case *ast.Ident:
		if e.Name == "iota" {
			return constant.MakeInt64(iota)
		}
		return f.named(e.Name)
	case *ast.SelectorExpr:
		units := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "time" && units[e.Sel.Name] > 0 {
			return constant.MakeInt64(int64(units[e.Sel.Name]))
		}
	case *ast.BinaryExpr:
		x, y := f.eval(e.X, iota), f.eval(e.Y, iota)
		if x == nil || y == nil {
			return nil
		}
		if e.Op == token.SHL {
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, e.Op, uint(n))
		}
		return constant.BinaryOp(x, e.Op, y)
	}
	return nil
}
