package exchange

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/faulttest"
	"github.com/penstock-data/penstock/shard"
)

const (
	// roleEnv makes this binary a node of a job: what is read, of which folder, whether it has an end, and the node of each rank.
	roleEnv = "EXCHANGE_TEST_NODE"
	ranks   = 4
)

// jobs are what is read: with filters, shuffled, packed, as tensors and as records.
var jobs = []string{"tensors", "records", "packed"}

// open opens one of the jobs on the documents in dir.
func open(ctx context.Context, kind, dir string, endless bool, nodes *shard.Nodes) ([]*shard.Iterator, error) {
	o := &dataset.ShardOptions{}
	o.Nodes = nodes
	o.Seed, o.GlobalBatch, o.Tail, o.Lineage = 7, 24, shard.TailPad, true
	o.Endless = endless
	if !endless {
		o.Epochs = 2
	}
	o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 5, WindowBytes: 8 << 10}
	o.Form.Tensors = kind != "records"
	ds := dataset.ReadJSON(filepath.Join(dir, "*.jsonl")).Filter("id % 7 != 3")
	switch kind {
	case "tensors":
		ds = ds.WithColumns("x = id * 0.5").Select("id", "x")
	case "packed":
		ds = ds.Pack("tokens", &dataset.PackOptions{Length: 32, LossMask: true})
	}
	return ds.Shards(ctx, ranks, o)
}

