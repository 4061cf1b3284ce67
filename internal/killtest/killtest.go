// Package killtest kills processes of training runs at moments that are drawn: what the tests of trainer and of cmd/penstock share.
//
// A run is a controller that the test starts, and what it starts in turn: workers, which say where they are by lines in a pipe ([Say]), and perhaps a data
// process. A [Case] says which of them is killed and when; [Run.Finish] does it, and starts controllers until one ends well. It needs /proc.
package killtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/hosttest"
)

// Victims.
const (
	Worker     = "worker"
	Data       = "data process"
	Controller = "controller"
)

// Moments. Step, Report and Restore are those that workers say that they are in; Upload is when there are files of a checkpoint, and it is none yet.
const (
	Upload  = "upload"
	Restore = "restore"
	Report  = "report"
	Step    = "step"
	Any     = "any time"
)

var (
	victims = [3]string{Worker, Data, Controller}
	moments = [5]string{Upload, Restore, Report, Step, Any}
)

// Case of a test.
type Case struct {
	Victim, Moment string
	S3             bool   // the storage is a bucket that fails now and then, else a folder
	Seed           uint64 // of all else that is drawn
}

// CaseOf is the i-th case: 15 in a row kill each victim at each moment, 30 do so in each kind of storage.
func CaseOf(i int, seed uint64) Case {
	return Case{victims[i%len(victims)], moments[i%len(moments)], i%2 == 1, seed}
}

func (c Case) String() string {
	s := "a folder"
	if c.S3 {
		s = "S3"
	}
	return fmt.Sprintf("the %s dies (%s), storage is %s, seed %d", c.Victim, c.Moment, s, c.Seed)
}

// Rand is what a test draws its own choices from.
func (c Case) Rand() *rand.Rand { return rand.New(rand.NewPCG(c.Seed, 1)) }

// envPipe names the pipe that workers write to.
const envPipe = "KILLTEST_PIPE"

// Say is called by a worker: it is in a moment from now on. "" is none; number is that of the step, counted through the run. Without a [Run] it does nothing.
// What is no Go program writes the line by itself: PID RANK MOMENT NUMBER.
func Say(rank int, moment string, number int64) error {
	path := os.Getenv(envPipe)
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0) // a test that is gone is an error
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%d %d %s %d\n", os.Getpid(), rank, strings.ReplaceAll(moment, " ", "_"), number)
	return err
}

// Run is a training run with a case.
type Run struct {
	Case Case
	// Dir of the run on disk, also where it lies behind a service.
	Dir string
	// Start gives the command of a controller, and the number of its workers: one that creates the run, or one that resumes it, perhaps with another number.
	Start func(resume bool) (cmd *exec.Cmd, workers int)
	// Steps of the run; each Every of them rank 0 saves.
	Steps, Every int64
	// StepTime is about what a step takes, and Takes what the run does from its start on.
	StepTime, Takes time.Duration
	// Limit for all of it, after which the test fails.
	Limit time.Duration

	t       testing.TB
	workers int // of the controller
	rnd     *rand.Rand
	said    chan line
	pipe    string
	last    map[int]line // what workers said last, by pid
	kills   []kill       // that are to come
	done    []Kill
	out     bytes.Buffer // of the controllers, shown where the test fails
}

// Kill that was done.
type Kill struct {
	Victim, Moment string
	Hit            bool // it came in its moment, as far as anybody can see
}

// line that a worker said.
type line struct {
	pid, rank int
	moment    string
	number    int64
}

// kill that is planned.
type kill struct {
	victim, moment string
	rank           int           // that is in the moment, modulo the number of workers
	after          int64         // the step after which
	delay          time.Duration // within the moment
	misses         int           // moments that were over when the delay was
}

