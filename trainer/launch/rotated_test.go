//go:build linux

package launch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// numbered is a line of a log in which each says where it is.
func numbered(at int64) []byte { return fmt.Appendf(nil, "%015d\n", at) }

func init() {
	children["rotate"] = func() { // appends numbered lines to LAUNCH_LOG until it is killed
		path := os.Getenv("LAUNCH_LOG")
		_, at, err := numberedIn(path)
		if err != nil {
			panic(err)
		}
		f, err := openLog(path, 100)
		if err != nil {
			panic(err)
		}
		for ; ; at += 16 {
			if err := f.write(numbered(at)); err != nil {
				panic(err)
			}
		}
	}
}

// numberedIn says where what is kept of a log of numbered lines begins and ends, by Rotated, or that it is another.
func numberedIn(path string) (begin, end int64, err error) {
	if begin, err = Rotated(path); err != nil {
		return 0, 0, err
	}
	end = begin
	for _, name := range []string{".2", ".1", ""} {
		b, err := os.ReadFile(path + name)
		if err != nil && !os.IsNotExist(err) {
			return 0, 0, err
		}
		for line := range bytes.Lines(b) {
			if want := numbered(end); !bytes.Equal(line, want) {
				return 0, 0, fmt.Errorf("at %d, in %q: %q", end, name, line)
			}
			end += int64(len(line))
		}
	}
	return begin, end, nil
}

// How much was printed before what is kept of a log is known after each write, also by who appends to it again.
func TestRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x[1].log")
	if n, err := Rotated(filepath.Join(path, "none")); n != 0 || err != nil {
		t.Errorf("no folder: %d, %v", n, err)
	}
	at := int64(0)
	for range 3 {
		f, err := openLog(path, 100) // six lines
		if err != nil {
			t.Fatal(err)
		}
		for range 41 {
			if err := f.write(numbered(at)); err != nil {
				t.Fatal(err)
			}
			at += 16
			if begin, end, err := numberedIn(path); err != nil || end != at || begin < at-3*96 || at > 3*96 && begin == 0 {
				t.Fatalf("of %d bytes those from %d to %d are kept: %v", at, begin, end, err)
			}
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(files) != 4 {
		t.Errorf("%d files: %q, %v", len(files), files, err)
	}
}

// Wherever a process is killed in the midst of a rotation, what is kept of its log is where Rotated says, to the next one too.
func TestRotatedWhenKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	gone := int64(0)
	for round := range 30 {
		w := again(t, 0, "rotate", "LAUNCH_LOG="+path)
		var said bytes.Buffer
		c := exec.Command(w.Argv[0])
		c.Env, c.Stderr = w.Env, &said
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		was := gone
		for end := time.Now().Add(10 * time.Second); gone < was+5000 && time.Now().Before(end); gone, _ = Rotated(path) {
			time.Sleep(time.Duration(round) * 37 * time.Microsecond)
		}
		_ = c.Process.Kill()
		_ = c.Wait()
		begin, end, err := numberedIn(path)
		if err != nil || begin < was+5000 || said.Len() > 0 {
			t.Fatalf("round %d: from %d to %d: %v %s", round, begin, end, err, &said)
		}
		gone = begin
	}
	// The states that a kill leaves, one after another.
	for step := range 4 {
		path := filepath.Join(t.TempDir(), strconv.Itoa(step))
		for i, name := range []string{".2", ".1", ""} {
			var b []byte
			for k := range 2 {
				b = append(b, numbered(int64(32*i+16*k))...)
			}
			if err := os.WriteFile(path+name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		moves := [][2]string{{".2", ".gone.32"}, {".1", ".2"}, {"", ".1"}}
		for _, m := range moves[:step] {
			if err := os.Rename(path+m[0], path+m[1]); err != nil {
				t.Fatal(err)
			}
		}
		begin, end, err := numberedIn(path)
		if want := int64(min(step, 1) * 32); err != nil || begin != want || end != 96 {
			t.Errorf("after %d renames: from %d to %d: %v", step, begin, end, err)
		}
	}
}
