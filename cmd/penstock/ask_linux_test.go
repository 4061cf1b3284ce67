package main

import (
	"os"
	"strings"
	"testing"
)

// On a terminal a person is asked before the record of somebody else runs anything, and shown what
// would.
func TestForeignRecordAsks(t *testing.T) {
	dir := t.TempDir()
	run := foreignable(t, dir)
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		answer string
		runs   bool
	}{{"\n", false}, {"no\n", false}, {"yes\n", true}} {
		ptmx, tty := terminal(t)
		p := command(t, "resume", run)
		p.Stdin, p.Stderr = tty, tty
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		var text strings.Builder
		buf := make([]byte, 4096)
		for asked := false; ; {
			k, err := ptmx.Read(buf) // an error when the last who had the terminal open is gone
			text.Write(buf[:k])
			if err != nil {
				break
			}
			if !asked && strings.Contains(text.String(), "[y/N] ") {
				asked = true
				if !strings.Contains(text.String(), `sh -c 'touch "$OUT"; exit 3'`) || !strings.Contains(text.String(), "every user may write") {
					t.Errorf("it asks without saying what runs, and why it asks: %s", text.String())
				}
				if _, err := ptmx.WriteString(c.answer); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = p.Wait()
		_, err := os.Stat(dir + "/ran")
		if ran := err == nil; ran != c.runs || !strings.Contains(text.String(), "[y/N] ") {
			t.Errorf("%q: ran %v: %s", c.answer, ran, text.String())
		}
		_ = os.Remove(dir + "/ran")
	}
}
