package importtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What the linker puts into a program that uses the library and no bucket driver: no cloud SDK, and nothing
// that makes a gRPC server or client. (gRPC itself is there: gocloud.dev's error codes and arrow-go's pqarrow import it, and
// its own start-up code keeps the methods of its types; without a constructor they are never run.)
func TestBinaryHasNoCloud(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "scan-go")
	build := exec.Command("go", "build", "-o", bin, "./examples/scan-go")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nm := exec.Command("go", "tool", "nm", bin)
	nm.Stderr = os.Stderr
	out, err := nm.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen, ours := 0, 0
	for line := range bytes.Lines(out) {
		f := strings.Fields(string(line))
		if len(f) < 3 {
			continue
		}
		seen++
		kind, name := f[len(f)-2], f[len(f)-1]
		if strings.HasPrefix(name, module) {
			ours++
		}
		if kind != "T" && kind != "t" { // code; tables of types name what nobody calls
			continue
		}
		for _, bad := range []string{"google.golang.org/grpc.NewServer", "google.golang.org/grpc.NewClient", "google.golang.org/grpc.Dial",
			"github.com/aws/", "cloud.google.com/", "github.com/Azure/", "gocloud.dev/blob/s3blob", "gocloud.dev/blob/gcsblob", "gocloud.dev/blob/azureblob"} {
			if strings.HasPrefix(name, bad) && !strings.HasPrefix(name, "github.com/aws/aws-sdk-go-v2/service/s3/types.") {
				t.Errorf("scan-go links %s", name)
			}
		}
	}
	if seen < 10_000 || ours < 1000 {
		t.Fatalf("only %d symbols seen, %d of this module", seen, ours)
	}
}
