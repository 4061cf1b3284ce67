//go:build linux && cgo

package device

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/penstock-data/penstock/internal/fault"
)

// a100s is NVIDIA's mock of a machine of eight, with the functions that it leaves out.
func a100s() *server.Server {
	s := dgxa100.New()
	for i, d := range s.Devices {
		d := d.(*server.Device)
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: uint32(10 * i)}, nvml.SUCCESS }
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return uint32(30 + i), nvml.SUCCESS }
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return uint32(100_500 + i), nvml.SUCCESS }
	}
	return s
}

func device(s *server.Server, i int) *server.Device { return s.Devices[i].(*server.Device) }

func TestNVML(t *testing.T) {
	s := a100s()
	env := "3,1"
	inv := discover(t, &env, &nvmlSource{lib: s})
	if inv.Problem != nil || inv.Source() != "NVML" || inv.Total != 8 || names(inv.Devices) != "1, 3" {
		t.Fatal(inv)
	}
	d := inv.Devices[0]
	if d.Index != 3 || d.UUID != device(s, 3).UUID || d.Name != device(s, 3).Config.Name || d.Memory != int64(device(s, 3).MemoryInfo.Total) || d.Memory == 0 || d.Visible != "3" {
		t.Errorf("%+v", d)
	}
	got, err := inv.Sample(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if g := got[1]; g.Device.Index != 1 || g.Utilisation != 0.1 || g.Temperature != 31 || g.Power != 100.501 || g.Memory != float64(device(s, 1).MemoryInfo.Used) || g.Err != nil {
		t.Errorf("%+v", g)
	}
}

// A GPU that is lost is no more asked; the others are, and what one does not tell is NaN.
func TestLostGPU(t *testing.T) {
	s := a100s()
	inv := discover(t, nil, &nvmlSource{lib: s})
	lost := func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	device(s, 2).GetMemoryInfoFunc = lost
	device(s, 3).GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	for range 2 {
		got, err := inv.Sample(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if e := got[2].Err; fault.CodeOf(e) != fault.Unavailable || !strings.Contains(e.Error(), "GPU 2 (") || !math.IsNaN(got[2].Power) {
			t.Errorf("%+v", got[2])
		}
		if got[3].Err != nil || !math.IsNaN(got[3].Power) || got[3].Temperature != 33 || got[7].Power != 100.507 {
			t.Errorf("%+v %+v", got[3], got[7])
		}
	}
	if n := len(device(s, 2).GetMemoryInfoCalls()); n != 2 { // once when it was listed
		t.Errorf("asked %d times", n)
	}
	// Lost before: the others are there.
	inv = discover(t, nil, &nvmlSource{lib: s})
	if len(inv.Devices) != 7 || inv.Problem == nil || !strings.Contains(inv.Problem.Error(), "GPU 2 cannot be used") {
		t.Errorf("%d, %v", len(inv.Devices), inv.Problem)
	}
}

// A failed Init is the last call of all: any other would end the process.
func TestFailingInit(t *testing.T) {
	for ret, code := range map[nvml.Return]fault.Code{nvml.ERROR_LIBRARY_NOT_FOUND: fault.NotFound, nvml.ERROR_DRIVER_NOT_LOADED: fault.NotFound,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: fault.Unavailable, nvml.ERROR_NO_PERMISSION: fault.Denied, nvml.ERROR_UNKNOWN: fault.Unavailable} {
		inits := 0
		lib := &mock.Interface{InitFunc: func() nvml.Return { inits++; return ret }} // every other call panics
		src := &nvmlSource{lib: lib}
		inv := discover(t, nil, src)
		if fault.CodeOf(inv.Problem) != code || len(inv.Devices) != 0 {
			t.Errorf("%v: %v: %v", ret, fault.CodeOf(inv.Problem), inv.Problem)
		}
		_, err := inv.Sample(context.Background(), Device{UUID: "GPU-x"})
		if !errors.Is(err, inv.Problem) || inits != 1 {
			t.Errorf("%v: %v after %d calls of Init", ret, err, inits)
		}
	}
}

// A symbol that the driver lacks is not called.
func TestOldDriver(t *testing.T) {
	s := a100s()
	s.LookupSymbolFunc = func(name string) error {
		if name == "nvmlDeviceGetPowerUsage" || name == "nvmlDeviceGetMigMode" {
			return errors.New("undefined symbol")
		}
		return nil
	}
	for i := range s.Devices {
		device(s, i).GetPowerUsageFunc, device(s, i).GetMigModeFunc = nil, nil // a call panics
	}
	inv := discover(t, nil, &nvmlSource{lib: s})
	got, err := inv.Sample(context.Background())
	if err != nil || inv.Problem != nil || !math.IsNaN(got[0].Power) || got[0].Temperature != 30 {
		t.Fatal(got, err, inv.Problem)
	}
	s.LookupSymbolFunc = func(name string) error { return errors.New("undefined symbol") }
	if inv = discover(t, nil, &nvmlSource{lib: s}); fault.CodeOf(inv.Problem) != fault.Unsupported {
		t.Fatal(inv.Problem)
	}
}

// The library fails as a whole later on: samples are over, and nothing else is.
func TestLibraryFailsLater(t *testing.T) {
	s := a100s()
	inv := discover(t, nil, &nvmlSource{lib: s})
	device(s, 5).GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_UNINITIALIZED }
	_, first := inv.Sample(context.Background())
	if fault.CodeOf(first) != fault.Unavailable || !strings.Contains(first.Error(), "nvmlDeviceGetTemperature of NVML failed") {
		t.Fatal(first)
	}
	n := len(device(s, 0).GetMemoryInfoCalls())
	if _, err := inv.Sample(context.Background()); !errors.Is(err, first) || len(device(s, 0).GetMemoryInfoCalls()) != n {
		t.Fatal(err)
	}
	l, err := inv.Lease(context.Background(), "r", 2, 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
}

func TestHangingInit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		lib := &mock.Interface{InitFunc: func() nvml.Return { <-hang; return nvml.SUCCESS }}
		inv, err := Discover(context.Background(), &Options{sources: []source{&nvmlSource{lib: lib}, &fake{all: gpus(1)}}})
		if err != nil || !strings.Contains(inv.Problem.Error(), "hangs") {
			t.Fatal(inv, err)
		}
		close(hang)
	})
}

