package oom

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory.events")
	set := func(n string) {
		if err := os.WriteFile(path, []byte("low 0\noom 9\noom_kill "+n+"\noom_group_kill 0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		set("3")
		o := &count{path: path, claimed: 3, seen: 3}
		want := func(memory bool) {
			t.Helper()
			if got, detail := o.killed(); got != memory || detail == "" {
				t.Errorf("%v (%s), want %v", got, detail, memory)
			}
		}
		want(false)
		set("5")
		o.look()
		want(true)
		want(true)
		want(false) // each kill is one process's
		set("6")
		o.look()
		time.Sleep(claimFor + time.Second) // of the bubble
		o.look()
		want(false) // it was nobody's
	})
	if Look(); shared().path == "" {
		t.Error("nothing is looked at")
	}
	if o := newCount(paths()); o.path == "" {
		t.Error("this machine does not count")
	}
	o := &count{path: path + ".none"}
	if memory, detail := o.killed(); memory || detail != "perhaps by the kernel for memory" {
		t.Error(memory, detail)
	}
}
