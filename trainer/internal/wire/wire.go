// Package wire is what a worker and the controller of its run say to each other: lines of JSON over one unix socket.
// The Python package speaks it too; docs/design/0004-trainers.md says what the messages mean.
//
// A worker connects to the socket that [EnvSocket] names and says [Hello]; the controller answers [Welcome], or [Refused] and ends. Then the worker says Report, Alive, Restore, Meet and
// Done in any order, and the controller answers each Report and Restore, in order, and Meet when all have said it; Preempt and Refused come unasked. A line holds one [ToController] or
// [ToWorker], in which exactly one field is set. The hand of a node, where the run has several, speaks [FromHand] and [ToHand] with the controller in the same form.
// What a worker reports many times a second it may leave in a pipe, see [Ear]. Unknown fields are ignored, so that fields may be added; an unknown message is refused.
package wire

import (
	"encoding/json"
	"math"

	"github.com/penstock-data/penstock/internal/fault"
)

// Version of the protocol; both sides must have the same.
const Version = 2

// MaxLine is the most bytes of a line: a worker that sends more is refused.
const MaxLine = 16 << 20

// Variables in the environment of a worker, beside torchrun's.
const (
	EnvSocket  = "PENSTOCK_CONTROL" // path of the controller's socket
	EnvRun     = "PENSTOCK_RUN"     // name of the run: also marks the processes that belong to it
	EnvAttempt = "PENSTOCK_ATTEMPT" // from 1; counts the starts of the group
)

// EnvKey holds the person's key for records of runs (package store). Neither workers nor data
// processes have it.
const EnvKey = "PENSTOCK_RUN_KEY"

// ToController is a line of a worker.
type ToController struct {
	Hello   *Hello   `json:"hello,omitempty"`
	Report  *Report  `json:"report,omitempty"`
	Alive   *Alive   `json:"alive,omitempty"`
	Restore *Restore `json:"restore,omitempty"`
	Meet    *Meet    `json:"meet,omitempty"`
	Done    *Done    `json:"done,omitempty"`
}

// ToWorker is a line of the controller.
type ToWorker struct {
	Welcome  *Welcome  `json:"welcome,omitempty"`
	Reported *Reported `json:"reported,omitempty"`
	Restored *Restored `json:"restored,omitempty"`
	Met      *Met      `json:"met,omitempty"`
	Preempt  *Preempt  `json:"preempt,omitempty"`
	Refused  *Error    `json:"refused,omitempty"` // the controller gives this worker up: the last line
}

// Hello is the first line.
type Hello struct {
	Version int    `json:"version"`
	Run     string `json:"run"`
	Attempt int    `json:"attempt"`
	Rank    int    `json:"rank"`
	PID     int    `json:"pid"`
	Client  string `json:"client"` // for messages: "python 0.1.0"
}

// Welcome is all that a worker needs to know of its run.
type Welcome struct {
	Run        string          `json:"run"`
	Attempt    int             `json:"attempt"`
	Storage    string          `json:"storage"` // URL of the run's folder
	Rank       int             `json:"rank"`
	World      int             `json:"world"`
	LocalRank  int             `json:"local_rank"`
	LocalWorld int             `json:"local_world"`
	Node       int             `json:"node"`
	Nodes      int             `json:"nodes"`
	Devices    []string        `json:"devices,omitempty"` // leased to this worker: what CUDA_VISIBLE_DEVICES says, one each
	Config     json.RawMessage `json:"config"`            // an object
	Data       map[string]Data `json:"data,omitempty"`
	// Checkpoint that the group goes on from; 0: none. Its metrics; its files are asked for by Restore.
	Checkpoint int     `json:"checkpoint,omitempty"`
	Metrics    Metrics `json:"metrics,omitempty"`
	// Reports made so far by the run: the next one is Reports+1. Equal on all ranks.
	Reports int64  `json:"reports"`
	Peers   string `json:"peers,omitempty"` // folder in which ranks of this machine may listen for each other (collectives); each node has its own
}

// Data is a data set as a worker sees it.
type Data struct {
	Socket string `json:"socket"` // of shard/feed; the rank is the worker's
	Eval   bool   `json:"eval,omitempty"`
}

