package trainer

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
)

const dataLogName = "data.log"

// dataProcess makes the feeder of a process of its own. What that prints goes to data.log.
func (c *controller) dataProcess(p *DataProcess) (feeder.Feeder, error) {
	if len(p.Argv) == 0 {
		return nil, fault.New(fault.Invalid, "a data process needs a program")
	}
	if err := os.MkdirAll(c.logs, 0o755); err != nil {
		return nil, fault.Wrap(err, fault.Place{File: c.logs})
	}
	f, err := os.OpenFile(filepath.Join(c.logs, dataLogName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: c.logs})
	}
	c.dataLog = f
	argv := slices.Clone(p.Argv)
	if p.Input != "" {
		path := filepath.Join(c.sockets.path, "input")
		if err := os.WriteFile(path, []byte(p.Input), 0o600); err != nil {
			return nil, fault.Wrap(err, fault.Place{File: path})
		}
		argv = append(argv, path)
	}
	return feeder.Process(c.sockets.path, argv, p.Env, f), nil
}
