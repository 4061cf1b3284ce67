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
// that makes a gRPC server or client. (gRPC itself is there: gocloud.dev's error codes and arrow-go's pqarrow import it. Its tracing
// uses html/template, for which the linker keeps every exported method, those of its server too; without a constructor they are never run.)
func TestBinaryHasNoCloud(t *testing.T) {
	links(t, "", "google.golang.org/grpc.NewServer", "google.golang.org/grpc.NewClient", "google.golang.org/grpc.Dial")
}

// Built without that tracing, the program has no code that serves gRPC, as README.md says. With PENSTOCK_SOAK only: it
// builds much of what there is again.
func TestBinaryHasNoGRPC(t *testing.T) {
	if os.Getenv("PENSTOCK_SOAK") == "" {
		t.Skip("with PENSTOCK_SOAK=1")
	}
	links(t, "grpcnotrace", "google.golang.org/grpc.NewServer", "google.golang.org/grpc.NewClient", "google.golang.org/grpc.(*Server).Serve",
		"google.golang.org/grpc/internal/transport.(*http2Server)", "html/template.", "golang.org/x/net/trace.")
}

// links fails the test for code in an example built with these tags whose name begins with one of bad or that of a cloud SDK.
func links(t *testing.T, tags string, bad ...string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "scan-go")
	build := exec.Command("go", "build", "-tags", tags, "-o", bin, "./examples/scan-go")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bad = append(bad, "github.com/aws/", "cloud.google.com/", "github.com/Azure/", "gocloud.dev/blob/s3blob", "gocloud.dev/blob/gcsblob", "gocloud.dev/blob/azureblob")
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
		for _, b := range bad {
			if strings.HasPrefix(name, b) && !strings.HasPrefix(name, "github.com/aws/aws-sdk-go-v2/service/s3/types.") {
				t.Errorf("scan-go links %s", name)
			}
		}
	}
	if seen < 10_000 || ours < 1000 {
		t.Fatalf("only %d symbols seen, %d of this module", seen, ours)
	}
}
