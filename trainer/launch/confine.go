package launch

import (
	"slices"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

// Confine is what processes are kept to, with all that they start. The zero value gives them no new
// privileges: a program of theirs that would run as another user, or with capabilities (sudo), runs
// without. Of Linux only.
type Confine struct {
	// User runs them, which root can say only; nil: this process's.
	User *User
	// Temp is a folder, which is /tmp and /var/tmp for them alone; "": they have the machine's. It
	// wants the right to mount.
	Temp string
	// Keep are files and folders that they see by their paths also where these are below /tmp or
	// /var/tmp.
	Keep []string
	// HideProcesses: of others than User they see none in /proc. It wants the right to mount, and
	// Linux 5.8.
	HideProcesses bool
}

// Temps are the folders that all users of a machine share, and that are others where Confine.Temp
// is set.
func Temps() []string { return slices.Clone(temps) }

var temps = []string{"/tmp", "/var/tmp"}

// sees says why processes will not find a program that is there.
func (c *Confine) sees(path string) error {
	if c == nil || c.Temp == "" || !belowAny(path, temps) || belowAny(path, c.Keep) {
		return nil
	}
	for _, k := range c.Keep {
		if path == k {
			return nil
		}
	}
	return fault.New(fault.NotFound, "program %s is not there: it has a /tmp and a /var/tmp for itself; put the program into its working directory, or elsewhere", path)
}

func belowAny(path string, dirs []string) bool {
	for _, d := range dirs {
		if strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

// User is one of the machine, as the kernel knows it.
type User struct {
	UID, GID uint32
	Groups   []uint32
}