// Report is the N-th report of a rank; they count from Welcome.Reports+1 without a gap.
type Report struct {
	N       int64   `json:"n"`
	At      int64   `json:"at,omitempty"` // when it was made, in ns since the epoch; 0: when it arrives
	Metrics Metrics `json:"metrics,omitempty"`
	// Dir is an absolute path whose files belong to the checkpoint; "": this rank gives none.
	Dir string `json:"dir,omitempty"`
	// Data is where every training data set stands that the rank has opened.
	Data map[string]Place `json:"data,omitempty"`
	// Error is a hand's, which looks at the folder where it is: it cannot be used.
	Error *Error `json:"error,omitempty"`
}

// Place is where a data set stands after the last batch that a rank got. All ranks of an attempt begin with the same state, which the data process sees to, so epoch and step say
// all; with Dir the state comes along, which is kept.
type Place struct {
	Epoch uint64          `json:"epoch"`
	Step  int64           `json:"step"`
	State json.RawMessage `json:"state,omitempty"` // version 1, as in docs/order.md
}

// Reported answers a Report: it is kept, and where this rank gave files, committed (or, when uploads are not waited for, taken over).
type Reported struct {
	N          int64  `json:"n"`
	Checkpoint int    `json:"checkpoint,omitempty"` // its number, where the rank gave files
	Error      *Error `json:"error,omitempty"`      // it is not
}

// Alive says that the user's own thread is getting somewhere: sent from calls of the library, at most once a second, never from a thread beside.
type Alive struct {
	Step int64 `json:"step,omitempty"`
}

// Restore asks for the files of Welcome.Checkpoint.
type Restore struct{}

// Restored answers: Dir is a folder on this machine which holds them, read only, shared by all ranks.
type Restored struct {
	Dir   string `json:"dir,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// Meet says that this rank of a run on several nodes waits for all others, to compute together (trainer/collective). It is said once.
type Meet struct {
	Address string `json:"address,omitempty"` // host:port, at most MaxAddress bytes: where its left neighbour, which is on another node, finds it
}

// Met answers, when all ranks have come, or too few of them.
type Met struct {
	Address string `json:"address,omitempty"` // of the right neighbour
	Error   *Error `json:"error,omitempty"`
}

// MaxAddress is the most bytes of an address.
const MaxAddress = 300

// Preempt: the machine will be taken away. Where the worker has training data sets open, the notice counts from the batch that carries it (shard/feed), so that it is at the same step on every rank;
// else from the report Report on.
type Preempt struct {
	Reason string  `json:"reason"`
	Grace  float64 `json:"grace"`  // seconds until the group is ended
	Report int64   `json:"report"` // see above
}

// Done: the worker's loop has returned, with an error or without. It exits next.
type Done struct {
	Error *Error `json:"error,omitempty"`
}

// Error is a fault that crosses the socket.
type Error struct {
	Code  string `json:"code"` // of package fault
	Text  string `json:"text"`
	Trace string `json:"trace,omitempty"` // stack of the user's code, where there is one
}

// Metrics are numbers by name. JSON has no NaN and no infinities: these are written as the strings "NaN", "Infinity" and "-Infinity".
type Metrics map[string]float64

// MarshalJSON writes the names in order.
func (m Metrics) MarshalJSON() ([]byte, error) {
	out := make(map[string]any, len(m))
	for k, v := range m {
		switch {
		case v != v:
			out[k] = "NaN"
		case math.IsInf(v, 1):
			out[k] = "Infinity"
		case math.IsInf(v, -1):
			out[k] = "-Infinity"
		default:
			out[k] = v
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON takes numbers and the three strings, nothing else.
func (m *Metrics) UnmarshalJSON(b []byte) error {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(b, &in); err != nil {
		return fault.New(fault.Invalid, "metrics are an object of numbers: %w", err)
	}
	*m = make(Metrics, len(in))
	for k, raw := range in {
		switch string(raw) {
		case `"NaN"`:
			(*m)[k] = math.NaN()
		case `"Infinity"`:
			(*m)[k] = math.Inf(1)
		case `"-Infinity"`:
			(*m)[k] = math.Inf(-1)
		default:
			var v float64
			if raw[0] == '"' || raw[0] == 'n' || json.Unmarshal(raw, &v) != nil {
				return fault.New(fault.Invalid, "metric %q is %.40s: metrics are numbers", k, raw)
			}
			(*m)[k] = v
		}
	}
	return nil
}
