package device

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// smi asks the nvidia-smi command.
type smi struct{ path string }

func (*smi) name() string { return "nvidia-smi" }

func (s *smi) open(context.Context) (err error) {
	if s.path, err = exec.LookPath("nvidia-smi"); err != nil {
		return fmt.Errorf("nvidia-smi is %w", errNext)
	}
	return nil
}

// run gives the command's output, of which it takes the first maxOutput bytes.
func (s *smi) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second // whoever else holds the pipes
	var out, bad limited
	cmd.Stdout, cmd.Stderr = &out, &bad
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fault.New(fault.Unavailable, "nvidia-smi hangs, and is not started again by this process: %w", ctx.Err())
	case err != nil:
		// It says what is wrong on its output as well.
		text, _, _ := strings.Cut(strings.TrimSpace(bad.kept.String()+"\n"+out.kept.String()), "\n")
		return nil, fault.New(fault.Unavailable, "nvidia-smi failed, and is not started again by this process: %w: %.200s", err, text)
	}
	return out.kept.Bytes(), nil
}

// maxOutput of the command, in bytes: what comes after is dropped.
const maxOutput = 1 << 20

// limited keeps the first maxOutput bytes. It is no bytes.Buffer itself: ReadFrom of one, which io.Copy prefers, knows no limit.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.kept.Write(p[:min(len(p), maxOutput-l.kept.Len())])
	return len(p), nil
}

// query gives the rows of a query, fields of which there are n.
func (s *smi) query(ctx context.Context, n int, fields string) ([][]string, error) {
	out, err := s.run(ctx, "--query-gpu="+fields, "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	r := csv.NewReader(bytes.NewReader(out))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, n, true
	var rows [][]string
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			text, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
			return nil, fault.New(fault.Corrupt, "nvidia-smi answers %.200q where %s were asked for: %w", text, fields, err)
		}
		rows = append(rows, row)
	}
}

// instance is a line of nvidia-smi -L below its GPU's: "  MIG 1g.5gb     Device  0: (UUID: MIG-c6d4f1ef-...)".
var instance = regexp.MustCompile(`^\s+(MIG\s.*?)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)`)

func (s *smi) list(ctx context.Context) (all []gpu, notes []string, err error) {
	rows, err := s.query(ctx, 4, "index,uuid,name,memory.total")
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		i, err := strconv.Atoi(r[0])
		if err != nil || !strings.HasPrefix(r[1], "GPU-") {
			return nil, nil, fault.New(fault.Corrupt, "nvidia-smi lists a GPU of index %.40q with UUID %.60q", r[0], r[1])
		}
		d := Device{Index: i, UUID: r[1], Name: r[2], Visible: r[0]}
		if mib := number(r[3]); mib == mib {
			d.Memory = int64(mib) << 20
		}
		all = append(all, gpu{Device: d})
	}
	out, err := s.run(ctx, "-L")
	if err != nil {
		return nil, nil, err
	}
	at := -1
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "GPU ") {
			at = -1
			for i := range all {
				if strings.Contains(line, all[i].UUID) {
					at = i
				}
			}
		} else if m := instance.FindStringSubmatch(line); m != nil && at >= 0 {
			g := &all[at]
			g.mig = true
			g.instances = append(g.instances, Device{Index: g.Index, UUID: m[2], Name: g.Name + " " + m[1], Parent: g.UUID, Visible: m[2]})
		}
	}
	return all, nil, nil
}

// number of a field; NaN where nvidia-smi has none: "[N/A]", "[Not Supported]", "ERR!".
func number(field string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
	if err != nil {
		return unknown(Device{}).Power
	}
	return v
}

func (s *smi) sample(ctx context.Context, of []Device) ([]Sample, error) {
	rows, err := s.query(ctx, 5, "uuid,utilization.gpu,memory.used,temperature.gpu,power.draw")
	if err != nil {
		return nil, err
	}
	out := make([]Sample, len(of))
	for i, d := range of {
		out[i] = unknown(d)
		id := d.UUID
		if d.Parent != "" {
			id = d.Parent
		}
		found := false
		for _, r := range rows {
			if r[0] != id {
				continue
			}
			found = true
			if strings.Contains(strings.ToLower(strings.Join(r, " ")), "lost") {
				out[i].Err = fault.New(fault.Unavailable, "GPU %d (%s) is lost; the kernel's log (dmesg, NVRM Xid) says why", d.Index, d.UUID)
				break
			}
			out[i].Temperature, out[i].Power = number(r[3]), number(r[4])
			if d.Parent == "" { // else those of all instances together
				out[i].Utilisation, out[i].Memory = number(r[1])/100, number(r[2])*(1<<20)
			}
		}
		if !found {
			out[i].Err = fault.New(fault.Unavailable, "GPU %d (%s) is lost: nvidia-smi does not list it any more; the kernel's log (dmesg, NVRM Xid) says why", d.Index, d.UUID)
		}
	}
	return out, nil
}
