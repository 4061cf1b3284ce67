package cluster

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(roleEnv); text != "" {
		if err := play(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
