package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stepping writes a file for each so many bytes that it was given.
type stepping struct {
	bytes.Buffer
	dir         string
	each, steps int
}

func (s *stepping) Write(b []byte) (int, error) {
	n, err := s.Buffer.Write(b)
	for ; err == nil && s.Len() >= s.each*(s.steps+1); s.steps++ {
		err = os.WriteFile(filepath.Join(s.dir, fmt.Sprint(s.steps)), nil, 0o600)
	}
	return n, err
}

// Who follows a log gets all of it, to its end, however much of it its node has given up; who comes late is told what is missing.
func TestLongLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	token, err := c.head.JoinToken(c.ctx())
	must(t, err)
	cfg := c.node("a", Resources{CPUs: 2, Memory: 1 << 30})
	cfg.rotate = 64 << 10
	n, err := Join(c.ctx(), c.addr, token, cfg)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	const steps, each = 20, 50_000
	w := &stepping{dir: t.TempDir(), each: each}
	// It prints a step when the one before has come: it is not faster than who follows.
	id := c.submit(sh(fmt.Sprintf(`i=0; while [ $i -lt %d ]; do head -c %d /dev/zero | tr '\0' x | fold -w 99; echo; while [ ! -e %s/$i ]; do sleep 0.02; done; i=$((i+1)); done; echo THE END`, steps, each, w.dir)))
	if err := c.client.Logs(c.ctx(), id, true, 0, w); err != nil {
		t.Fatalf("after %d bytes: %v", w.Len(), err)
	}
	c.finished(id, 1)
	step := strings.Repeat(strings.Repeat("x", 99)+"\n", each/99) + strings.Repeat("x", each%99) + "\n"
	all := strings.Repeat(step, steps) + "THE END\n"
	if got := w.String(); got != all {
		t.Errorf("%d bytes, not %d: ... %.50q", len(got), len(all), got[max(len(got)-50, 0):])
	}
	var lost int
	line, kept, _ := strings.Cut(c.logs(id, false), "\n")
	_, err = fmt.Sscanf(line, "penstock: %d bytes are missing here: ", &lost)
	if err != nil || lost < len(all)-3*64<<10 || lost > len(all)-64<<10 || kept != all[lost:] {
		t.Errorf("%q, then %d of %d bytes", line, len(kept), len(all))
	}
	var tail bytes.Buffer
	must(t, c.client.Logs(c.ctx(), id, false, 20, &tail))
	if got := tail.String(); got != all[len(all)-20:] {
		t.Errorf("its end: %q", got)
	}
}
