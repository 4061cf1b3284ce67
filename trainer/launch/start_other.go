//go:build !unix

package launch

import (
	"context"

	"github.com/penstock-data/penstock/internal/fault"
)

func (p *processes) Launch(context.Context, []Worker) (Group, error) {
	return nil, fault.New(fault.Unsupported, "workers that are processes need Linux or another Unix; run them as goroutines")
}

// Check: see start_unix.go.
func Check(Worker) error { return nil }
