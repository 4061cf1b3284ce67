package trainer

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// tempFolder is a folder of this process, mode 0700, which is removed by remove. What a killed process left is removed by the next one: as long as a process lives
// it holds the lock of its folder.
type tempFolder struct {
	path string
	lock *os.File
}

const (
	folderPrefix = "penstock-"
	lockName     = "lock"
	unlocked     = time.Minute // a folder without a lock may be one that is being made
)

// socketBase is where sockets lie: their addresses are short.
func socketBase() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && len(dir) < 40 {
		if st, err := os.Stat(dir); err == nil && st.IsDir() && unix.Access(dir, unix.W_OK) == nil {
			return dir
		}
	}
	if dir := os.TempDir(); len(dir) < 50 {
		return dir
	}
	return "/tmp"
}

func newTempFolder(base string) (*tempFolder, error) {
	sweepFolders(base)
	for {
		dir, err := os.MkdirTemp(base, folderPrefix+strconv.Itoa(os.Getuid())+"-")
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{File: base})
		}
		f, err := lockFolder(&dir)
		if err != nil {
			os.RemoveAll(dir)
			return nil, fault.Wrap(err, fault.Place{File: dir})
		}
		if f != nil {
			return &tempFolder{path: dir, lock: f}, nil
		}
	}
}

// lockFolder locks a new folder, and makes its path absolute. It is nil where another process took the folder for one that was left, before its lock file was made or locked.
func lockFolder(dir *string) (*os.File, error) {
	abs, err := filepath.Abs(*dir)
	if err != nil {
		return nil, err
	}
	*dir = abs
	f, err := os.OpenFile(filepath.Join(abs, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		if os.IsNotExist(err) {
			err = nil
		}
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		var is, there os.FileInfo
		if is, err = f.Stat(); err == nil {
			if there, err = os.Stat(f.Name()); err == nil && os.SameFile(is, there) {
				return f, nil
			}
		}
	}
	f.Close()
	if err == unix.EWOULDBLOCK || os.IsNotExist(err) {
		err = nil
	}
	return nil, err
}

func (f *tempFolder) remove() error {
	err := os.RemoveAll(f.path)
	f.lock.Close()
	return err
}

// downloads is where checkpoints are downloaded to. A user who has no folder for caches (no HOME) gets one in the temporary folder that is closed to
// others: what lies there is loaded by programs of this user.
func downloads() (string, error) {
	if base, err := os.UserCacheDir(); err == nil {
		return filepath.Join(base, "penstock", "checkpoints"), nil
	}
	dir := filepath.Join(os.TempDir(), folderPrefix+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return "", fault.Wrap(err, fault.Place{File: dir})
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", fault.Wrap(err, fault.Place{File: dir})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() || st.Mode&0o077 != 0 {
		return "", fault.New(fault.Denied, "%s is not a folder of this user that is closed to others (mode 0700), as downloads of checkpoints need: remove it, or set HOME or XDG_CACHE_HOME", dir)
	}
	return filepath.Join(dir, "checkpoints"), nil
}

// sweepFolders removes what killed processes of this user left in base. What cannot be removed is left to the next one.
func sweepFolders(base string) {
	all, _ := filepath.Glob(filepath.Join(base, folderPrefix+strconv.Itoa(os.Getuid())+"-*")) // the pattern is right
	for _, dir := range all {
		st, err := os.Lstat(dir)
		if err != nil || !st.IsDir() || strings.Contains(filepath.Base(dir), "*") {
			continue
		}
		if is, ok := st.Sys().(*syscall.Stat_t); !ok || int(is.Uid) != os.Getuid() {
			continue // a lock of another user may be a link to a device
		}
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
		if err != nil {
			if os.IsNotExist(err) && time.Since(st.ModTime()) > unlocked {
				_ = os.RemoveAll(dir)
			}
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		f.Close()
	}
}

// freePort is a TCP port of host, an address of this machine, that nobody listens on. It is none of those that the system gives to outgoing connections, so that it is free a moment later as well.
func freePort(host string) (int, error) {
	low := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(b)); len(f) == 2 {
			if n, err := strconv.Atoi(f[0]); err == nil {
				low = n
			}
		}
	}
	from, n := 20000, low-20000
	if n < 1000 {
		from, n = 10000, max(low-10000, 1)
	}
	for range 200 {
		port := from + rand.IntN(n)
		if canListen(host, port) {
			return port, nil
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, fault.New(fault.Exhausted, "no free port for MASTER_PORT: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// canListen tries all addresses, as frameworks do.
func canListen(host string, port int) bool {
	for _, addr := range []string{"127.0.0.1", host, ""} {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
