package agent

import "testing"

// The log of a process has as much as its quota says, and never more than that of any.
func TestRotation(t *testing.T) {
	for _, x := range []struct{ file, most, want int64 }{
		{0, 0, 0}, {1000, 0, 1000}, {0, 30 << 20, 10 << 20}, {0, 1 << 40, 64 << 20}, {8 << 20, 1 << 40, 8 << 20}, {0, 1, 4 << 10}, {1 << 10, 1, 1 << 10},
	} {
		if got := rotation(x.file, x.most); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
}
