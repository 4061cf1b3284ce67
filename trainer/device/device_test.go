package device

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("PENSTOCK_DEVICE_CHILD"); dir != "" {
		child(dir)
	}
	if os.Getenv("PENSTOCK_DEVICE_FAKE") != "" {
		describeMachine()
	}
	goleak.VerifyTestMain(m)
}

// fake is a source of n GPUs; its fields say what goes wrong.
type fake struct {
	all    []gpu
	opened error
	listed error
	block  chan struct{} // not nil: list and sample wait for it
	calls  atomic.Int32
}

func (f *fake) name() string { return "fake" }

func (f *fake) open(context.Context) error { f.calls.Add(1); return f.opened }

func (f *fake) list(context.Context) ([]gpu, []string, error) {
	f.calls.Add(1)
	if f.block != nil {
		<-f.block
	}
	return f.all, nil, f.listed
}

func (f *fake) sample(_ context.Context, of []Device) ([]Sample, error) {
	f.calls.Add(1)
	if f.block != nil {
		<-f.block
	}
	var out []Sample
	for _, d := range of {
		s := unknown(d)
		s.Power = 100
		out = append(out, s)
	}
	return out, nil
}

// gpus makes whole GPUs, but for those given, which are divided into two instances.
func gpus(n int, divided ...int) []gpu {
	out := make([]gpu, n)
	for i := range out {
		d := Device{Index: i, UUID: fmt.Sprintf("GPU-%c%c000000-%d", 'a'+i/2, 'a'+i, i), Name: "Test", Memory: 1 << 30, Visible: fmt.Sprint(i)}
		out[i].Device = d
		if slices.Contains(divided, i) {
			out[i].mig = true
			for k := range 2 {
				id := fmt.Sprintf("MIG-%d%c-%d", i, 'a'+k, k)
				out[i].instances = append(out[i].instances, Device{Index: i, UUID: id, Parent: d.UUID, Visible: id})
			}
		}
	}
	return out
}

