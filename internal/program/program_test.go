package program

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const roleEnv = "PROGRAM_TEST"

// A child says its name; "late": when it is told to, by which time its file is another one.
func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	switch role {
	case "late":
		os.Stdout.WriteString("ready\n")
		io.ReadAll(os.Stdin)
	case "stock":
		Stock("v1.2")
	}
	name, err := Name()
	if again, _ := Name(); err != nil || again != name {
		os.Exit(1)
	}
	os.Stdout.WriteString(name)
}

func start(t *testing.T, file, role string) (say io.WriteCloser, heard io.Reader, end func() string) {
	c := exec.Command(file)
	c.Env = append(os.Environ(), roleEnv+"="+role)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return in, out, func() string {
		t.Helper()
		b, _ := io.ReadAll(out)
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

// A program is known by its content, also when it has another name, or its file has become another one while it runs; the stock binary is by its release.
func TestName(t *testing.T) {
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	name := func(path, role string) string {
		t.Helper()
		in, _, end := start(t, path, role)
		in.Close()
		return end()
	}
	own, err := Name()
	if err != nil || !strings.HasPrefix(own, "xxh3:") || len(own) != len("xxh3:")+32 {
		t.Fatalf("%q, %v", own, err)
	}
	same, other := file("same", binary), file("other", append(binary, 0))
	if n := name(same, "name"); n != own {
		t.Errorf("a copy is %q, want %q", n, own)
	}
	different := name(other, "name")
	if different == own || !strings.HasPrefix(different, "xxh3:") {
		t.Errorf("another program is %q", different)
	}
	if a, b := name(same, "stock"), name(other, "stock"); a != b || !strings.HasPrefix(a, "penstock v1.2 ") || !strings.Contains(a, runtime.Version()) {
		t.Errorf("the stock binaries of a release are %q and %q", a, b)
	}
	if runtime.GOOS != "linux" {
		return
	}
	in, heard, end := start(t, same, "late")
	if _, err := io.ReadFull(heard, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, same); err != nil { // as an update does it
		t.Fatal(err)
	}
	in.Close()
	if n := end(); n != own {
		t.Errorf("a program whose file was replaced is %q, want %q", n, own)
	}
}
