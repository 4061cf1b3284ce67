package rpc

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
	"golang.org/x/sys/unix"
)

// Another user who gets as far as the socket (somebody opened the folder) is refused; the own one, by the same way, is not.
func TestOtherUsersAtTheSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		memtest.Skip(t, "only root can be another user")
	}
	h := start(t)
	for path, mode := range map[string]os.FileMode{filepath.Dir(h.sock): 0o755, h.sock: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = 65534
	for _, uid := range []int{0, nobody} {
		answered := make(chan int)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends, and its user with it
			n := -1
			defer func() { answered <- n }()
			// Of this thread only, unlike syscall.Setresuid.
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				t.Error(e)
				return
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: h.sock}); err != nil {
				t.Error(err)
				return
			}
			if n, err = unix.Read(fd, make([]byte, 64)); err != nil {
				n = 0
			}
		}()
		if n := <-answered; (n > 0) != (uid == 0) {
			t.Errorf("user %d was sent %d bytes", uid, n)
		}
	}
	if !strings.Contains(h.log.String(), "user 65534 may not use the socket of user 0") {
		t.Errorf("the log does not say who was refused: %s", h.log)
	}
}
