package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
)

// dataName is what this node's data process is called in logs: nodes may have one folder of them.
func (c *site) dataName() string {
	if c.node > 0 {
		return fmt.Sprintf("data-%d", c.node)
	}
	return "data"
}

// dataProcess makes the feeder of a process of its own. What that prints goes where workers' lines go.
func (c *site) dataProcess(p *DataProcess) (feeder.Feeder, error) {
	if len(p.Argv) == 0 {
		return nil, fault.New(fault.Invalid, "a data process needs a program")
	}
	log, err := c.local.Log(c.dataName())
	if err != nil {
		return nil, err
	}
	c.dataLog = log
	argv := slices.Clone(p.Argv)
	if p.Input != "" {
		path := filepath.Join(c.sockets.path, "input")
		if err := os.WriteFile(path, []byte(p.Input), 0o600); err != nil {
			return nil, fault.Wrap(err, fault.Place{File: path})
		}
		argv = append(argv, path)
	}
	return feeder.Process(c.sockets.path, argv, p.Env, log), nil
}
