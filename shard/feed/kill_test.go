package feed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/hosttest"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// Processes of the kill test: one that serves, and one per rank that consumes. Each step is committed
// when the files of all ranks are in the folder; a state is part of them.
type childConfig struct {
	Data, Commits, Socket string
	Serve                 bool
	Ranks, Rank           int
	Arrow                 bool
	Keep                  bool // consumes all that it is sent, and looks at it when the data process is gone
	Stranger              bool // tries to get in, and prints what it is told
	// A consumer dies by its own hand at this step of its incarnation (counted from 1; 0: never),
	// before or after it has written the step's file.
	DieAt  int
	Before bool
}

// share is what one rank had of a step.
type share struct {
	Digest string
	N, ID  []int64
	State  shard.State
}

const killEpochs = 2

// killJob is the job of the kill test.
func killJob(ctx context.Context, data string, ranks int, arrowForm bool) ([]*shard.Iterator, error) {
	o := &dataset.ShardOptions{
		RunOptions: dataset.RunOptions{Seed: 11, Memory: 64 << 20},
		Options: shard.Options{GlobalBatch: 60, Epochs: killEpochs, Tail: shard.TailPad, Form: shard.Form{Tensors: !arrowForm},
			Shuffle: &shard.Shuffle{Lanes: 3, WindowRows: 150}},
	}
	return dataset.ReadParquet(data).Filter("id % 3 != 0").Shards(ctx, ranks, o)
}

// shareOf describes a batch.
func shareOf(b *shard.Batch, at shard.State) share {
	s := share{N: append([]int64{}, b.Samples()...), State: at}
	sum := b.Digest()
	s.Digest = hex.EncodeToString(sum[:])
	if rec := b.Record(); rec != nil {
		s.ID = append(s.ID, rec.Column(0).(*array.Int64).Int64Values()[:b.Real()]...)
	} else {
		t, _ := b.Tensor("id")
		s.ID = append(s.ID, shard.Values[int64](t)[:b.Real()]...)
	}
	return s
}

// child is the main function of the processes. Their exit codes say how they ended.
const (
	exitDone = iota
	exitOther
	exitUnavailable
	exitWorkerLost
)

func child(cfg string) {
	var c childConfig
	err := json.Unmarshal([]byte(cfg), &c)
	if err == nil {
		switch {
		case c.Serve:
			err = c.serve()
		case c.Stranger:
			err = c.intrude()
		case c.Keep:
			err = c.keep()
		default:
			err = c.consume()
		}
	}
	code := exitDone
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		switch code = exitOther; fault.CodeOf(err) {
		case fault.Unavailable:
			code = exitUnavailable
		case fault.WorkerLost:
			code = exitWorkerLost
		}
	}
	os.Exit(code)
}

func (c *childConfig) serve() error {
	l, err := Listen(c.Socket)
	if err != nil {
		return err
	}
	defer l.Close()
	its, err := killJob(context.Background(), c.Data, c.Ranks, c.Arrow)
	if err != nil {
		return err
	}
	return Serve(context.Background(), l, its, nil)
}