// Finish starts controllers until one ends well, kills what the case says, and returns what was killed. It fails the test where a controller ends otherwise, a kill never came (but for Any), or something is left. It makes the test [hosttest.Alone].
func (r *Run) Finish(t testing.TB) []Kill {
	t.Helper()
	hosttest.Alone(t)
	r.t, r.rnd, r.last = t, rand.New(rand.NewPCG(r.Case.Seed, 2)), map[int]line{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", r.out.Bytes())
		}
	})
	r.plan()
	stop := r.listen()
	defer stop()
	limit := time.NewTimer(r.Limit)
	defer limit.Stop()
	for {
		_, err := os.Stat(filepath.Join(r.Dir, "run.json"))
		resume := err == nil
		cmd, workers := r.Start(resume)
		r.workers = workers
		cmd.Env = append(cmd.Env, envPipe+"="+r.pipe)
		fmt.Fprintf(&r.out, "--- resume: %v\n", resume)
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &r.out, &r.out, 5*time.Second // whoever still holds these is found below
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if r.watch(cmd, resume, limit.C) {
			break
		}
	}
	if len(r.kills) > 0 && r.kills[0].moment != Any {
		t.Errorf("the run ended, and there was no kill: %+v", r.kills)
	}
	if left := r.left(); len(left) > 0 {
		t.Errorf("processes that are left: %v", left)
	}
	return r.done
}

// plan draws the kills of the case.
func (r *Run) plan() {
	k := kill{victim: r.Case.Victim, moment: r.Case.Moment, after: 1 + r.rnd.Int64N(r.Steps/2), delay: time.Duration(r.rnd.Int64N(int64(2 * time.Millisecond)))}
	switch k.moment {
	case Any:
		k.delay = time.Duration(r.rnd.Int64N(int64(r.Takes)))
	case Step:
		k.rank = r.rnd.IntN(6) // of however many there are
		k.delay = time.Duration(r.rnd.Int64N(int64(r.StepTime)))
	case Restore: // something must have been saved, and lost
		first := kill{victim: []string{Worker, Controller}[r.rnd.IntN(2)], moment: Step, after: 2*r.Every + 1 + r.rnd.Int64N(2*r.Every)} // the second upload has waited for the first
		r.kills = append(r.kills, first)
		k.after, k.rank = 0, r.rnd.IntN(6)
	}
	r.kills = append(r.kills, k)
}

// listen makes the pipe, and reads it until stop is called.
func (r *Run) listen() (stop func()) {
	r.pipe = filepath.Join(r.t.TempDir(), "pipe")
	if err := syscall.Mkfifo(r.pipe, 0o600); err != nil {
		r.t.Fatal(err)
	}
	f, err := os.OpenFile(r.pipe, os.O_RDWR, 0) // which workers come and go does not matter to one that may write, too
	if err != nil {
		r.t.Fatal(err)
	}
	r.said = make(chan line)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for buf, n := make([]byte, 0, 1<<16), 0; ; buf = buf[:copy(buf[:cap(buf)], buf[n:])] {
			n, err = f.Read(buf[len(buf):cap(buf)])
			if err != nil {
				return
			}
			buf = buf[:len(buf)+n]
			for n = 0; bytes.IndexByte(buf[n:], '\n') >= 0; {
				var l line
				text := buf[n : n+bytes.IndexByte(buf[n:], '\n')]
				if _, err := fmt.Sscan(string(text), &l.pid, &l.rank, &l.moment, &l.number); err != nil {
					r.t.Errorf("a worker said %q: %v", text, err)
				}
				n += len(text) + 1
				select {
				case r.said <- l:
				case <-quit:
					return
				}
			}
		}
	}()
	return func() {
		close(quit)
		f.Close()
		<-done
	}
}

// look is how often a folder is looked at for an upload: nobody tells of one.
const look = 200 * time.Microsecond

