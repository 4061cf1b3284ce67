package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// childEnv says what this program does as a child of its own test: a childConfig.
const childEnv = "PENSTOCK_STORE_CHILD"

type childConfig struct {
	Mode    string
	Storage string
	Dir     string
	Seed    uint64
	Step    int
}

func child() {
	var c childConfig
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &c); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	switch c.Mode {
	case "denied":
		deniedChild(c.Storage)
	case "commit":
		commitChild(c)
	case "step":
		stepChild(c)
	case "resume":
		resumeChild(c)
	}
	os.Exit(0)
}

func command(t testing.TB, c childConfig) *exec.Cmd {
	t.Helper()
	cfg, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(cfg), "GOMAXPROCS=2")
	return cmd
}

// runChild runs a child to its end and returns what it says.
func runChild(t testing.TB, c childConfig, as *syscall.Credential) string {
	t.Helper()
	cmd := command(t, c)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out.Bytes(), errs.Bytes())
	}
	return out.String()
}