func TestDividedGPUs(t *testing.T) {
	s := a100s()
	d := device(s, 1)
	d.MigMode = nvml.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i%3 != 0 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc:       func() (string, nvml.Return) { return "MIG-" + string(rune('a'+i)), nvml.SUCCESS },
			GetNameFunc:       func() (string, nvml.Return) { return "MIG 1g.5gb", nvml.SUCCESS },
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 5 << 30, Used: 1 << 30}, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	inv := discover(t, nil, &nvmlSource{lib: s})
	if names(inv.Devices) != "0, 2-7, MIG-a, MIG-d, MIG-g" {
		t.Fatal(names(inv.Devices))
	}
	got, err := inv.Sample(context.Background(), inv.Devices[1])
	if err != nil || got[0].Memory != 1<<30 || got[0].Temperature != 31 || !math.IsNaN(got[0].Utilisation) {
		t.Fatal(got, err)
	}
	// Workers with one device may have instances, those with two may not.
	l, err := inv.Lease(context.Background(), "r", 1, 10, nil)
	if err != nil || l.Env(1)[0] != "CUDA_VISIBLE_DEVICES=MIG-a" {
		t.Fatal(l, err)
	}
	l.Release()
	if _, err = inv.Lease(context.Background(), "r", 2, 4, nil); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "this machine has 7: 0, 2-7 beside 3 instances") {
		t.Fatal(err)
	}
}

// fakeLibrary is what libnvidia-ml.so.1 exports, as far as an old driver goes: no sensors, and no divided GPUs.
const fakeLibrary = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int mode(const char *m) { return !strcmp(getenv("PENSTOCK_DEVICE_FAKE"), m); }
int nvmlInit_v2(void) { if (mode("hang")) for (;;) pause(); return mode("fail") ? 999 : 0; }
const char *nvmlErrorString(int e) { return "unknown error"; }
#ifdef WHOLE
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *d, char *b, unsigned n) { snprintf(b, n, "GPU-fake-%ld", (long)d - 1); return 0; }
int nvmlDeviceGetName(void *d, char *b, unsigned n) { snprintf(b, n, "Fake"); return 0; }
int nvmlDeviceGetMemoryInfo(void *d, struct memory *m) { m->total = 1000; m->used = 100 * (long)d; m->free = 1000 - m->used; return mode("lost") ? 15 : 0; }
#endif
`

// The library itself, in place of the mock: what it lacks would end the process where it is called, as would any call after a failed Init.
func TestProcessOutlivesItsLibrary(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Fatal("this build has cgo, and there is no C compiler: ", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	src := filepath.Join(dir, "fake.c")
	if err := os.WriteFile(src, []byte(fakeLibrary), 0o600); err != nil {
		t.Fatal(err)
	}
	build := func(name string, flags ...string) string {
		lib := filepath.Join(dir, name)
		if err := os.Mkdir(lib, 0o700); err != nil {
			t.Fatal(err)
		}
		args := append(flags, "-shared", "-fPIC", "-o", filepath.Join(lib, "libnvidia-ml.so.1"), src)
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return lib
	}
	whole, bare, damaged := build("whole", "-DWHOLE"), build("bare"), filepath.Join(dir, "damaged")
	if err := errors.Join(os.Mkdir(damaged, 0o700), os.WriteFile(filepath.Join(damaged, "libnvidia-ml.so.1"), []byte("no library, in place of this machine's"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ lib, mode, says string }{
		{whole, "good", "NVML found 2, <nil>\nGPU-fake-0: memory 100, power NaN\nGPU-fake-1: memory 200, power NaN\nGPU-none: memory NaN, power NaN\n"},
		{bare, "good", " found 0, the NVIDIA driver is too old: its library has no nvmlDeviceGetCount_v2\n"},
		{whole, "lost", "NVML found 0, GPU 0 cannot be used: unknown error; GPU 1 cannot be used: unknown error\n"},
		{bare, "fail", " found 0, nvmlInit of NVML failed (999: unknown error)"},
		{whole, "fail", " found 0, nvmlInit of NVML failed (999: unknown error)"},
		{whole, "hang", " found 0, the GPUs' driver hangs: listing the GPUs took more than 1s"},
		{damaged, "none", " found 0, no NVIDIA driver is installed: libnvidia-ml.so.1 is not there, nvidia-smi is not there\n"},
	} {
		cmd := exec.Command(self)
		cmd.Env = []string{"LD_LIBRARY_PATH=" + c.lib, "PENSTOCK_DEVICE_FAKE=" + c.mode, "PATH=" + dir}
		out, err := cmd.CombinedOutput()
		if text := string(out); err != nil || !strings.HasPrefix(text, c.says) || strings.Count(text, c.says) != 2 || !strings.HasSuffix(text, "alive\n") {
			t.Errorf("%s, %s: %v:\n%s", filepath.Base(c.lib), c.mode, err, text)
		}
	}
}
