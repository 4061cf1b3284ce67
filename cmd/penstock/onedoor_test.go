package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/term"
)

// otherWays are the uses of what reaches standard output, standard error or a terminal beside
// internal/term, and why each is right. What programs read of commands (--json, batches --format
// jsonl and lineage, the first line of data) is no other way: term.JSON escapes in it what does not
// print, and the values stay.
var otherWays = map[string]string{
	"cmd/penstock/data.go: os.Stdout":         "data --control: a pipe whose lines a controller reads, and nothing else goes there",
	"cmd/penstock/data.go: os.Stderr":         "data --control: takes the place of os.Stdout for steps that print",
	"cmd/penstock/jobs.go: Raw":               "logs --raw: all bytes of a log, for files and programs; refused on a terminal",
	"cmd/penstock/output.go: log":             "has what libraries log go to term.Err",
	"cmd/penstock/output.go: grpclog":         "has what gRPC logs go to term.Err",
	"penstock.go: slog.NewTextHandler":        "writes to term.Err",
	"internal/testserver/proxy.go: log":       "of tests; to io.Discard",
	"examples/scan-go/main.go: log":           "a program as users write it: errors of Penstock, which print",
	"examples/scan-go/main.go: fmt.Printf":    "a program as users write it: numbers of its own",
	"examples/cluster-go/main.go: fmt.Printf": "a program as users write it: numbers and flags of its own",
	"examples/tabular-go/main.go: fmt.Printf": "a program as users write it: its metrics, and errors of Penstock, which print",
	"examples/tabular-go/main.go: log":        "a program as users write it: errors of Penstock, which print",
}

// notSearched are folders that no user's terminal sees: what measures, and what tests use.
var notSearched = []string{"bench", "bin", "tools", "python", "shared"}

// waysOut are what a file uses that prints beside internal/term.
func waysOut(f *ast.File) (ways []string) {
	packages := map[string]string{} // by the name that the file has for them
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue
		}
		name := path[strings.LastIndexByte(path, '/')+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		switch packages[name] = path; path {
		case "log", "google.golang.org/grpc/grpclog":
			ways = append(ways, name)
		case "golang.org/x/term", "log/syslog":
			ways = append(ways, path)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.SelectorExpr:
			if x.Sel.Name == "Raw" {
				if of, ok := x.X.(*ast.SelectorExpr); ok && (of.Sel.Name == "Out" || of.Sel.Name == "Err") {
					ways = append(ways, "Raw")
				}
			}
			id, ok := x.X.(*ast.Ident)
			if !ok || id.Obj != nil { // a variable's
				return true
			}
			switch of, name := packages[id.Name], x.Sel.Name; {
			case of == "os" && (name == "Stdout" || name == "Stderr"),
				of == "fmt" && strings.HasPrefix(name, "Print"),
				of == "log/slog" && slices.Contains([]string{"NewTextHandler", "NewJSONHandler", "Default", "SetDefault", "Debug", "Info", "Warn", "Error", "Log", "LogAttrs"}, name),
				(of == "syscall" || of == "golang.org/x/sys/unix") && (name == "Stdout" || name == "Stderr"):
				ways = append(ways, id.Name+"."+name)
			}
		case *ast.CallExpr:
			if id, ok := x.Fun.(*ast.Ident); ok && id.Obj == nil && (id.Name == "print" || id.Name == "println") {
				ways = append(ways, id.Name)
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(x.Value); err == nil && x.Kind == token.STRING {
				if strings.Contains(text, "\x1b") {
					ways = append(ways, "an escape sequence")
				}
				for _, dev := range []string{"/dev/tty", "/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/1", "/proc/self/fd/2"} {
					if strings.HasPrefix(text, dev) {
						ways = append(ways, dev)
					}
				}
			}
		}
		return true
	})
	return ways
}

// There is one way to a terminal: nothing of this module prints beside internal/term, but what
// otherWays has.
func TestOneWayToTerminals(t *testing.T) {
	used := map[string]bool{}
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, "../../"))
		if d.IsDir() {
			if slices.Contains(notSearched, name) || name == "internal/term" || name != "../.." && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") {
			return nil
		}
		files++
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		for _, way := range waysOut(f) {
			key := name + ": " + way
			if used[key] = true; otherWays[key] == "" {
				t.Errorf("%s: print through cmd.OutOrStdout(), cmd.ErrOrStderr(), or internal/term's Out and Err", key)
			}
		}
		return nil
	})
	if err != nil || files < 200 {
		t.Fatalf("%d files: %v", files, err)
	}
	for key := range otherWays {
		if !used[key] {
			t.Errorf("%s is not there: take it out of the table", key)
		}
	}
	if c := root(); c.OutOrStdout() != term.Out || c.ErrOrStderr() != term.Err {
		t.Error("commands do not print through internal/term")
	}
}

// The search finds all ways.
func TestWaysOut(t *testing.T) {
	const text = `package p
import ("fmt"; out "os"; "log"; "log/slog"; "golang.org/x/term"; "syscall"; mine "github.com/penstock-data/penstock/internal/term")
func f() {
	fmt.Fprintln(out.Stderr, "x"); fmt.Print("x"); fmt.Println(); println("x")
	slog.Info("x"); slog.New(slog.NewJSONHandler(out.Stdout, nil))
	syscall.Write(syscall.Stdout, nil)
	mine.Out.Raw().Write([]byte("\x1b[2J"))
	out.OpenFile("/dev/tty", 0, 0)
	var os struct{ Stdout, Raw int }
	_ = os.Stdout + os.Raw
	fmt.Sprintln("no")
}`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := "log golang.org/x/term out.Stderr fmt.Print fmt.Println println slog.Info slog.NewJSONHandler out.Stdout syscall.Stdout Raw an escape sequence /dev/tty"
	if got := strings.Join(waysOut(f), " "); got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}
