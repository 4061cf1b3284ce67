// Package spec reads pipeline specs: YAML, checked key by key with line numbers,
// built into datasets.
//
// The Go types below are the only description of the format: validation, the
// published JSON Schema (docs/spec.schema.json) and decoding all follow them, by their
// json and doc tags. A struct tagged oneof:"true" wants exactly one of its keys (on_error apart);
// one tagged scalar:"key" may be written as text, which is the value of that key. min bounds a number; so do least and most in the JSON Schema alone, where
// what they stand for is checked elsewhere, in words of its own.
// A [Size], or an int64 whose key ends in _bytes, is written as [ParseSize] reads it.
package spec

import (
	"encoding/json"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/mask"
	"github.com/penstock-data/penstock/io/binio"
	"github.com/penstock-data/penstock/io/blobcache"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/io/textio"
)

// Spec is a whole file.
type Spec struct {
	Version int     `json:"version" doc:"version of the format: 1" required:"true"`
	Name    string  `json:"name,omitempty" doc:"name of the job, for messages"`
	Source  Source  `json:"source" doc:"where rows come from" required:"true"`
	Steps   []Step  `json:"steps,omitempty" doc:"what happens to them, in order"`
	Sink    *Sink   `json:"sink,omitempty" doc:"where they go; needed by penstock run"`
	Shards  *Shards `json:"shards,omitempty" doc:"how they become batches of ranks; needed by penstock batches, replay and train"`
	Train   *Train  `json:"train,omitempty" doc:"how they train a model; for penstock train"`
	Run     Run     `json:"run,omitzero" doc:"how it runs"`

	doc *document

	// What the steps give up to the first one that is wrong and could have changed the columns; whole
	// where there is none. Of build, for Mistakes. broken reports whether the value at a path is wrong;
	// nil: none is.
	sound  *dataset.Dataset
	whole  bool
	broken func(path string) bool

	secrets  *mask.Set // of Trust; may be nil
	withheld []error   // what was left out, as the spec is not trusted with it
	blind    bool      // the sources must not be asked for anything
	mute     bool      // source and steps have references that were not replaced, so they say nothing
	modules  string    // real path of the folder of Python modules, where it is this user's own; "": that of the file

	cache *blobcache.Cache // of Cache()
	warn  func(error)      // of OnWarning()
}

// Source is one of the formats.
type Source struct {
	_       struct{}           `oneof:"true"`
	Parquet *parquetio.Options `json:"parquet,omitempty" doc:"Parquet files"`
	CSV     *csvio.Options     `json:"csv,omitempty" doc:"CSV files"`
	JSON    *jsonio.Options    `json:"json,omitempty" doc:"JSON: lines, arrays, or values one behind another"`
	IPC     *ipcio.Options     `json:"ipc,omitempty" doc:"Arrow IPC files or streams"`
	Text    *textio.Options    `json:"text,omitempty" doc:"lines of text: column text"`
	Binary  *binio.Options     `json:"binary,omitempty" doc:"whole files: columns path and bytes"`
	Range   *RangeOptions      `json:"range,omitempty" doc:"the numbers 0 to n-1: column id"`
	Mix     *Mix               `json:"mix,omitempty" doc:"samples of several sources, by weights; for shards only, and no step may follow"`
}

// RangeOptions of source range.
type RangeOptions struct {
	N int64 `json:"n" doc:"how many" required:"true" least:"0" most:"1099511627776"`
}

// Step is one verb, with the policy for rows that it cannot process.
type Step struct {
	_           struct{}          `oneof:"true"`
	Filter      *string           `json:"filter,omitempty" doc:"keep the rows for which this expression is true"`
	WithColumns Ordered           `json:"with_columns,omitempty" doc:"add or replace columns: name to expression"`
	Select      []string          `json:"select,omitempty" doc:"keep these columns, in this order"`
	Drop        []string          `json:"drop,omitempty" doc:"leave these columns out"`
	Rename      map[string]string `json:"rename,omitempty" doc:"old name to new name"`
	Cast        map[string]string `json:"cast,omitempty" doc:"column to type"`
	Limit       *int64            `json:"limit,omitempty" doc:"the first n rows" least:"0"`
	Explode     *string           `json:"explode,omitempty" doc:"one row for every element of this list column"`
	Map         *Function         `json:"map,omitempty" doc:"a function that this binary has registered by name"`
	Exec        *Exec             `json:"exec,omitempty" doc:"a pool of child processes that speak Arrow IPC on stdin and stdout; what the program does is not part of the job's fingerprint: set run.id when it changes"`
	Python      *Python           `json:"python,omitempty" doc:"a function in Python, in processes of its own; what it does is not part of the job's fingerprint: set run.id when it changes"`
	Sample      *Sample           `json:"sample,omitempty" doc:"a fraction of the rows, by hash: the same ones in every run"`
	Split       *Split            `json:"split,omitempty" doc:"one of several disjoint parts of the rows, by hash: train and test"`
	Union       []Branch          `json:"union,omitempty" doc:"then the rows of these"`
	Pack        *Pack             `json:"pack,omitempty" doc:"samples of a fixed number of tokens from lists of them, in each window of the shuffle; for shards only, and the last step"`
	OnError     *OnError          `json:"on_error,omitempty" doc:"for rows that this step cannot process; default: the run's"`
}

// Ordered is a mapping that keeps its order.
type Ordered []Entry

// Entry of an Ordered.
type Entry struct{ Key, Value string }

// Function names registered code.
type Function struct {
	Name      string          `json:"function" doc:"registered name" required:"true"`
	Config    json.RawMessage `json:"config,omitempty" doc:"given to the function's constructor"`
	BatchRows int             `json:"batch_rows,omitempty" doc:"most rows per call" least:"0"`
}

