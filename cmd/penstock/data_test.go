//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/shard/feed"
)

// serveData starts penstock data, and waits until it listens; end closes its input, with which it ends.
func serveData(t *testing.T, args ...string) (end func()) {
	t.Helper()
	c := command(t, args...)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "{\"ready\": true}\n" {
		t.Errorf("%q, %v", line, err)
	}
	return func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// Data says when it listens, or why it does not, and ends with its input.
func TestData(t *testing.T) {
	dir := t.TempDir()
	spec := trainSpec(t, dir, "")
	sock, err := os.MkdirTemp("", "data")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(sock)
	state := filepath.Join(dir, "state.json")
	want := lines(ok(t, "batches", spec, "--ranks", "2", "--steps", "3", "--state-out", state))
	next := lines(ok(t, "batches", spec, "--ranks", "2", "--steps", "2", "--from", state))
	for from, lines := range map[string][]string{"": want, state: next} {
		args := []string{"data", spec, "--ranks", "2", "--rank", "1", "--socket", sock + "/s"}
		if from != "" {
			args = append(args, "--state", from)
		}
		end := serveData(t, args...)
		for _, got := range feedLines(t, sock+"/s", 1, len(lines)/2) {
			if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, got) }) {
				t.Errorf("no %s in %v", got, lines)
			}
		}
		end()
		if left, _ := os.ReadDir(sock); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	// The number of epochs is the job's, also of one that goes on.
	over := filepath.Join(dir, "over.json")
	ok(t, "batches", spec, "--ranks", "1", "--epoch", "0", "--state-out", over)
	end := serveData(t, "data", spec, "--ranks", "1", "--socket", sock+"/s", "--state", over, "--set", "shards.epochs=1")
	f, err := feed.Dial(t.Context(), sock+"/s", 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Next(t.Context()); err != io.EOF {
		t.Errorf("a job of one epoch that is over goes on: %v", err)
	}
	f.Close()
	end()
	r := penstock(t, "data", spec, "--socket", sock+"/s", "--set", "steps.1.filter=idd > 1")
	var said struct{ Error struct{ Code, Text string } }
	if err := json.Unmarshal([]byte(r.out), &said); err != nil || said.Error.Code != "invalid" || !strings.Contains(said.Error.Text, "idd") || r.code != exitUsage {
		t.Errorf("%+v, %v", r, err)
	}
}
