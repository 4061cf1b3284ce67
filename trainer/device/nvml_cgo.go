//go:build linux && cgo

package device

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/penstock-data/penstock/internal/fault"
)

// native is the driver's own library.
func native() []source { return []source{&nvmlSource{lib: nvml.New()}} }

// nvmlSource asks NVML. It is never shut down: the process keeps it.
type nvmlSource struct {
	lib     nvml.Interface
	lacks   map[string]bool        // symbols that this driver does not have: calling one ends the process
	handles map[string]nvml.Device // by UUID
	lost    map[string]error
}

func (*nvmlSource) name() string { return "NVML" }

// needed and useful are the functions of the library that are called: without the former nothing works.
var (
	needed = []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"}
	useful = []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUtilizationRates",
		"nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage"}
)

func (s *nvmlSource) open(context.Context) error {
	switch ret := s.lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("libnvidia-ml.so.1 is %w", errNext)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fault.New(fault.NotFound, "the NVIDIA driver is not loaded")
	default:
		return failure("nvmlInit", ret)
	}
	s.lacks, s.handles, s.lost = map[string]bool{}, map[string]nvml.Device{}, map[string]error{}
	for _, f := range needed {
		if err := s.lib.Extensions().LookupSymbol(f); err != nil {
			return fault.New(fault.Unsupported, "the NVIDIA driver is too old: its library has no %s", f)
		}
	}
	for _, f := range useful {
		s.lacks[f] = s.lib.Extensions().LookupSymbol(f) != nil
	}
	return nil
}

// failure is the error for what a function returned.
func failure(function string, ret nvml.Return) error {
	code := fault.Unavailable
	if ret == nvml.ERROR_NO_PERMISSION {
		code = fault.Denied
	}
	return fault.New(code, "%s of NVML failed (%d: %s); it is not called again by this process; see whether nvidia-smi works", function, int(ret), nvml.ErrorString(ret))
}

// lostCodes are about one device; others work on.
func isLost(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_NOT_FOUND, nvml.ERROR_IRQ_ISSUE, nvml.ERROR_INSUFFICIENT_POWER:
		return true
	}
	return false
}

// isSilent are the answers of a device that does not tell this.
func isSilent(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NO_DATA, nvml.ERROR_NOT_READY, nvml.ERROR_UNKNOWN:
		return true
	}
	return false
}

func (s *nvmlSource) list(context.Context) (all []gpu, notes []string, err error) {
	n, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, failure("nvmlDeviceGetCount", ret)
	}
	for i := range n {
		h, ret := s.lib.DeviceGetHandleByIndex(i)
		var d Device
		if ret == nvml.SUCCESS {
			d, ret = s.describe(h)
		}
		switch {
		case ret == nvml.SUCCESS:
		case isLost(ret) || ret == nvml.ERROR_NO_PERMISSION:
			notes = append(notes, fmt.Sprintf("GPU %d cannot be used: %s", i, nvml.ErrorString(ret)))
			continue
		default:
			return nil, nil, failure(fmt.Sprintf("a query of GPU %d", i), ret)
		}
		d.Index, d.Visible = i, fmt.Sprint(i)
		g := gpu{Device: d}
		if g.mig = s.divided(h); g.mig {
			g.instances = s.instances(h, g.Device)
		}
		all = append(all, g)
	}
	return all, notes, nil
}

// describe fills in what every device has, and keeps its handle.
func (s *nvmlSource) describe(h nvml.Device) (d Device, ret nvml.Return) {
	if d.UUID, ret = h.GetUUID(); ret != nvml.SUCCESS {
		return d, ret
	}
	if d.Name, ret = h.GetName(); ret != nvml.SUCCESS {
		return d, ret
	}
	m, ret := h.GetMemoryInfo()
	if isLost(ret) {
		return d, ret
	}
	if ret == nvml.SUCCESS { // devices that share the machine's memory have none
		d.Memory = int64(m.Total)
	}
	s.handles[d.UUID] = h
	return d, nvml.SUCCESS
}

func (s *nvmlSource) divided(h nvml.Device) bool {
	if s.lacks["nvmlDeviceGetMigMode"] {
		return false
	}
	mode, _, ret := h.GetMigMode()
	return ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
}

func (s *nvmlSource) instances(h nvml.Device, of Device) (out []Device) {
	if s.lacks["nvmlDeviceGetMaxMigDeviceCount"] || s.lacks["nvmlDeviceGetMigDeviceHandleByIndex"] {
		return nil
	}
	n, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	for i := range n {
		m, ret := h.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // not all places are taken
		}
		if d, ret := s.describe(m); ret == nvml.SUCCESS {
			d.Index, d.Parent, d.Visible = of.Index, of.UUID, d.UUID
			out = append(out, d)
		}
	}
	return out
}

func (s *nvmlSource) sample(_ context.Context, of []Device) ([]Sample, error) {
	out := make([]Sample, len(of))
	for i, d := range of {
		out[i] = unknown(d)
		if err := s.measure(&out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// measure asks for each number in turn, until the device is lost. An error is one of the library.
func (s *nvmlSource) measure(to *Sample) error {
	id := to.Device.UUID
	h := s.handles[id]
	if to.Err = s.lost[id]; to.Err != nil {
		return nil
	}
	if h == nil {
		to.Err = fault.New(fault.Unavailable, "GPU %s was not there when devices were listed", id)
		return nil
	}
	board := h // of an instance, its GPU has the sensors
	if p := s.handles[to.Device.Parent]; p != nil {
		board = p
	}
	for _, q := range []struct {
		function string
		ask      func() nvml.Return
	}{
		{"nvmlDeviceGetMemoryInfo", func() nvml.Return {
			m, ret := h.GetMemoryInfo()
			if ret == nvml.SUCCESS {
				to.Memory = float64(m.Used)
			}
			return ret
		}},
		{"nvmlDeviceGetUtilizationRates", func() nvml.Return {
			if to.Device.Parent != "" {
				return nvml.ERROR_NOT_SUPPORTED // the GPU's would be that of all its instances
			}
			u, ret := h.GetUtilizationRates()
			if ret == nvml.SUCCESS {
				to.Utilisation = float64(u.Gpu) / 100
			}
			return ret
		}},
		{"nvmlDeviceGetTemperature", func() nvml.Return {
			t, ret := board.GetTemperature(nvml.TEMPERATURE_GPU)
			if ret == nvml.SUCCESS {
				to.Temperature = float64(t)
			}
			return ret
		}},
		{"nvmlDeviceGetPowerUsage", func() nvml.Return {
			mw, ret := board.GetPowerUsage()
			if ret == nvml.SUCCESS {
				to.Power = float64(mw) / 1000
			}
			return ret
		}},
	} {
		if s.lacks[q.function] {
			continue
		}
		switch ret := q.ask(); {
		case ret == nvml.SUCCESS || isSilent(ret):
		case isLost(ret):
			to.Err = fault.New(fault.Unavailable, "GPU %d (%s) is lost: %s; the kernel's log (dmesg, NVRM Xid) says why", to.Device.Index, id, nvml.ErrorString(ret))
			s.lost[id] = to.Err
			return nil
		default:
			return failure(q.function, ret)
		}
	}
	return nil
}