// watch kills what is planned of a controller and its processes, until the controller has ended. It reports whether it ended well.
func (r *Run) watch(cmd *exec.Cmd, resume bool, limit <-chan time.Time) bool {
	r.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var (
		in      line // the moment that a kill is to come in
		due     <-chan time.Time
		killed  bool // the controller was
		uploads *time.Ticker
		ticks   <-chan time.Time
	)
	defer func() {
		if uploads != nil {
			uploads.Stop()
		}
	}()
	for next := true; ; {
		if next && len(r.kills) > 0 { // the next kill has its turn
			switch k := &r.kills[0]; k.moment {
			case Any:
				due = time.After(k.delay)
			case Upload:
				uploads = time.NewTicker(look)
				ticks = uploads.C
			}
		}
		next = false
		select {
		case l := <-r.said:
			r.last[l.pid] = l
			if due == nil && len(r.kills) > 0 && r.match(&r.kills[0], l) {
				in, due = l, time.After(r.kills[0].delay)
			}
		case <-ticks:
			if k := &r.kills[0]; due == nil && r.step() >= k.after && r.uploading() != "" {
				in, due = line{moment: r.uploading()}, time.After(k.delay)
			}
		case <-due:
			due = nil
			k := &r.kills[0]
			pid := r.victim(cmd.Process.Pid, k)
			hit := r.still(k, in)
			if k.misses++; pid == 0 || !hit && k.misses <= 3 && k.moment != Restore {
				if k.moment == Any {
					due = time.After(time.Millisecond) // it does not live yet
				}
				continue
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
			r.t.Logf("%s %d was killed at step %d (%s, hit %v)", k.victim, pid, r.step(), k.moment, hit)
			killed = pid == cmd.Process.Pid
			r.done = append(r.done, Kill{k.victim, k.moment, hit})
			r.kills, ticks, next = r.kills[1:], nil, true
			if killed {
				<-ended
				return false
			}
		case err := <-ended:
			if err == nil {
				return true
			}
			if !resume && len(r.done) > 0 && bytes.Contains(r.out.Bytes(), []byte("there is a run")) {
				return false // what the killed controller asked of the service, to create it, was done only now
			}
			r.t.Fatalf("the controller ended: %v", err)
		case <-limit:
			_ = cmd.Process.Signal(syscall.SIGQUIT)
			<-ended
			r.t.Fatal("the run does not end")
		}
	}
}

// match reports whether a worker says that it is where a kill is to come.
func (r *Run) match(k *kill, l line) bool {
	return l.moment == k.moment && l.number >= k.after && l.rank == k.rank%r.workers
}

// still reports whether what a kill waited for goes on.
func (r *Run) still(k *kill, in line) bool {
	switch k.moment {
	case Any:
		return true
	case Upload:
		return r.uploading() == in.moment
	}
	for { // what was said meanwhile
		select {
		case l := <-r.said:
			r.last[l.pid] = l
			continue
		default:
		}
		return r.last[in.pid] == in
	}
}

// step that the run is at.
func (r *Run) step() (n int64) {
	for _, l := range r.last {
		n = max(n, l.number)
	}
	return n
}

// uploading is the name of the folder of a checkpoint that has files, and is none yet; "": there is none.
func (r *Run) uploading() string {
	dir := filepath.Join(r.Dir, "checkpoints")
	all, _ := os.ReadDir(dir) // in order
	for i := len(all) - 1; i >= 0; i-- {
		name := all[i].Name()
		number, _, try := strings.Cut(name, "-")
		if !try {
			if strings.HasSuffix(name, ".json") {
				return "" // the newest is whole, or a start
			}
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, number+".json")); err != nil {
			return name
		}
		return ""
	}
	return ""
}

// victim is the process to be killed; 0: there is none yet.
func (r *Run) victim(controller int, k *kill) int {
	if k.victim == Controller {
		return controller
	}
	var found []int
	for _, pid := range children(controller) {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // nothing of one that has ended
		if !bytes.Contains(env, []byte("\x00"+envPipe+"=")) {
			continue
		}
		if worker := bytes.Contains(env, []byte("\x00LOCAL_RANK=")); worker == (k.victim == Worker) {
			found = append(found, pid)
		}
	}
	if len(found) == 0 {
		return 0
	}
	return found[r.rnd.IntN(len(found))]
}

// children are the processes that a process has started.
func children(pid int) (all []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range tasks {
		b, _ := os.ReadFile(file)
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// left are the processes of the run that live.
func (r *Run) left() (all []int) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		if env, err := os.ReadFile(p + "/environ"); err == nil && bytes.Contains(env, []byte(envPipe+"="+r.pipe+"\x00")) { // zombies have none
			pid, _ := strconv.Atoi(filepath.Base(p))
			all = append(all, pid)
		}
	}
	return all
}