func (c *childConfig) consume() error {
	cl, err := Dial(context.Background(), c.Socket, c.Rank, nil)
	if err != nil {
		return err
	}
	if name, ok := committed(c.Commits); ok {
		var last share
		if err := readShare(filepath.Join(c.Commits, name, "0"), &last); err != nil {
			return err
		}
		if err := cl.Restore(last.State); err != nil {
			return err
		}
	}
	ends := int(cl.Epoch())
	for made := 1; ends < killEpochs; {
		b, err := cl.Next(context.Background())
		if err == io.EOF {
			ends++
			continue
		}
		if err != nil {
			return err
		}
		s := shareOf(b, cl.State())
		name := stepName(b.Epoch(), b.Step(), c.Ranks)
		b.Release()
		if made == c.DieAt && c.Before {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if err := writeShare(filepath.Join(c.Commits, name), c.Rank, s); err != nil {
			return err
		}
		if made == c.DieAt {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		made++
		fmt.Println(name) // the parent counts
	}
	return cl.Close()
}

// keep takes batches until the data process is gone, and then looks at all of them.
func (c *childConfig) keep() error {
	cl, err := Dial(context.Background(), c.Socket, c.Rank, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	var all []*shard.Batch
	var sums [][32]byte
	for {
		b, err := cl.Next(context.Background())
		if err != nil {
			if fault.CodeOf(err) != fault.Unavailable {
				return err
			}
			break
		}
		all, sums = append(all, b), append(sums, b.Digest())
		fmt.Println("batch")
	}
	for i, b := range all {
		if b.Digest() != sums[i] {
			return fmt.Errorf("batch %d of %d has changed", i, len(all))
		}
		for k := range b.Buffer() { // somebody trains in place
			b.Buffer()[k]++
		}
	}
	for _, b := range all {
		b.Release()
	}
	fmt.Println("kept", len(all))
	return nil
}

// What a consumer holds outlives the data process: a SIGKILL of that is an error of Next, and no signal of the consumer.
func TestKillKeeper(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	enc, err := parquetio.NewEncoding(nil)
	must(t, err)
	_, err = dataset.Range(200_000).WithColumns("x = double(id) / 7.0").Write(t.Context(), data, enc, nil)
	must(t, err)
	for i := range 4 {
		path := socket(t)
		server, err := childConfig{Data: data, Socket: path, Serve: true, Ranks: 1, Arrow: i%2 == 0}.start(io.Discard)
		must(t, err)
		r, w := io.Pipe()
		keeper, err := childConfig{Socket: path, Keep: true}.start(w)
		must(t, err)
		lines := bufio.NewScanner(r)
		for n := 0; n < 30*(i+1) && lines.Scan(); n++ {
		}
		server.cmd.Process.Kill()
		var last string
		ended := make(chan int)
		go func() {
			code := keeper.wait()
			w.Close()
			ended <- code
		}()
		for lines.Scan() {
			last = lines.Text()
		}
		if code := <-ended; code != exitDone || !strings.HasPrefix(last, "kept") {
			t.Errorf("the consumer ended with %d, said %q: %s", code, last, keeper.errs.Bytes())
		}
		server.wait()
	}
}

// intrude prints why Dial fails, and what the data process says to one who asks all the same.
func (c *childConfig) intrude() error {
	_, err := Dial(context.Background(), c.Socket, 0, nil)
	fmt.Println(err)
	conn, err := net.Dial("unix", c.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, _ = conn.Write(append(preamble(nil), 0, 0, 0, 0)) // it may be answered before it has asked
	b, _ := io.ReadAll(conn)
	fmt.Printf("%q\n", b)
	return nil
}

// A process of another user is refused even where the folder lets it in.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		memtest.Skip(t, "only root starts processes of other users")
	}
	g := newGroup(t, t.Context(), 1, nil, false)
	dir := filepath.Dir(g.path)
	self, err := os.ReadFile(os.Args[0])
	must(t, err)
	must(t, os.WriteFile(dir+"/test", self, 0o755))
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Chmod(g.path, 0o666))
	cfg, err := json.Marshal(childConfig{Socket: g.path, Stranger: true})
	must(t, err)
	cmd := exec.Command(dir + "/test")
	cmd.Dir = dir
	cmd.Env = []string{"PENSTOCK_FEED_CHILD=" + string(cfg)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	told, answer, _ := strings.Cut(string(out), "\n")
	if err != nil || !strings.Contains(told, "belongs to user 0, this one to user 65534") || !strings.Contains(answer, "belongs to user 65534, this one to user 0") {
		t.Errorf("%v: %s", err, out)
	}
	c := dialTest(t, g.path, 0, nil) // the rank is free
	c.Close()
	must(t, g.wait())
}

// stepName sorts as steps do; the ranks say how many files make it complete.
func stepName(epoch uint64, step int64, ranks int) string {
	return fmt.Sprintf("%04d-%06d-of%d", epoch, step, ranks)
}

func writeShare(dir string, rank int, s share) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(dir, fmt.Sprint("tmp", rank))
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, fmt.Sprint(rank)))
}

func readShare(name string, s *share) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, s)
}

// committed is the last step that all ranks have written.
func committed(dir string) (name string, ok bool) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return "", false
	}
	for i := len(all) - 1; i >= 0; i-- {
		if complete(dir, all[i].Name()) {
			return all[i].Name(), true
		}
	}
	return "", false
}

func complete(dir, name string) bool {
	ranks, err := strconv.Atoi(name[strings.LastIndex(name, "of")+2:])
	for r := 0; r < ranks && err == nil; r++ {
		_, err = os.Stat(filepath.Join(dir, name, fmt.Sprint(r)))
	}
	return err == nil
}

// process is a child.
type process struct {
	cmd  *exec.Cmd
	errs bytes.Buffer
	name string
}

