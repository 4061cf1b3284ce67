// Package importtest enforces the import directions of ARCHITECTURE.md.
package importtest

import (
	"os"
	"os/exec"
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
	{"internal/fault", "internal/term"},
	{"internal/memtest", ""},
	{"internal/faulttest", "internal/fault"},
	{"internal/doctest", ""},
	{"internal/datatest", "internal/memtest"},
	{"internal/typename", "internal/fault"},
	{"internal/textvalue", ""},
	{"internal/mask", ""},
	{"internal/near", ""},
	{"internal/term", "internal/mask internal/cell"},
	{"internal/trust", "internal/fault"},
	{"internal/units", ""},
	{"internal/cell", ""},
	{"internal/jsontext", ""},
	{"internal/cut", "internal/fault internal/near io/driver"},
	{"internal/strict", "internal/fault"},
	{"internal/ipcmeta", "internal/fault"},
	{"internal/mem", "internal/fault"},
	{"internal/ipcrecord", "internal/fault internal/ipcmeta internal/mem"},
	{"internal/narrow", "internal/fault"},
	{"internal/gather", "internal/fault internal/mem"},
	{"internal/badvalue", "internal/fault internal/cut"},
	{"internal/sift", ""},
	{"internal/procs", ""},
	{"internal/freeport", ""},
	{"internal/whereabouts", ""},
	{"internal/program", "internal/fault"},
	{"internal/testserver", "internal/fault"},
	{"internal/killtest", "internal/testserver internal/hosttest"},
	{"internal/hosttest", "internal/memtest"},
	{"internal/etcdtest", ""},
	{"internal/spec", "internal/fault internal/mask internal/trust internal/near internal/typename dataset io/... ops ops/expr exec exec/sink shard"},
	{"io/driver", "internal/fault"},
	{"io/blobcache", "internal/fault"},
	{"io/blobio", "internal/fault io/blobcache"},
	{"io/fileset", "internal/fault internal/cut internal/textvalue internal/typename internal/near internal/gather internal/mem io/driver io/blobio"},
	{"io/drivertest", "internal/fault internal/memtest internal/cut internal/mem io/driver"},
	{"io/parquetio/internal/kernel", "internal/sift"},
	{"io/parquetio", "internal/fault internal/badvalue internal/typename internal/cut internal/gather internal/sift internal/strict internal/mem io/driver io/blobio io/fileset io/parquetio/internal/kernel"},
	{"io/...", "internal/fault internal/badvalue internal/near internal/textvalue internal/typename internal/cut internal/gather internal/strict internal/mem io/driver io/blobio io/fileset"},
	{"ops/expr", "internal/fault internal/gather internal/mask internal/near internal/textvalue internal/typename internal/sift io/driver"},
	{"ops", "internal/fault internal/gather internal/near internal/cell internal/typename internal/ipcmeta io/driver ops/expr"},
	{"exec", "internal/fault internal/mem io/driver"},
	{"exec/internal/sched", "internal/fault"},
	{"exec/operators", "internal/fault internal/gather internal/procs internal/mem internal/ipcmeta exec ops ops/expr"},
	{"exec/plan", "internal/fault internal/cell io/driver ops ops/expr exec exec/operators"},
	{"exec/local", "internal/fault internal/gather internal/procs internal/mem internal/whereabouts io/driver exec exec/internal/sched"},
	{"exec/remote", "internal/fault internal/typename internal/procs internal/program internal/ipcrecord internal/narrow exec exec/local cluster/gang"},
	{"exec/exectest", "internal/fault internal/mem io/driver exec"},
	{"exec/sink", "internal/fault internal/trust internal/jsontext internal/near internal/typename internal/units internal/gather io/driver io/blobio io/parquetio exec"},
	{"exec/prom", "exec"},
	{"shard/internal/order", "internal/fault"},
	{"shard/internal/order/ordertest", "shard/internal/order"},
	{"shard/internal/rows", "internal/gather"},
	{"shard/internal/...", "internal/fault internal/typename internal/gather internal/mem exec io/driver shard/internal/order shard/internal/pack shard/internal/rows"},
	{"shard/exchangetest", "internal/fault internal/mem shard dataset"},
	{"shard/exchange", "internal/fault internal/ipcrecord shard cluster/gang"},
	{"shard/feed", "internal/fault internal/mem internal/ipcmeta shard"},
	{"shard", "internal/fault internal/units internal/cell internal/near internal/typename internal/gather io/driver exec shard/internal/..."},
	{"trainer/collective", "internal/fault"},
	{"trainer/device", "internal/fault"},
	{"trainer/launch", "internal/fault internal/term internal/units trainer/internal/wire trainer/internal/oom"},
	{"trainer/store", "internal/fault internal/near internal/trust io/blobio trainer/internal/wire"},
	{"dataset", "internal/fault internal/gather internal/jsontext internal/near internal/procs internal/cell internal/typename io/... ops ops/expr exec exec/plan exec/local exec/sink shard"},
	{"trainer/internal/wire", "internal/fault"},
	{"trainer/internal/oom", ""},
	{"trainer/internal/group", "internal/fault"},
	{"trainer", "internal/fault internal/procs internal/program internal/term internal/units internal/near cluster/gang dataset shard shard/feed trainer/launch trainer/store trainer/device trainer/collective trainer/internal/..."},
	{"trainer/internal/feeder", "internal/fault cluster/gang dataset shard shard/exchange shard/feed trainer/internal/oom trainer/internal/wire"},
	{"cluster/internal/pb", ""},
	{"cluster/internal/records", "internal/fault"},
	{"cluster/internal/pki", "internal/fault"},
	{"cluster/internal/packs", "internal/fault"},
	{"cluster/internal/place", "internal/fault internal/units"},
	{"cluster/internal/jobs", "internal/units cluster/internal/place"},
	{"cluster/internal/core", "cluster/internal/place cluster/internal/jobs"},
	{"cluster/internal/rpc", "internal/fault cluster/internal/pb cluster/internal/pki"},
	{"cluster/gang", "internal/fault cluster/internal/pki"},
	{"cluster/gang/gangtest", "cluster/gang cluster/internal/pki"},
	{"cluster/internal/agent", "internal/fault internal/trust internal/units internal/whereabouts trainer/launch trainer/device cluster/gang cluster/internal/pb cluster/internal/pki cluster/internal/rpc cluster/internal/packs internal/mask"},
	{"cluster/internal/head", "internal/fault internal/mask internal/near internal/term cluster/internal/..."},
	{"cluster", "internal/fault internal/near internal/term exec trainer/device cluster/internal/..."},
	{".", "internal/fault internal/term cluster/gang dataset exec exec/remote shard trainer trainer/store"},
	{"cmd/...", "..."},
	{"examples/...", "..."},
	{"bench/...", "..."},
	{"python/...", "..."},
}

