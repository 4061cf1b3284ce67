package trainer

import (
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
)

// dataProcess makes the feeder of a process of its own.
func (c *controller) dataProcess(p *DataProcess) (feeder.Feeder, error) {
	return nil, fault.New(fault.Unsupported, "data processes")
}