func discover(t testing.TB, env *string, sources ...source) *Inventory {
	t.Helper()
	inv, err := Discover(context.Background(), &Options{sources: sources, visible: env, Leases: leases(t), poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// What CUDA_VISIBLE_DEVICES means. The cases with indices and UUIDs were compared with torch.cuda._parse_visible_devices.
func TestVisibleDevices(t *testing.T) {
	whole, divided := gpus(4), gpus(3, 1, 2)
	for _, c := range []struct {
		env  string
		all  []gpu
		want string // UUIDs
		note string
	}{
		{"0,1,2,3", whole, "GPU-aa000000-0 GPU-ab000000-1 GPU-bc000000-2 GPU-bd000000-3", ""},
		{"2,0", whole, "GPU-bc000000-2 GPU-aa000000-0", ""},
		{" 2 , 0 ", whole, "GPU-bc000000-2 GPU-aa000000-0", ""},
		{"", whole, "", ""},
		{"-1", whole, "", ""},
		{"NoDevFiles", whole, "", ""},
		{"0,2,-1,1", whole, "GPU-aa000000-0 GPU-bc000000-2", ""},
		{"0,7,1", whole, "GPU-aa000000-0", `"7" is not one of this machine's GPUs (it has 0-3)`},
		{"1gpu2,2ampere", whole, "GPU-ab000000-1 GPU-bc000000-2", ""},
		{"0,x,1", whole, "GPU-aa000000-0", `"x" is not one`},
		{"1,1", whole, "", "is there twice"},
		{"GPU-b,0", whole, "", `"GPU-b" is not one`}, // two begin so
		{"GPU-bc", whole, "GPU-bc000000-2", ""},
		{"GPU-bd000000-3,GPU-aa", whole, "GPU-bd000000-3 GPU-aa000000-0", ""},
		{"GPU-bc,GPU-bc0", whole, "", "is there twice"},
		{"GPU-bc,1", whole, "GPU-bc000000-2", `"1" is not one`},
		{"0,GPU-bc", whole, "GPU-aa000000-0", `"GPU-bc" is not one`},
		{"GPU-zz", whole, "", `"GPU-zz" is not one`},
		{"0", nil, "", "it has none"},
		{"MIG-1b-1,MIG-2a", divided, "MIG-1b-1 MIG-2a-0", ""},
		{"MIG-1", divided, "", `"MIG-1" is not one`},
		{"MIG-1a-0,GPU-aa", divided, "MIG-1a-0", `"GPU-aa" is not one`},
		{"MIG-aa", whole, "", `"MIG-aa" is not one`},
		{"1,0", divided, "MIG-1a-0 GPU-aa000000-0", ""},
		{"GPU-ab", divided, "MIG-1a-0", ""},
		{strings.Repeat("9", 300), whole, "", "is not one"},
	} {
		got, note := visible(c.env, true, c.all)
		var ids []string
		entries := strings.Split(c.env, ",")
		for i, d := range got {
			ids = append(ids, d.UUID)
			if d.Visible != strings.TrimSpace(entries[i]) {
				t.Errorf("%q: %s is to be named %q", c.env, d.UUID, d.Visible)
			}
		}
		if strings.Join(ids, " ") != c.want || c.note == "" && note != "" || !strings.Contains(note, c.note) {
			t.Errorf("%q: %v (%s), want %q (%s)", c.env, ids, note, c.want, c.note)
		}
	}
	got, _ := visible("", false, divided)
	if names(got) != "0, MIG-1a-0, MIG-1b-1, MIG-2a-0, MIG-2b-1" {
		t.Error(names(got))
	}
	if s := names([]Device{{Index: 7}, {Index: 0}, {Index: 2}, {Index: 1}, {Index: 5}, {Index: 4}}); s != "0-2, 4, 5, 7" {
		t.Error(s)
	}
}

func TestNoDriverIsNoError(t *testing.T) {
	a, b := &fake{opened: fmt.Errorf("liba is %w", errNext)}, &fake{opened: fmt.Errorf("b is %w", errNext)}
	inv := discover(t, nil, a, b)
	if len(inv.Devices) != 0 || fault.CodeOf(inv.Problem) != fault.NotFound || inv.Problem.Error() != "no NVIDIA driver is installed: liba is not there, b is not there" {
		t.Fatal(inv.Problem)
	}
	if s, err := inv.Sample(context.Background()); s != nil || err != nil {
		t.Fatal(s, err)
	}
	_, err := inv.Lease(context.Background(), "r", 2, 4, nil)
	if fault.CodeOf(err) != fault.Invalid || err.Error() != "asked for 8 GPUs (4 workers x 2), this machine has none: "+inv.Problem.Error() {
		t.Fatal(err)
	}
	// The second is asked where the first is not there.
	inv = discover(t, nil, &fake{opened: fmt.Errorf("liba is %w", errNext)}, &fake{all: gpus(2)})
	if inv.Problem != nil || inv.Source() != "fake" || names(inv.Devices) != "0, 1" || inv.Total != 2 {
		t.Fatal(inv)
	}
}

// After a failure, of any kind, the driver is not called again.
func TestFailureIsTheLastCall(t *testing.T) {
	boom := errors.New("boom")
	for name, f := range map[string]*fake{"open": {opened: boom}, "list": {all: gpus(1), listed: boom}} {
		second := &fake{all: gpus(1)}
		g := newGuard([]source{f, second})
		ask := func() error {
			return g.call(context.Background(), time.Minute, "listing", func(ctx context.Context, s source) error {
				_, _, err := s.list(ctx)
				return err
			})
		}
		if err := ask(); !errors.Is(err, boom) {
			t.Fatal(name, err)
		}
		calls := f.calls.Load()
		if err := ask(); !errors.Is(err, boom) || f.calls.Load() != calls || second.calls.Load() != 0 {
			t.Errorf("%s: %v after %d calls, then %d; %d of the second", name, err, calls, f.calls.Load(), second.calls.Load())
		}
	}
	// A panic too.
	g := newGuard([]source{&fake{}})
	for range 2 {
		n := 0
		err := g.call(context.Background(), time.Minute, "x", func(context.Context, source) error { n++; panic("no such function") })
		if fault.CodeOf(err) != fault.Internal || n > 1 {
			t.Fatal(err)
		}
	}
}

// A driver that hangs is waited for once, for the given time; a caller that gives up earlier does no harm.
func TestHangingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{all: gpus(2)}
		o := &Options{sources: []source{f}}
		inv, err := Discover(context.Background(), o)
		if err != nil || len(inv.Devices) != 2 {
			t.Fatal(err)
		}
		f.block = make(chan struct{})
		// Given up by its caller, then answered.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := inv.Sample(ctx); fault.CodeOf(err) != fault.Canceled {
			t.Fatal(err)
		}
		f.block <- struct{}{}
		synctest.Wait()
		close(f.block)
		if s, err := inv.Sample(context.Background()); err != nil || s[1].Power != 100 {
			t.Fatal(s, err)
		}
		f.block = make(chan struct{})
		start := time.Now()
		errs := make(chan error)
		for range 3 {
			go func() {
				_, err := inv.Sample(context.Background())
				errs <- err
			}()
		}
		for range 3 {
			if err := <-errs; fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "hangs: measuring the GPUs took more than 10s, and it is not asked again") {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Fatal(d)
		}
		calls := f.calls.Load()
		close(f.block) // it answers after all: too late
		synctest.Wait()
		if _, err := inv.Sample(context.Background()); fault.CodeOf(err) != fault.Unavailable || f.calls.Load() != calls {
			t.Fatalf("%v; %d calls, before %d", err, f.calls.Load(), calls)
		}
		if time.Since(start) != 10*time.Second {
			t.Fatal("waited again")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fake{all: gpus(2), block: make(chan struct{})}
		inv, err := Discover(context.Background(), &Options{sources: []source{f}})
		if err != nil || len(inv.Devices) != 0 || !strings.Contains(inv.Problem.Error(), "hangs: listing the GPUs took more than 30s") {
			t.Fatal(inv, err)
		}
		close(f.block)
	})
}

