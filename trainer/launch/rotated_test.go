//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
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

// In a folder where others may write, no link leads a log elsewhere, and nothing waits for who reads
// a pipe: what is outside stays as it is.
func TestLogsOfOthers(t *testing.T) {
	for what, plant := range map[string]func(run, home string) error{
		"a link for the folder": func(run, home string) error { return os.Symlink(home, filepath.Join(run, "logs")) },
		"a link for an attempt's": func(run, home string) error {
			return errors.Join(os.Mkdir(filepath.Join(run, "logs"), 0o700), os.Symlink(home, filepath.Join(run, "logs", "attempt-1")))
		},
		"a link for the file": func(run, home string) error {
			dir := filepath.Join(run, "logs", "attempt-1")
			return errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(filepath.Join(home, "rank-0.log"), filepath.Join(dir, "rank-0.log")))
		},
		"a link for the oldest": func(run, home string) error {
			dir := filepath.Join(run, "logs", "attempt-1")
			return errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(filepath.Join(home, "rank-0.log"), filepath.Join(dir, "rank-0.log.2")))
		},
		"a pipe": func(run, home string) error {
			dir := filepath.Join(run, "logs", "attempt-1")
			return errors.Join(os.MkdirAll(dir, 0o700), syscall.Mkfifo(filepath.Join(dir, "rank-0.log"), 0o600))
		},
		"a pipe for the folder": func(run, home string) error { return syscall.Mkfifo(filepath.Join(run, "logs"), 0o600) },
		"a pipe for the run's":  func(run, home string) error { return errors.Join(os.Remove(run), syscall.Mkfifo(run, 0o600)) },
	} {
		top := t.TempDir()
		run, home := filepath.Join(top, "run"), filepath.Join(top, "home")
		if err := errors.Join(os.Mkdir(run, 0o700), os.Mkdir(home, 0o700), os.WriteFile(filepath.Join(home, "rank-0.log"), []byte("years of work"), 0o600), plant(run, home)); err != nil {
			t.Fatal(err)
		}
		p := Processes(Options{Logs: filepath.Join(run, "logs"), Within: run, Rotate: 100}).(*processes)
		f, err := p.openLog(filepath.Join("attempt-1", "rank-0.log"))
		if err == nil {
			for range 40 {
				err = errors.Join(err, f.write([]byte("line ..... 20 bytes\n")))
			}
			err = errors.Join(err, f.close())
		}
		if (err == nil) != (what == "a link for the oldest") {
			t.Errorf("%s: %v", what, err)
		}
		all, rerr := os.ReadDir(home)
		if b, err := os.ReadFile(filepath.Join(home, "rank-0.log")); err != nil || string(b) != "years of work" || rerr != nil || len(all) != 1 {
			t.Errorf("%s: there is now %v with %q (%v, %v)", what, all, b, err, rerr)
		}
	}
}