// documents writes some.
func documents(t *testing.T) string {
	t.Helper()
	dir, id := t.TempDir(), 0
	for f := range 6 {
		var b strings.Builder
		for range 150 + 40*f {
			var tokens []string
			for k := range id % 23 {
				tokens = append(tokens, fmt.Sprint(id*31+k))
			}
			fmt.Fprintf(&b, "{\"id\":%d,\"text\":\"%s\",\"tokens\":[%s]}\n", id, strings.Repeat("w", id%9), strings.Join(tokens, ","))
			id++
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.jsonl", f)), []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// read reads all batches, and says what each is.
func read(ctx context.Context, its []*shard.Iterator, say func(batch, what string)) (err error) {
	defer func() {
		for _, it := range its {
			err = errors.Join(err, it.Close())
		}
	}()
	if its[0].Rank() < 0 {
		return its[0].Feed(ctx)
	}
	for over := 0; over < 2; { // epochs
		for i, it := range its {
			b, err := it.Next(ctx)
			if err == io.EOF {
				if i == len(its)-1 {
					over++
				}
				continue
			}
			if err != nil {
				return err
			}
			say(fmt.Sprintf("rank %d, epoch %d, step %d", it.Rank(), b.Epoch(), b.Step()), fmt.Sprintf("%x %v", b.Digest(), b.Lineage()))
			b.Release()
		}
	}
	return nil
}

// whole is what one machine reads.
func whole(t *testing.T, kind, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	its, err := open(t.Context(), kind, dir, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := read(t.Context(), its, func(k, v string) { all[k] = v }); err != nil {
		t.Fatal(err)
	}
	if len(all) < 8*ranks {
		t.Fatalf("only %d batches", len(all))
	}
	return all
}

// places are the nodes of ranks that are tried: of two nodes, of three, and with one that only reads.
var places = [][]int{{0, 1, 1, 0}, {0, 1, 2, 1}, {2, 0, 0, 2}}

func nodesOf(ranks []int) int {
	n := 2
	for _, k := range ranks {
		n = max(n, k+1)
	}
	return n
}

// Over two and three nodes every rank gets the batches of one machine, byte for byte.
func TestJobs(t *testing.T) {
	dir := documents(t)
	for _, kind := range jobs {
		want := whole(t, kind, dir)
		for _, at := range places {
			xs, err := connect(t.Context(), gangtest.New(t, nodesOf(at)), kind)
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			got := map[string]string{}
			var g sync.WaitGroup
			for _, x := range xs {
				g.Go(func() {
					its, err := open(t.Context(), kind, dir, false, &shard.Nodes{Exchange: x, Ranks: at, Lanes: []int{1, 0}})
					if err == nil {
						err = read(t.Context(), its, func(k, v string) { mu.Lock(); defer mu.Unlock(); got[k] = v })
					}
					if err != nil {
						t.Errorf("%s, node %d of %v: %v", kind, x.Node(), at, err)
					}
					x.(*Exchange).Close()
				})
			}
			g.Wait()
			if !maps.Equal(got, want) {
				t.Errorf("%s, %v: %d batches over nodes, %d on one machine, or others", kind, at, len(got), len(want))
			}
		}
	}
}

// member is a node in a process of its own. It says its address, is told all, and says what it reads, or how it fails.
func member() error {
	var kind, dir, ends string
	var at [ranks]int
	if _, err := fmt.Sscan(os.Getenv(roleEnv), &kind, &dir, &ends, &at[0], &at[1], &at[2], &at[3]); err != nil {
		return err
	}
	g, err := gang.Aide()
	if err != nil {
		return err
	}
	defer g.Close()
	fmt.Println(g.Address())
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	x, err := Connect(ctx, g, "job", strings.Fields(line))
	if err != nil {
		return err
	}
	defer x.Close()
	its, err := open(ctx, kind, dir, ends == "endless", &shard.Nodes{Exchange: x, Ranks: at[:], Lanes: []int{1, 0}})
	if err != nil {
		return err
	}
	said := 0
	if err := read(ctx, its, func(k, v string) {
		if said++; ends != "endless" || said == 20 {
			fmt.Printf("batch %s: %s\n", k, v)
		}
	}); err != nil {
		return fmt.Errorf("%v %d %w", fault.CodeOf(err), time.Now().UnixNano(), err)
	}
	return nil
}

// process is a node of a job.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// processes starts the nodes of a job, and connects them. The command before[k] starts node k where its host is hosts[k]; nil: all are here.
func processes(t *testing.T, kind, dir, ends string, at []int, before [][]string, hosts []string) []*process {
	t.Helper()
	gs, dirs := gangtest.WithFolders(t, nodesOf(at))
	var all []*process
	var addresses []string
	for k := range gs {
		argv := []string{os.Args[0]}
		if before != nil {
			argv = append(before[k], argv...)
			info := gang.Info{Cluster: "c0", Job: gs[k].Job(), Attempt: gs[k].Attempt(), Node: k}
			for _, h := range hosts {
				info.Addresses = append(info.Addresses, net.JoinHostPort(h, "1")) // nobody looks at the members' own ports
			}
			text, err := json.Marshal(info)
			if err == nil {
				err = os.WriteFile(filepath.Join(dirs[k], gang.FileName), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		p := &process{cmd: exec.CommandContext(t.Context(), argv[0], argv[1:]...)}
		p.cmd.Env = append(os.Environ(), gang.EnvDir+"="+dirs[k], fmt.Sprint(roleEnv, "=", kind, " ", dir, " ", ends, " ", strings.Trim(fmt.Sprint(at), "[]")))
		p.cmd.Stderr = os.Stderr
		var err error
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.out = bufio.NewScanner(out)
		p.out.Buffer(nil, 16<<20)
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
		if !p.out.Scan() {
			t.Fatalf("node %d does not start", k)
		}
		all, addresses = append(all, p), append(addresses, p.out.Text())
	}
	for _, p := range all {
		fmt.Fprintln(p.in, strings.Join(addresses, " "))
	}
	return all
}

// Processes get the batches of one machine as well.
func TestProcesses(t *testing.T) {
	dir := documents(t)
	for i, kind := range jobs {
		want, got := whole(t, kind, dir), map[string]string{}
		var mu sync.Mutex
		var g sync.WaitGroup
		for k, p := range processes(t, kind, dir, "once", places[i], nil, nil) {
			g.Go(func() {
				for p.out.Scan() {
					batch, what, ok := strings.Cut(strings.TrimPrefix(p.out.Text(), "batch "), ": ")
					if !ok || !strings.HasPrefix(p.out.Text(), "batch ") {
						t.Errorf("%s, node %d: %s", kind, k, p.out.Text())
					}
					mu.Lock()
					got[batch] = what
					mu.Unlock()
				}
			})
		}
		g.Wait()
		if !maps.Equal(got, want) {
			t.Errorf("%s, %v: %d batches of processes, %d on one machine, or others", kind, places[i], len(got), len(want))
		}
	}
}

// begun waits until every node reads.
func begun(t *testing.T, all []*process) {
	t.Helper()
	for k, p := range all {
		if !p.out.Scan() || !strings.HasPrefix(p.out.Text(), "batch ") {
			t.Fatalf("node %d: %s", k, p.out.Text())
		}
	}
}

// loses waits until node k says that it has lost another, and returns when it saw that.
func loses(t *testing.T, all []*process, k, other int) time.Time {
	t.Helper()
	if !all[k].out.Scan() {
		t.Fatalf("node %d says nothing", k)
	}
	text := all[k].out.Text()
	var code string
	var at int64
	if _, err := fmt.Sscanf(text, "failed %s %d", &code, &at); err != nil {
		t.Fatalf("node %d: %s", k, text)
	}
	faulttest.Wants(t, fault.New(fault.ParseCode(code), "%s", text), fault.WorkerLost, fmt.Sprintf("node %d is lost", other))
	return time.Unix(0, at)
}

// A process that is killed in the middle is lost to the others at once, by its number.
func TestKilled(t *testing.T) {
	all := processes(t, "tensors", documents(t), "endless", []int{0, 1, 2, 1}, nil, nil)
	begun(t, all)
	const victim = 1
	begin := time.Now()
	if err := all[victim].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for k := range all {
		if k == victim {
			continue
		}
		if took := loses(t, all, k, victim).Sub(begin); took > time.Second {
			t.Errorf("node %d saw it after %v", k, took)
		}
	}
}
