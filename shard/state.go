package shard

// State is where a job stands: after which step, and which sample of every source.
// It is the same for all ranks, depends on no machine, and holds no data. Its JSON
// form is versioned; docs/order.md describes it.
type State struct {
	Version     int           `json:"version"` // 1
	Order       int           `json:"order"`   // order version: 1
	Plan        string        `json:"plan"`    // SHA-256 of the plan, in hex
	Data        string        `json:"data"`    // SHA-256 of the data's fingerprints
	Seed        uint64        `json:"seed"`
	Epoch       uint64        `json:"epoch"`
	Step        int64         `json:"step"`         // steps given in this epoch
	Sample      int64         `json:"sample"`       // samples given in this epoch, without padded and repeated ones
	GlobalBatch int64         `json:"global_batch"` // of the last step
	Length      int64         `json:"length,omitempty"`
	Weights     []WeightsAt   `json:"weights"`
	Sources     []SourceState `json:"sources"`
}

// WeightsAt are the weights of all sources from sample At of the epoch on. In JSON: [at, [w, ...]].
type WeightsAt struct {
	At      int64
	Weights []int64
}

// SourceState is the position in one source.
type SourceState struct {
	Name   string     `json:"name"`
	Mode   Mode       `json:"mode"`
	Lanes  int        `json:"lanes"`
	Window int64      `json:"window"` // units per window
	Pass   uint64     `json:"pass"`
	Pos    [][2]int64 `json:"pos"` // per lane: last window that begins before the last sample given, samples given of it
}