// Exec is a step run by child processes.
type Exec struct {
	Command   []string `json:"command" doc:"program and arguments" required:"true"`
	Env       []string `json:"env,omitempty" doc:"variables to pass on (NAME) or set (NAME=value)"`
	Workers   int      `json:"workers,omitempty" doc:"processes; default: one per CPU" least:"0" most:"4096"`
	BatchRows int      `json:"batch_rows,omitempty" doc:"most rows per batch; default 1024" least:"0"`
	Timeout   Duration `json:"timeout,omitempty" doc:"per batch; default 5m"`
	Flat      bool     `json:"flat,omitempty" doc:"the child may change the number of rows; it adds column __parent"`
	Schema    Ordered  `json:"schema,omitempty" doc:"columns of what it returns: name to type; default: those of its input"`
}

// Sample is a fraction by hash.
type Sample struct {
	Fraction float64 `json:"fraction" doc:"of the rows, 0 to 1" required:"true" least:"0" most:"1"`
	Seed     uint64  `json:"seed,omitempty" doc:"another seed, other rows"`
}

// Split is one part of a division by hash.
type Split struct {
	Fractions []float64 `json:"fractions" doc:"sizes of the parts, e.g. [0.9, 0.1]" required:"true"`
	Take      int       `json:"take" doc:"which part, from 0" required:"true" least:"0"`
	Seed      uint64    `json:"seed,omitempty" doc:"another seed, another division"`
	Key       []string  `json:"key,omitempty" doc:"rows with equal values here stay together"`
}

// Branch is another input of a union.
type Branch struct {
	Source Source `json:"source" doc:"where rows come from" required:"true"`
	Steps  []Step `json:"steps,omitempty" doc:"what happens to them, in order"`
}

// OnError is a policy; written as text it is its name.
type OnError struct {
	_          struct{} `scalar:"policy"`
	Policy     string   `json:"policy,omitempty" doc:"fail (default), skip or retry" enum:"fail|skip|retry"`
	Retries    int      `json:"retries,omitempty" doc:"how often a failed call is run again first" least:"0"`
	MaxRows    int64    `json:"max_rows,omitempty" doc:"more skipped rows than this fail the run" least:"0"`
	MaxRate    float64  `json:"max_rate,omitempty" doc:"a larger share of skipped rows fails the run" least:"0" most:"1"`
	DeadLetter string   `json:"dead_letter,omitempty" doc:"folder or bucket URL for skipped rows (run.on_error only)"`
}

// Sink is one of the destinations.
type Sink struct {
	_       struct{}     `oneof:"true"`
	Count   *struct{}    `json:"count,omitempty" doc:"decode and compute everything, keep nothing: for measuring"`
	Parquet *ParquetSink `json:"parquet,omitempty" doc:"Parquet files"`
	CSV     *CSVSink     `json:"csv,omitempty" doc:"CSV files"`
	JSON    *JSONSink    `json:"json,omitempty" doc:"JSON lines"`
	IPC     *IPCSink     `json:"ipc,omitempty" doc:"Arrow IPC files"`
}

// Output is common to sinks that write files.
type Output struct {
	Path        string   `json:"path" doc:"folder or bucket URL" required:"true"`
	Mode        string   `json:"mode,omitempty" doc:"what to do with another job's output there: error (default), append or overwrite" enum:"error|append|overwrite"`
	PartitionBy []string `json:"partition_by,omitempty" doc:"key=value folders of these columns"`
	TargetSize  Size     `json:"target_size,omitempty" doc:"files end at this size, and small neighbours in a folder are joined up to it at the end of the job: those of less than half of it with partition_by, without of less than a 32nd; default 256MiB" min:"1"`
}

type (
	ParquetSink struct {
		Output
		parquetio.EncodingOptions
	}
	CSVSink struct {
		Output
		csvio.EncodingOptions
	}
	JSONSink struct {
		Output
		jsonio.EncodingOptions
	}
	IPCSink struct {
		Output
		ipcio.EncodingOptions
	}
)

// Run is how a spec runs.
type Run struct {
	ID           string   `json:"id,omitempty" doc:"name of the job for resuming; default: a fingerprint of spec and data (of a local file: its size and its footer, or its ends; one that is changed in its midst alone is the same). The same name again is the same job: nothing is done twice, also with mode append"`
	Cache        *Cache   `json:"cache,omitempty" doc:"keeps what is fetched from buckets on local disk"`
	Memory       Size     `json:"memory,omitempty" doc:"byte budget, e.g. 512MiB, at least 1MiB; default: half of what is available, at most 4GiB" min:"1048576"`
	CPUs         int      `json:"cpus,omitempty" doc:"tasks that compute at once; default: all" least:"0"`
	Seed         uint64   `json:"seed,omitempty" doc:"keys random()"`
	Epoch        uint64   `json:"epoch,omitempty" doc:"keys random() too"`
	Ordered      *bool    `json:"ordered,omitempty" doc:"false: rows as they are ready, and any of them pass a limit (outputs without one are the same); default true"`
	StallTimeout Duration `json:"stall_timeout,omitempty" doc:"a run in which nothing moves for so long fails; default 5m"`
	CallTimeout  Duration `json:"call_timeout,omitempty" doc:"bounds one call of a step; default none"`
	OnError      *OnError `json:"on_error,omitempty" doc:"for rows that cannot be read, and for steps without their own"`
}

// Size is a number of bytes, written 512MiB, 1.5GB or 1024.
type Size int64

// Duration is written 90s, 5m, 1h30m.
type Duration time.Duration