// script makes an nvidia-smi.
func script(t *testing.T, text string) source {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return &smi{}
}

const goodSmi = `
case "$1" in
--query-gpu=index,uuid,name,memory.total)
	echo "0, GPU-5d5ba0d6, NVIDIA A100-SXM4-40GB, 40960"
	echo "1, GPU-e1b4f00d, NVIDIA A100-SXM4-40GB, 40960"
	echo "2, GPU-99999999, NVIDIA Thing, [N/A]";;
-L)
	echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)"
	echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-e1b4f00d)"
	echo "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef)"
	echo "  MIG 1g.5gb      Device  1: (UUID: MIG-0b0b0b0b)"
	echo "GPU 2: NVIDIA Thing (UUID: GPU-99999999)";;
--query-gpu=uuid,utilization.gpu,memory.used,temperature.gpu,power.draw)
	echo "GPU-5d5ba0d6, 37, 1024, 45, 61.50"
	echo "GPU-e1b4f00d, [N/A], 2048, 40, 50"
	echo "GPU-99999999, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]";;
*) echo "unknown: $*" >&2; exit 2;;
esac
`

func TestNvidiaSmi(t *testing.T) {
	inv := discover(t, nil, script(t, goodSmi))
	if inv.Problem != nil || inv.Source() != "nvidia-smi" {
		t.Fatal(inv.Problem)
	}
	want := []Device{{Index: 0, UUID: "GPU-5d5ba0d6", Name: "NVIDIA A100-SXM4-40GB", Memory: 40 << 30, Visible: "0"},
		{Index: 1, UUID: "MIG-c6d4f1ef", Name: "NVIDIA A100-SXM4-40GB MIG 3g.20gb", Parent: "GPU-e1b4f00d", Visible: "MIG-c6d4f1ef"},
		{Index: 1, UUID: "MIG-0b0b0b0b", Name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb", Parent: "GPU-e1b4f00d", Visible: "MIG-0b0b0b0b"},
		{Index: 2, UUID: "GPU-99999999", Name: "NVIDIA Thing", Visible: "2"}}
	if !slices.Equal(inv.Devices, want) {
		t.Fatalf("%+v", inv.Devices)
	}
	s, err := inv.Sample(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if s[0].Utilisation != 0.37 || s[0].Memory != 1<<30 || s[0].Temperature != 45 || s[0].Power != 61.5 || s[0].Err != nil {
		t.Errorf("%+v", s[0])
	}
	if s[1].Utilisation == s[1].Utilisation || s[1].Memory == s[1].Memory || s[1].Temperature != 40 || s[1].Device.UUID != "MIG-c6d4f1ef" {
		t.Errorf("%+v", s[1])
	}
	if s[3].Err == nil || !strings.Contains(s[3].Err.Error(), "GPU 2 (GPU-99999999) is lost") || !math.IsNaN(s[3].Power) {
		t.Errorf("%+v", s[3])
	}
	gone, err := inv.Sample(context.Background(), Device{Index: 8, UUID: "GPU-8"})
	if err != nil || gone[0].Err == nil {
		t.Error(gone, err)
	}
}

// Of what nvidia-smi says only so much is kept, though it says more.
func TestMuchOutput(t *testing.T) {
	s := script(t, fmt.Sprintf("head -c %d /dev/zero", 3*maxOutput)).(*smi)
	if err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := s.run(t.Context())
	if err != nil || len(out) != maxOutput {
		t.Errorf("%d bytes, not %d: %v", len(out), maxOutput, err)
	}
}

func TestBrokenNvidiaSmi(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"no driver":    {"echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\"\nexit 9", "exit status 9: NVIDIA-SMI has failed because"},
		"says nothing": {"exit 1", "nvidia-smi failed"},
		"nonsense":     {"echo hello", `answers "hello" where index,uuid,name,memory.total were asked for`},
		"other fields": {"echo 'x, y, z, 4'", `index "x" with UUID "y"`},
		"killed":       {"kill -9 $$", "signal: killed"},
		"endless":      {"exec yes", "hangs"},
		"hangs":        {"exec sleep 1000", "hangs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := script(t, c.text)
			inv, err := Discover(context.Background(), &Options{sources: []source{s}, Timeout: 2 * time.Second})
			if err != nil || inv.Problem == nil || !strings.Contains(inv.Problem.Error(), c.says) || len(inv.Devices) != 0 {
				t.Fatal(inv.Problem, err)
			}
			if _, err := inv.Lease(context.Background(), "r", 1, 1, nil); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.says) {
				t.Error(err)
			}
		})
	}
}

// describeMachine is a process that says what it finds, twice, and goes on living.
func describeMachine() {
	for range 2 {
		inv, err := Discover(context.Background(), &Options{Timeout: time.Second})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Printf("%s found %d, %v\n", inv.Source(), len(inv.Devices), inv.Problem)
		samples, err := inv.Sample(context.Background(), append(inv.Devices, Device{UUID: "GPU-none"})...)
		for _, s := range samples {
			fmt.Printf("%s: memory %v, power %v\n", s.Device.UUID, s.Memory, s.Power)
		}
		if err != nil {
			fmt.Println("sample:", err)
		}
	}
	fmt.Println("alive")
	os.Exit(0)
}

// This machine, whatever it has.
func TestThisMachine(t *testing.T) {
	inv, err := Discover(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v, %v", inv.Source(), inv.Devices, inv.Problem)
	if len(inv.Devices) == 0 && inv.Problem == nil && os.Getenv("CUDA_VISIBLE_DEVICES") == "" {
		t.Error("no devices, and no reason")
	}
	if _, err := inv.Sample(context.Background()); err != nil {
		t.Error(err)
	}
}