func (c childConfig) start(out io.Writer) (*process, error) {
	cfg, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(os.Args[0]), name: fmt.Sprint("rank ", c.Rank)}
	if c.Serve {
		p.name = "data process"
	}
	p.cmd.Env = append(os.Environ(), "PENSTOCK_FEED_CHILD="+string(cfg))
	p.cmd.Stdout, p.cmd.Stderr = out, &p.errs
	return p, p.cmd.Start()
}

// wait gives the exit code, -1 for one that was killed.
func (p *process) wait() int {
	if err := p.cmd.Wait(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return exitOther
		}
	}
	return p.cmd.ProcessState.ExitCode()
}

// undisturbed is every step of a job, by rank.
func undisturbed(t *testing.T, data string, ranks int, arrowForm bool) map[string][]share {
	t.Helper()
	its, err := killJob(t.Context(), data, ranks, arrowForm)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]share{}
	for ends := 0; ends < killEpochs; {
		for _, it := range its {
			b, err := it.Next(t.Context())
			if err == io.EOF {
				if it == its[ranks-1] {
					ends++
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			name := stepName(b.Epoch(), b.Step(), ranks)
			want[name] = append(want[name], shareOf(b, it.State()))
			b.Release()
		}
	}
	for _, it := range its {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
	return want
}

// Consumers and the data process are killed at random and started again from the last committed
// state, on another number of ranks: what is committed is the sequence of an undisturbed run.
func TestKill(t *testing.T) {
	hosttest.Alone(t)
	schedules := 20
	if os.Getenv("PENSTOCK_SOAK") != "" {
		schedules = 200
	}
	data := filepath.Join(t.TempDir(), "data")
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 300})
	if err != nil {
		t.Fatal(err)
	}
	_, err = dataset.Range(3500).WithColumns("x = double(id) / 7.0").Write(t.Context(), data, enc, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[bool]map[string][]share{}
	for _, a := range []bool{false, true} {
		want[a] = map[string][]share{}
		for ranks := 1; ranks <= 4; ranks++ {
			for name, s := range undisturbed(t, data, ranks, a) {
				want[a][name] = s
			}
		}
	}
	start := uint64(time.Now().UnixNano())
	if s := os.Getenv("PENSTOCK_SEED"); s != "" {
		if start, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
		schedules = 1
	}
	var sum tally
	for i := range schedules {
		seed := start + uint64(i)
		s := schedule{t: t, rng: rand.New(rand.NewPCG(seed, 3)), data: data, dir: t.TempDir(), socket: socket(t), tally: &sum}
		if s.run(); !t.Failed() {
			s.check(want[s.arrow])
		}
		if t.Failed() {
			t.Fatalf("schedule %d: PENSTOCK_SEED=%d repeats its choices", i, seed)
		}
	}
	t.Logf("%d schedules from seed %d: %d kills of consumers, %d of data processes, %d found nobody; %d incarnations, %d changes of ranks; all others ended at most %v after a kill",
		schedules, start, sum.consumers, sum.servers, sum.late, sum.incarnations, sum.changes, sum.slowest)
	if sum.consumers == 0 || sum.servers == 0 || sum.changes == 0 {
		t.Error("the schedules did not do what they are for")
	}
}

// tally counts what schedules did.
type tally struct {
	consumers, servers, late, incarnations, changes int
	slowest                                         time.Duration
}

type schedule struct {
	t                 *testing.T
	rng               *rand.Rand
	data, dir, socket string
	arrow             bool
	*tally
}

// run goes on until everything is committed.
func (s *schedule) run() {
	s.arrow = s.rng.IntN(2) == 0
	kills := 1 + s.rng.IntN(4)
	was := 0
	for n := 0; ; n++ {
		ranks := 1 + s.rng.IntN(4)
		if was > 0 && ranks != was {
			s.changes++
		}
		was = ranks
		s.incarnations++
		if s.incarnation(ranks, n < kills) || s.t.Failed() {
			return
		}
		s.forget()
	}
}

// forget removes what was not committed.
func (s *schedule) forget() {
	last, _ := committed(s.dir)
	all, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range all {
		if e.Name() > last {
			os.RemoveAll(filepath.Join(s.dir, e.Name()))
		}
	}
}

// incarnation runs all processes once, true if they came to the end. One of them is killed on the way.
func (s *schedule) incarnation(ranks int, kill bool) bool {
	base := childConfig{Data: s.data, Commits: s.dir, Socket: s.socket, Ranks: ranks, Arrow: s.arrow}
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	// The victim: 0 is the data process. It is killed from outside when so many files were written, or
	// kills itself at a step.
	victim, after, self := s.rng.IntN(ranks+1), 1+s.rng.IntN(30*ranks), s.rng.IntN(3) == 0
	var all []*process
	for i := range ranks + 1 {
		c := base
		c.Serve, c.Rank = i == 0, i-1
		if kill && self && i == victim && i > 0 {
			c.DieAt, c.Before = 1+s.rng.IntN(40), s.rng.IntN(2) == 0
		}
		p, err := c.start(w)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, p)
	}
	w.Close()
	watchdog := time.AfterFunc(60*time.Second, func() { // a hang is a failure, not the end of the test
		for _, p := range all {
			p.cmd.Process.Kill()
		}
		s.t.Errorf("%d ranks hang", ranks)
	})
	var died time.Time
	lines := bufio.NewScanner(r)
	for n := 0; lines.Scan(); {
		if n++; n == after && kill && (!self || victim == 0) {
			all[victim].cmd.Process.Kill()
			died = time.Now()
		}
	}
	codes := make([]int, len(all))
	var ended sync.WaitGroup
	for i, p := range all {
		ended.Go(func() { codes[i] = p.wait() })
	}
	ended.Wait()
	watchdog.Stop()
	if !died.IsZero() {
		s.slowest = max(s.slowest, time.Since(died))
	}
	lost, done := 0, 0
	for i, c := range codes {
		switch {
		case c == exitDone:
			done++
		case c == -1 && kill && i == victim:
			if lost++; i == 0 {
				s.servers++
			} else {
				s.consumers++
			}
		case c == exitUnavailable && i > 0 && kill, c == exitWorkerLost && kill && victim > 0:
		default:
			s.t.Errorf("%s of %d ranks ended with %d (killed was %d): %s", all[i].name, ranks, c, victim, all[i].errs.Bytes())
		}
	}
	if lost == 0 && done < len(all) {
		s.t.Errorf("nobody was killed, but the processes ended with %v", codes)
	}
	if kill && lost == 0 {
		s.late++
	}
	return done == len(all)
}

