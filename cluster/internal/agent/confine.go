package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/trust"
	"github.com/penstock-data/penstock/trainer/launch"
)

// Confinement says how jobs are kept from what is the agent's.
type Confinement struct {
	User    string // that runs them, which root can say only; "": the agent's
	Dir     string // of User: where their folders are, which it can reach; "": standardJobs
	Isolate string // with User, how far they are kept from the rest of the machine; "": isolateAuto
}

const (
	isolateAuto    = "auto"    // as far as the kernel allows it
	isolateRequire = "require" // all the way, or the node does not start
	isolateOff     = "off"     // they share /tmp and /proc with all
)

const (
	// ownJobs is where the folders of jobs are in the node's, where they are the agent's user.
	ownJobs = "run"
	// standardJobs is where those of another user are: the node's, by default, is below a home that
	// is closed to others.
	standardJobs = "/var/lib/penstock/jobs"
)

// Confined is how an agent confines the processes of jobs. The zero value is no user of their own,
// and their folders in the agent's; all get no new privileges.
type Confined struct {
	user *jobUser // nil: the agent's
	dir  string   // of jobs; "": ownJobs
	temp bool     // each has a /tmp for itself
	hide bool     // they see no processes of others
}

// Confine checks that jobs can be confined so, and makes their folder. node is the node's, binary
// the program that they start as "penstock". What auto leaves out is logged.
//
// Errors: Invalid: there is no such user, or it is root or the agent's. Denied: the agent may not
// start processes as it, or it cannot reach what it needs. Unsupported: the kernel does not allow
// what is required.
func Confine(c Confinement, node, binary string, log *slog.Logger) (Confined, error) {
	switch c.Isolate {
	case "":
		c.Isolate = isolateAuto
	case isolateAuto, isolateRequire, isolateOff:
	default:
		return Confined{}, fault.New(fault.Invalid, "jobs cannot be isolated %q: auto, require or off", c.Isolate)
	}
	node, err := realPath(node)
	if err != nil {
		return Confined{}, err
	}
	if c.User == "" {
		if c.Isolate == isolateRequire || c.Dir != "" {
			return Confined{}, fault.New(fault.Invalid, "jobs that are the agent's user cannot be kept from its folders and processes: give them a user of their own (--job-user)")
		}
		if os.Geteuid() == 0 {
			log.Warn("jobs run as root on this machine: give them a user of their own with --job-user")
		}
		return Confined{}, nil
	}
	var out Confined
	if out.user, err = lookUp(c.User); err != nil {
		return Confined{}, err
	}
	if out.dir, err = jobsIn(c.Dir, node, out.user); err != nil {
		return Confined{}, err
	}
	if err := out.user.reaches(binary); err != nil {
		return Confined{}, fault.New(fault.Denied, "jobs that run as %s cannot start this program: install it where all users may read it: %w", c.User, err)
	}
	if c.Isolate == isolateOff {
		return out, nil
	}
	for _, x := range []struct {
		set *bool
		try launch.Confine
	}{{&out.temp, launch.Confine{Temp: out.dir}}, {&out.hide, launch.Confine{HideProcesses: true}}} {
		err := x.try.Try()
		if *x.set = err == nil; err == nil {
			continue
		}
		if c.Isolate == isolateRequire {
			return Confined{}, fault.New(fault.Unsupported, "jobs cannot be isolated here (--isolate require): %w", err)
		}
		log.Warn("jobs are not isolated as far as they could be elsewhere: see docs/cluster.md", "err", err)
	}
	return out, nil
}

// jobsIn makes the folder of the jobs of a node: one of its own, below dir. Its names cannot be
// listed by others; what is in it says itself who may enter.
func jobsIn(dir, node string, user *jobUser) (string, error) {
	if dir == "" {
		dir = standardJobs
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(node))
	for _, d := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "node-"+hex.EncodeToString(sum[:6]))} {
		err := os.Mkdir(d, 0o711)
		if err == nil {
			err = os.Chmod(d, 0o711) // whatever the umask
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fault.New(fault.Denied, "the folder for jobs: %w; choose another one with --job-dir", err)
		}
		dir = d
	}
	if dir, err = realPath(dir); err != nil {
		return "", err
	}
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) { // whoever may rename one of them may put another in its place
		if fi, err := os.Stat(d); err == nil && fi.Mode()&fs.ModeSticky != 0 {
			continue // nobody renames what is another's there; whose it is was looked at
		}
		if err := trust.File(d); err != nil {
			return "", fault.New(fault.Denied, "the folder for jobs: %w; choose another one with --job-dir", err)
		}
	}
	if err := user.reaches(dir); err != nil {
		return "", fault.New(fault.Denied, "user %s cannot reach the folder for jobs: choose another one with --job-dir: %w", user.name, err)
	}
	return dir, nil
}

// jobs is the folder of those of jobs.
func (a *agent) jobs() string { return cmp.Or(a.Jobs.dir, filepath.Join(a.Dir, ownJobs)) }

// clear removes what jobs have left, of an agent that was killed; they may have had no user then.
func (a *agent) clear() error {
	err := os.RemoveAll(filepath.Join(a.Dir, ownJobs))
	in, e := os.ReadDir(a.jobs())
	if e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	for _, e := range in {
		err = errors.Join(err, os.RemoveAll(filepath.Join(a.jobs(), e.Name())))
	}
	return err
}

// makeFolder makes that of a process, which is closed to the user of jobs until it is given to it.
func (a *agent) makeFolder(id string) (string, error) {
	if err := os.MkdirAll(a.jobs(), 0o700); err != nil {
		return "", err
	}
	dir := filepath.Join(a.jobs(), fileName(id))
	return dir, os.Mkdir(dir, 0o700)
}

// give gives what is in the folder of a process to the user of jobs: all of it is there, and
// nothing runs yet.
func (c Confined) give(dir string) error {
	if c.user == nil {
		return nil
	}
	uid, gid := int(c.user.UID), int(c.user.GID)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
	if err == nil {
		err = os.Chown(dir, -1, gid)
	}
	if err == nil {
		err = os.Chmod(dir, 0o710)
	}
	return err
}

// launch says how a process is started whose folder is dir.
func (c Confined) launch(dir, temp, binary string) *launch.Confine {
	out := &launch.Confine{HideProcesses: c.hide}
	if c.user != nil {
		out.User = &c.user.User
	}
	if c.temp {
		out.Temp, out.Keep = temp, []string{dir, binary}
	}
	return out
}

// as runs f with the rights to files that jobs have: it may touch what is theirs, where names may
// lead anywhere.
func (c Confined) as(f func() error) error {
	if c.user == nil {
		return f()
	}
	return c.user.as(f)
}

// inherits says whether a job has a variable of the agent's environment: all but Penstock's own,
// what a service manager has told the agent, and, where jobs have a user, the folders of the
// agent's.
func (c Confined) inherits(name string) bool {
	switch name {
	case "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC":
		return false
	case "MAIL":
		return c.user == nil
	}
	return !strings.HasPrefix(name, "PENSTOCK_") && (c.user == nil || !strings.HasPrefix(name, "XDG_"))
}

// env is what a job knows of its user.
func (c Confined) env() map[string]string {
	if c.user == nil {
		return nil
	}
	return map[string]string{"HOME": c.user.home, "USER": c.user.name, "LOGNAME": c.user.name}
}

// jobUser runs jobs.
type jobUser struct {
	launch.User
	name, home string
}

func (u *jobUser) String() string { return fmt.Sprintf("%s (%d)", u.name, u.UID) }
