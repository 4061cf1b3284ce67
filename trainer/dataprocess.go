package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
)

// dataLogName is the log of this node's data process: nodes may have one folder of logs.
func (c *site) dataLogName() string {
	if c.node > 0 {
		return fmt.Sprintf("data-%d.log", c.node)
	}
	return "data.log"
}

// dataProcess makes the feeder of a process of its own. What that prints goes to dataLogName.
func (c *site) dataProcess(p *DataProcess) (feeder.Feeder, error) {
	if len(p.Argv) == 0 {
		return nil, fault.New(fault.Invalid, "a data process needs a program")
	}
	if err := os.MkdirAll(c.logs, 0o755); err != nil {
		return nil, fault.Wrap(err, fault.Place{File: c.logs})
	}
	f, err := os.OpenFile(filepath.Join(c.logs, c.dataLogName()), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
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