// check compares what was committed with an undisturbed run: every step once, by one number of
// ranks, with the same samples, bytes and states.
func (s *schedule) check(want map[string][]share) {
	all, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	steps, next, seen, epoch := map[string]bool{}, int64(0), map[int64]bool{}, "0000"
	for _, e := range all {
		step, _, _ := strings.Cut(e.Name(), "-of")
		if steps[step] || !complete(s.dir, e.Name()) {
			s.t.Errorf("step %s is committed twice, or not complete", e.Name())
			return
		}
		steps[step] = true
		if step[:4] != epoch {
			epoch, next, seen = step[:4], 0, map[int64]bool{}
		}
		for r, w := range want[e.Name()] {
			var got share
			if err := readShare(filepath.Join(s.dir, e.Name(), fmt.Sprint(r)), &got); err != nil {
				s.t.Fatal(err)
			}
			if !reflect.DeepEqual(got, w) {
				s.t.Errorf("step %s, rank %d is %+v, not %+v", e.Name(), r, got, w)
				return
			}
			for _, id := range got.ID {
				if seen[id] {
					s.t.Errorf("step %s: row %d comes twice", e.Name(), id)
				}
				seen[id] = true
			}
			next += int64(len(got.N))
		}
		// Numbers of a step follow those of the step before, whatever the ranks.
		ns := map[int64]bool{}
		for r := range want[e.Name()] {
			var got share
			if err := readShare(filepath.Join(s.dir, e.Name(), fmt.Sprint(r)), &got); err != nil {
				s.t.Fatal(err)
			}
			for _, n := range got.N {
				ns[n] = true
			}
		}
		for n := next - int64(len(ns)); n < next; n++ {
			if !ns[n] {
				s.t.Errorf("step %s: sample %d is missing", e.Name(), n)
			}
		}
	}
	total := 0
	for name := range want {
		if strings.HasSuffix(name, "-of1") {
			total++
			if !steps[strings.TrimSuffix(name, "-of1")] {
				s.t.Errorf("step %s is lost", name)
			}
		}
	}
	if len(steps) != total {
		s.t.Errorf("%d steps, not %d", len(steps), total)
	}
}
