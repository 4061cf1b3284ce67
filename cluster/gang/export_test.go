package gang

import (
	"testing"
	"time"
)

// AloneMost shortens how long Dial tries where nobody answers, for one test.
func AloneMost(t *testing.T, d time.Duration) {
	was := aloneMost
	aloneMost = d
	t.Cleanup(func() { aloneMost = was })
}
