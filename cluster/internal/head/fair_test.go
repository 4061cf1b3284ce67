package head

import (
	"fmt"
	"strings"
	"testing"
)

// Who fills a queue pushes out what is his own, and of those who have as much the oldest goes.
func TestFairQueue(t *testing.T) {
	var q fair[string]
	add := func(owner string, n int) {
		for i := range n {
			q.add(owner, fmt.Sprint(owner, i))
		}
	}
	add("a", 2)
	add("b", 5)
	add("c", 2)
	var went []string
	for q.n > 0 {
		went = append(went, q.first())
		q.drop()
	}
	if got := strings.Join(went, " "); got != "b0 b1 b2 a0 b3 c0 a1 b4 c1" {
		t.Error(got)
	}
	if len(q.of) != 0 || len(q.most) != 0 {
		t.Error("something is left")
	}
}
