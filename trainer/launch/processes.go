package launch

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/penstock-data/penstock/internal/fault"
)

// Options of processes.
type Options struct {
	// Logs is a folder for what workers print: a file each, attempt-2/rank-0.log, where the attempt is PENSTOCK_ATTEMPT of their environment (else 1). "": no files.
	Logs string
	// Within is a folder that Logs is in, and in which others may write: no link in it leads out. "": Logs is the user's own.
	Within string
	// Rotate is the size of a log file in bytes above which a new one is begun; three of a worker are kept (rank-0.log, and the older .1 and .2), and an empty one whose name says how much was printed before them ([Rotated]). 0: 64 MiB.
	Rotate int64
	// Terminal gets what workers print, for people: lines with the name of their worker, equal lines folded, nothing that could harm a terminal. Of a terminal that takes nothing
	// for a second lines are skipped until it does again, which it is told; files have them. nil: nothing is shown.
	Terminal io.Writer
	// Name is what messages, prefixes and log files call a worker; nil: "rank N".
	Name func(rank int) string
	// Main says that a worker's main process sees to its descendants: Stop asks it alone to end. What it leaves behind when it does, or has not ended after the grace, is ended as ever.
	Main bool
	// Joined: stdout and stderr of a worker are one pipe, so that what it writes to both stays in its order. Else each has one of its own: lines stay whole where both are written at once, and which of two comes first is chance.
	// Stacks then have what else was printed meanwhile.
	Joined bool
	// Confine keeps workers to less than this process may do; nil: they may do the same.
	Confine *Confine
}

// Processes runs workers as child processes.
//
// Each is the leader of a session of its own, with nothing to read on stdin. It gets SIGKILL when this process ends, in whatever way. What workers print never
// blocks other workers, and costs no memory beyond a few hundred KiB each.
//
// On Linux a worker is all its descendants, whatever process groups and sessions they make: what the main process of a worker leaves behind gets SIGTERM when that ends, and SIGKILL two seconds later. For
// that this process adopts orphans (PR_SET_CHILD_SUBREAPER) while it has groups, also those of other children of its own: it waits for these where it has seen their parent, and
// does not end them. A descendant is missed only if it changes session and environment and loses its parent between two looks, which are half a second apart (up to two where there are thousands of processes).
// A worker above its limit of memory gets SIGKILL. Stacks sends SIGQUIT to workers that handle it: Go programs print their stacks and end, Python's do if they have called
// faulthandler.register(signal.SIGQUIT), and go on. The kernel's view of every thread comes with them.
//
// On other Unix systems a worker is its process group: children that leave it are not ended, workers outlive this process, Worker.Memory is refused,
// Usage has the ranks and process ids only, and Stacks what workers print. Elsewhere there are no such workers.
func Processes(o Options) Local {
	if o.Rotate <= 0 {
		o.Rotate = 64 << 20
	}
	if o.Name == nil {
		o.Name = rankName
	}
	return &processes{Options: o}
}

type processes struct {
	Options
	screen sync.Mutex // orders what groups write to Terminal
}

// EnvLaunch is the variable by which processes of a launcher are known, also when the launcher is gone: its process and group, and the worker.
const EnvLaunch = "PENSTOCK_LAUNCH"

// groups counts the groups of this process.
var groups atomic.Int64

func errNoRank(rank int) error {
	return fault.New(fault.NotFound, "no rank %d in this group", rank)
}
