package store

import (
	"os"
	"testing"

	"go.uber.org/goleak"
	_ "gocloud.dev/blob/s3blob"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	// Every file is synced: on a file system in memory that takes no time.
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() && os.Getenv("TMPDIR") == "" {
		os.Setenv("TMPDIR", "/dev/shm")
	}
	goleak.VerifyTestMain(m)
}
