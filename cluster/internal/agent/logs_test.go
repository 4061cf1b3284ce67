package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/trainer/launch"
)

// counted is a log of lines of 16 bytes in which each says where it is.
func counted(from, to int64) []byte {
	var b []byte
	for at := from / 16 * 16; at < to; at += 16 {
		b = fmt.Appendf(b, "%015d\n", at)
	}
	return b[from%16:][:to-from]
}

// printer prints a counted log of a process in dir, a file of which has so many bytes.
func printer(t *testing.T, dir string, rotate int64) func(from, to int64) {
	t.Helper()
	l, err := launch.Processes(launch.Options{Logs: filepath.Join(dir, "attempt-1"), Rotate: rotate}).Log("process")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func(from, to int64) {
		if _, err := l.Write(counted(from, to)); err != nil {
			t.Error(err)
		}
	}
}

// Who follows a log reads each byte where it was printed, however often its files are renamed meanwhile; what is passed over is gone.
func TestReadAtRotates(t *testing.T) {
	dir := t.TempDir()
	const size = 4 << 20
	done := make(chan struct{})
	write := printer(t, dir, 4<<10)
	go func() {
		defer close(done)
		for at := int64(0); at < size; at += 1 << 10 {
			write(at, at+1<<10)
		}
	}()
	defer func() { <-done }()
	offset, read, gaps := int64(0), int64(0), 0
	for offset < size {
		data, at, err := readAt(dir, offset)
		if err != nil || at < offset && offset > 0 || !bytes.Equal(data, counted(at, at+int64(len(data)))) {
			t.Fatalf("from %d: %d bytes at %d, %v: %.50q", offset, len(data), at, err, data)
		}
		if at > offset {
			gaps++
		}
		read += int64(len(data))
		offset = at + int64(len(data))
	}
	<-done
	t.Logf("%d of %d bytes, with %d gaps", read, offset, gaps)
	if offset != size {
		t.Errorf("the end is at %d", offset)
	}
	if data, at, err := readAt(dir, -100); err != nil || at != size-100 || !bytes.Equal(data, counted(at, size)) {
		t.Errorf("the end: %d, %q, %v", at, data, err)
	}
	if _, at, err := readAt(dir, -size); err != nil || at < size-3*64<<10 || at == size { // what comes at once is not parted
		t.Errorf("all of the end: %d, %v", at, err)
	}
	if data, at, err := readAt(dir, size+1); err != nil || at != size || data != nil {
		t.Errorf("behind the end: %d, %q, %v", at, data, err)
	}
	for _, d := range []string{filepath.Join(dir, "none"), t.TempDir()} {
		if data, at, err := readAt(d, 5); err != nil || at != 0 || data != nil {
			t.Errorf("no log: %d, %q, %v", at, data, err)
		}
	}
}

// A reader whose place is not kept any more is told so with what comes behind the gap, and no other.
func TestReadLogGap(t *testing.T) {
	a := &agent{Config: Config{Dir: t.TempDir()}, ctx: t.Context(), session: true, more: make(chan struct{}, 1)}
	dir := filepath.Join(a.Dir, "logs", "j1-1-0", "attempt-1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{".gone.320": nil, ".2": counted(320, 480), ".1": counted(480, 640), "": counted(640, 800)} {
		if err := os.WriteFile(filepath.Join(dir, "process.log"+name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		offset, at, to int64
		gap            bool
	}{{0, 320, 480, true}, {319, 320, 480, true}, {320, 320, 480, false}, {500, 500, 640, false}, {-10, 790, 800, false}, {-790, 320, 480, false}, {800, 800, 800, false}} {
		a.queue = nil
		a.readLog(t.Context(), &pb.ReadLog{Process: "j1/1/0", Offset: x.offset})
		c := a.queue[0].GetLog()
		if c.GetOffset() != x.at || !bytes.Equal(c.GetData(), counted(x.at, x.to)) || (c.GetError() != "") != x.gap || c.GetEnd() != (x.at == x.to) {
			t.Errorf("from %d: %v", x.offset, c)
		}
	}
}

// What a session has asked is not answered in another one, which would be a lie there.
func TestAnswersOfASession(t *testing.T) {
	a := &agent{Config: Config{Dir: t.TempDir()}, ctx: t.Context(), session: true, more: make(chan struct{}, 1), procs: map[string]*process{"j1/1/0": {}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.readLog(ctx, &pb.ReadLog{Process: "j1/1/0", Follow: true, WaitMs: time.Hour.Milliseconds()})
	if len(a.queue) > 0 {
		t.Errorf("it says %v", a.queue)
	}
}
