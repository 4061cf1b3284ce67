package agent

import (
	"os"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/launch"
)

// wanted are the capabilities that running jobs as another user takes: to start them, to give and
// take files, to watch and to end them.
var wanted = []struct {
	bit  int
	name string
}{{unix.CAP_CHOWN, "CHOWN"}, {unix.CAP_DAC_OVERRIDE, "DAC_OVERRIDE"}, {unix.CAP_FOWNER, "FOWNER"}, {unix.CAP_KILL, "KILL"}, {unix.CAP_SETGID, "SETGID"}, {unix.CAP_SETUID, "SETUID"}, {unix.CAP_SYS_PTRACE, "SYS_PTRACE"}}

// lookUp finds a user for jobs, and sees that the agent may start them as it.
func lookUp(name string) (*jobUser, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fault.New(fault.Invalid, "jobs cannot run as user %q: there is none on this machine (%w)", name, err)
	}
	out := &jobUser{name: u.Username, home: u.HomeDir}
	if out.UID, err = number(u.Uid); err != nil {
		return nil, err
	}
	if out.GID, err = number(u.Gid); err != nil {
		return nil, err
	}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the groups of user %s: %w", name, err)
	}
	for _, s := range groups {
		g, err := number(s)
		if err != nil {
			return nil, err
		}
		out.Groups = append(out.Groups, g)
	}
	if out.UID == 0 || int(out.UID) == os.Geteuid() {
		return nil, fault.New(fault.Invalid, "jobs cannot be kept apart from the agent as user %s: give them one that is neither root nor the agent's", name)
	}
	if os.Geteuid() != 0 {
		return nil, fault.New(fault.Denied, "only root starts jobs as another user (%s): start penstock as root, or without --job-user as the user of the jobs", name)
	}
	if lack := lacking(); len(lack) > 0 {
		return nil, fault.New(fault.Denied, "this root lacks the capabilities %s, without which jobs of user %s cannot be run and watched: add them, in a container with --cap-add", strings.Join(lack, ", "), name)
	}
	if err := out.as(func() error { return nil }); err != nil {
		return nil, err
	}
	return out, nil
}

func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fault.New(fault.Unsupported, "%q is no number of a user or group", s)
	}
	return uint32(n), nil
}

// lacking are the names of wanted capabilities that this process has not.
func lacking() (names []string) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return []string{err.Error()}
	}
	for _, w := range wanted {
		if data[w.bit/32].Effective&(1<<(w.bit%32)) == 0 {
			names = append(names, w.name)
		}
	}
	return names
}

// as runs f on a thread whose rights to files are the user's.
func (u *jobUser) as(f func() error) error {
	return launch.OnThread(func() error {
		groups := []int{int(u.GID)}
		for _, g := range u.Groups {
			groups = append(groups, int(g))
		}
		if err := unix.Setgroups(groups); err != nil { // of this thread, as what follows
			return fault.New(fault.Denied, "the rights of user %s: %w", u, err)
		}
		for _, set := range []struct {
			id int
			do func(int) (int, error)
		}{{int(u.GID), unix.SetfsgidRetGid}, {int(u.UID), unix.SetfsuidRetUid}} {
			_, _ = set.do(set.id) // it returns what it was before, and no error
			if now, err := set.do(-1); err != nil || now != set.id {
				return fault.New(fault.Denied, "the kernel does not let this process have the rights of user %s", u)
			}
		}
		return f()
	})
}

// reaches is why the user cannot enter a folder, or run a program; nil: it can.
func (u *jobUser) reaches(path string) error {
	return u.as(func() error { return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS) })
}