// inModule is a package as the table has it; "." is the one at the root.
func inModule(pkg string) (name string, ours bool) {
	if pkg+"/" == module {
		return ".", true
	}
	return strings.CutPrefix(pkg, module)
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
		pkg, _ := inModule(f[0])
		if pkg == "internal/importtest" || strings.HasPrefix(pkg, "internal/deps") {
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
			imp, ours := inModule(imp)
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

// A program that imports the library and no bucket driver links no cloud SDK (the
// one package of AWS that is there holds types only: the ETag in a listing has
// no other way out of gocloud.dev), and has no gRPC server that anybody makes. Package grpc itself is linked: gocloud.dev takes its error
// codes (through gax-go), pqarrow its schemas (through arrow/flight). Nothing makes a server of
// it: TestBinaryHasNoCloud looks into the linked program.
func TestLinksNoCloud(t *testing.T) {
	typesOnly := map[string]bool{"github.com/aws/aws-sdk-go-v2/service/s3/types": true, "github.com/aws/smithy-go": true,
		"github.com/aws/smithy-go/document": true, "github.com/aws/smithy-go/internal/singleflight": true}
	grpcUsers := []string{"google.golang.org/grpc", "github.com/googleapis/gax-go/v2", "github.com/apache/arrow-go/v18/arrow/flight"}
	seen := 0
	for _, line := range goList(t, "-deps", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./dataset", ".") {
		f := strings.Fields(line)
		seen++
		for _, bad := range []string{"github.com/aws/", "cloud.google.com/", "github.com/Azure/", "gocloud.dev/blob/s3blob",
			"gocloud.dev/blob/gcsblob", "gocloud.dev/blob/azureblob", "gocloud.dev/aws", "gocloud.dev/gcp", "go.etcd.io/"} {
			if strings.HasPrefix(f[0], bad) && !typesOnly[f[0]] {
				t.Errorf("dataset, or package penstock, depends on %s", f[0])
			}
		}
		for _, imp := range f[1:] {
			if imp != "google.golang.org/grpc" {
				continue
			}
			ok := false
			for _, u := range grpcUsers {
				ok = ok || f[0] == u || strings.HasPrefix(f[0], u+"/")
			}
			if !ok {
				t.Errorf("%s imports gRPC", f[0])
			}
		}
	}
	if seen < 100 {
		t.Fatalf("only %d packages seen", seen)
	}
}
