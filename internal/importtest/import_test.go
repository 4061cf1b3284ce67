// Package importtest enforces the import directions of ARCHITECTURE.md.
package importtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/penstock-data/penstock/"

// allowed lists, per package (or tree, by a trailing /...), the packages of this
// module that its non-test files may import. The first match counts. internal/... may be imported by
// all and imports nothing else, but for the exceptions listed.
var allowed = []struct {
	pkg     string
	imports string
}{
	{"internal/fault", ""},
	{"internal/memtest", ""},
	{"internal/datatest", ""},
	{"internal/typename", "internal/fault"},
	{"internal/mem", ""},
	{"internal/testserver", "internal/fault"},
	{"internal/spec", "internal/fault internal/typename dataset io/... ops ops/expr exec exec/sink shard"},
	{"io/driver", "internal/fault"},
	{"io/blobio", "internal/fault"},
	{"io/fileset", "internal/fault internal/typename io/driver io/blobio"},
	{"io/drivertest", "internal/fault internal/memtest io/driver"},
	{"io/...", "internal/fault internal/typename internal/mem io/driver io/blobio io/fileset"},
	{"ops/expr", "internal/fault internal/typename io/driver"},
	{"ops", "internal/fault internal/typename io/driver ops/expr"},
	{"exec", "internal/fault internal/mem io/driver"},
	{"exec/internal/sched", "internal/fault"},
	{"exec/operators", "internal/fault exec ops ops/expr"},
	{"exec/plan", "internal/fault io/driver ops ops/expr exec exec/operators"},
	{"exec/local", "internal/fault internal/mem io/driver exec exec/internal/sched"},
	{"exec/exectest", "internal/fault internal/mem io/driver exec"},
	{"exec/sink", "internal/fault io/driver io/blobio io/parquetio exec"},
	{"exec/prom", "exec"},
	{"shard", "internal/fault internal/typename exec"},
	{"dataset", "internal/fault internal/typename io/... ops ops/expr exec exec/plan exec/local exec/sink shard"},
	{"cmd/...", "..."},
	{"examples/...", "..."},
	{"bench/...", "..."},
}

func match(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == tree || strings.HasPrefix(pkg, tree+"/")
	}
	return pattern == pkg
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func TestImportDirections(t *testing.T) {
	seen := 0
	for _, line := range goList(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		f := strings.Fields(line)
		pkg := strings.TrimPrefix(f[0], module)
		if pkg == "internal/deps" || pkg == "internal/importtest" {
			continue
		}
		seen++
		rule := -1
		for i, a := range allowed {
			if match(a.pkg, pkg) {
				rule = i
				break
			}
		}
		if rule < 0 {
			t.Errorf("package %s has no rule: add it to the table and to ARCHITECTURE.md", pkg)
			continue
		}
	imports:
		for _, imp := range f[1:] {
			imp, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			for _, p := range strings.Fields(allowed[rule].imports) {
				if match(p, imp) {
					continue imports
				}
			}
			t.Errorf("%s imports %s: not a direction that ARCHITECTURE.md allows", pkg, imp)
		}
	}
	if seen < 10 {
		t.Fatalf("only %d packages seen", seen)
	}
}

// A program that imports the library and no bucket driver links no cloud SDK
// and no gRPC server. (The packages of gRPC are in the graph, through gocloud.dev's error
// codes and arrow-go's pqarrow; the linker leaves the server out.)
func TestLinksNoCloud(t *testing.T) {
	for _, dep := range goList(t, "-deps", "./dataset") {
		for _, bad := range []string{"github.com/aws/", "cloud.google.com/go/storage", "github.com/Azure/azure-sdk", "gocloud.dev/blob/s3blob",
			"gocloud.dev/blob/gcsblob", "gocloud.dev/blob/azureblob", "go.etcd.io/"} {
			if strings.HasPrefix(dep, bad) {
				t.Errorf("dataset depends on %s", dep)
			}
		}
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "scan")
	build := exec.Command("go", "build", "-o", bin, "./examples/scan-go")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	out, err := exec.Command("go", "tool", "nm", bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	syms := string(out)
	if !strings.Contains(syms, module+"dataset.") {
		t.Fatal("the symbol table shows nothing of package dataset: this test would see nothing")
	}
	for _, bad := range []string{"google.golang.org/grpc.(*Server).Serve", "google.golang.org/grpc.NewServer"} {
		if strings.Contains(syms, " "+bad+"\n") {
			t.Errorf("the binary holds %s", bad)
		}
	}
}
