// Package launch starts the workers of a group, watches them and ends them, with everything that they started.
//
// [Processes] runs them as child processes of this one, [Goroutines] as goroutines. A [Launcher] decides where workers run and nothing else: what they
// do, whether a failure is one, and whether the group starts again is package trainer's.
package launch

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Launcher starts groups. Safe for concurrent use; groups are independent of each other.
type Launcher interface {
	// Launch starts all workers or none. After an error nothing runs, and the error says which worker could not be started and why. ctx bounds the start; a
	// group that has started lives until its workers have ended or Stop is called, whatever becomes of ctx.
	Launch(ctx context.Context, workers []Worker) (Group, error)
}

// Spanning is a launcher whose workers may be on other machines than this one, as package trainer's is for the nodes of a gang: Worker.Node and LocalRank say where each belongs. What they share must be where all of them reach it: see trainer.Config.Storage.
type Spanning interface {
	Launcher
	// Machines are the names of those that workers may be on.
	Machines() []string
}

// Worker is what to start.
type Worker struct {
	Rank      int // distinct within the group
	LocalRank int // among those of its node
	Node      int

	// Argv is the program and its arguments. A program without a slash is looked up in the PATH of Env, one with a relative path begins at Dir.
	Argv []string
	// Env is the complete environment, NAME=value. Launchers of processes add PENSTOCK_LAUNCH, by which they know their own.
	Env []string
	// Dir is the working directory; "": this process's.
	Dir string
	// Files are what a process has as descriptors 3, 4 and so on. They are the caller's, who may close them when Launch has returned.
	Files []*os.File
	// Memory is how many bytes the worker and its descendants may use together: see Usage.Memory. Above it they are ended. Where this process can make a control group
	// for them (below its own with version 1 of control groups, in what systemd delegates with version 2) the kernel counts, swap and its own
	// memory for them too, and ends one at once. Elsewhere they are looked at each half second, and can pass it in between. 0: no limit.
	Memory int64
	// Run is the worker of a launcher of goroutines; others ignore it. It should return soon after ctx has ended.
	Run func(ctx context.Context) error
}

// Group is workers that were started together. Safe for concurrent use.
type Group interface {
	// Exits gets one Exit per worker, when its output was read, and is closed after the last. Of those that end within a second of each other Exit.At says which was first. It has room
	// for all: nobody has to receive.
	Exits() <-chan Exit
	// Signal sends s to the main process of a worker; rank -1: of every worker that runs. An error if that worker has ended, or is not there.
	Signal(rank int, s os.Signal) error
	// Stacks says what the threads of a worker are doing, for people: see the launchers. It may end the worker, so it is for workers that are to be ended.
	Stacks(ctx context.Context, rank int) (string, error)
	// Stop ends the group: everything that runs is asked to (SIGTERM) and after grace ended by force. It returns when nothing is left, not even what workers have left
	// behind, and may be called at any time, any number of times and at once: the shortest grace counts.
	Stop(grace time.Duration)
	// Usage of each worker, as it was at most half a second ago, in the order of Launch. Workers that have ended use what they have left behind.
	Usage() []Usage
}

// Usage is what a worker and its descendants use.
type Usage struct {
	Rank      int
	PID       int
	Processes int // that live now
	// Memory in bytes: anonymous and shared memory, without pages of files, which the kernel can drop. What processes share counts once where
	// the kernel says how much that is, and it is asked where it matters (near Worker.Memory); else once for each.
	Memory int64
	CPU    time.Duration // user and system time since the start, with that of descendants that have ended
}

// Exit is the end of a worker.
type Exit struct {
	Rank int
	Name string // what messages call the worker; "": "rank N"
	PID  int    // 0: a goroutine

	Code   int            // exit code; -1: there is none
	Signal syscall.Signal // that ended it; 0: none
	// Memory: it was ended for its memory, by us or by the kernel, where that can be seen.
	Memory bool
	// OverLimit: of Memory, that it was its own limit (Worker.Memory), as far as is known.
	OverLimit bool
	// Ours: it had been asked to end (Stop, or a signal that asks for it) before it did. Not set where it passed its limit of memory.
	Ours bool
	At   time.Time
	Tail []string // last lines of its output, each up to 1 KiB, harmless on a terminal: at most 40, and 8 KiB
	// Lacks is the first error of writing its log file, which lacks lines; nil: it has all, or there is none.
	Lacks error
	// Err is what Run returned; always nil for a process.
	Err error
	// Detail is what else is known of the cause: "it used 2.1 GiB, its limit is 2 GiB"; may be "".
	Detail string
}

// OK reports whether the worker ended by itself and without a failure.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 && e.Err == nil }

// How says how a process ended that failed: "exit code 1", "signal 9 (SIGKILL)"; "": neither is known of it.
func (e Exit) How() string {
	switch {
	case e.Signal != 0:
		return fmt.Sprintf("signal %d (%s)", int(e.Signal), signalName(e.Signal))
	case e.Err == nil && e.Code > 0:
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return ""
}

// String is the cause in one line: "rank 1 (pid 4711) ended with exit code 1".
func (e Exit) String() string {
	var b strings.Builder
	b.WriteString(e.Name)
	if e.Name == "" {
		fmt.Fprintf(&b, "rank %d", e.Rank)
	}
	if e.PID != 0 {
		fmt.Fprintf(&b, " (pid %d)", e.PID)
	}
	switch {
	case e.Memory:
		b.WriteString(" was ended for its memory")
	case e.Signal != 0:
		b.WriteString(" was ended by " + e.How())
	case e.Err != nil:
		text, _, _ := strings.Cut(e.Err.Error(), "\n")
		fmt.Fprintf(&b, " failed: %s", text)
	case e.Code == -1:
		b.WriteString(" did not end")
	case e.Code != 0:
		b.WriteString(" ended with " + e.How())
	default:
		b.WriteString(" ended")
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	return b.String()
}

// tailLines is how many lines Exit.Tail has at most.
const tailLines = 40

// rankName is what messages call a worker unless Options.Name says otherwise.
func rankName(rank int) string { return fmt.Sprintf("rank %d", rank) }

// asks reports whether a signal asks a process to end.
func asks(s os.Signal) bool {
	switch s {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGHUP:
		return true
	}
	return false
}
