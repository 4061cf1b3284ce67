package trainer

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main function of workers and controllers that tests start: TRAINER_TEST says which.
func TestMain(m *testing.M) {
	if name := os.Getenv("TRAINER_TEST"); name != "" {
		if err := programs[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// programs that tests start.
var programs = map[string]func() error{}
