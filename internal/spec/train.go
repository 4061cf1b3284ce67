package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Train is how a training run goes. docs/training.md says what the keys mean.
type Train struct {
	Command       []string                   `json:"command,omitempty" doc:"program and arguments of every worker, such as [python, train.py]; what follows -- on the command line takes its place"`
	Workers       int                        `json:"workers,omitempty" doc:"processes; default 1. shards.ranks does not count here" min:"1"`
	Resources     *Resources                 `json:"resources,omitempty" doc:"of each worker"`
	Name          string                     `json:"name,omitempty" doc:"of the run: letters, digits, and _ . -; default: made of the time"`
	Storage       string                     `json:"storage,omitempty" doc:"folder or bucket URL below which the run has a folder of its name; default penstock-runs"`
	Data          map[string]TrainData       `json:"data,omitempty" doc:"further data sets by name; that of this spec is train"`
	Config        map[string]json.RawMessage `json:"config,omitempty" doc:"what the workers get as their config: any values by name; kept in the record of the run, so without secrets"`
	Env           []string                   `json:"env,omitempty" doc:"variables of the workers: NAME=value, or NAME for one that must be set where the run is started; they inherit all others"`
	WorkingDir    string                     `json:"working_dir,omitempty" doc:"of the workers; default: the one that the run is started in"`
	Logs          string                     `json:"logs,omitempty" doc:"folder for what the workers print; default: that of the run in its storage, or penstock-logs/NAME where this is a bucket"`
	StartTimeout  Duration                   `json:"start_timeout,omitempty" doc:"workers that use the library connect within it; default 5m"`
	HangTimeout   *Duration                  `json:"hang_timeout,omitempty" doc:"a worker that gives no sign for so long has failed: no batch, no report; 0s: never; default 30m"`
	ReportTimeout Duration                   `json:"report_timeout,omitempty" doc:"ranks that saved wait so long for the reports of the others; default 5m"`
	StopTimeout   Duration                   `json:"stop_timeout,omitempty" doc:"from asking workers to end to ending them; default 10s"`
	Failures      *Failures                  `json:"failures,omitempty" doc:"how many the run outlives without a checkpoint in between"`
	Checkpoints   *Checkpoints               `json:"checkpoints,omitempty" doc:"what is kept, and how it is written"`
	Preemption    *Preemption                `json:"preemption,omitempty" doc:"when the machine is taken away (SIGTERM, SIGUSR2)"`
}

// Resources of a worker.
type Resources struct {
	CPUs   float64 `json:"cpus,omitempty" doc:"default: those of the machine, shared evenly"`
	GPUs   int     `json:"gpus,omitempty" doc:"whole ones, leased until the run ends; default 0" min:"0"`
	Memory Size    `json:"memory,omitempty" doc:"of its processes; one that takes more is ended; default: no limit" min:"1"`
}

// TrainData is a further data set of a run.
type TrainData struct {
	Spec string `json:"spec" doc:"path of its spec, from the folder of this one; it has a shards section" required:"true"`
	Eval bool   `json:"eval,omitempty" doc:"every loop over it begins at the first row and gives every row once, in order; it is no part of checkpoints"`
}

// Failures that a run outlives.
type Failures struct {
	Worker *int     `json:"worker,omitempty" doc:"crashes of workers, and losses of the data process; default 3" min:"0"`
	Hang   *int     `json:"hang,omitempty" doc:"workers that gave no sign, did not connect, made no report in time, or did not end; default 3" min:"0"`
	Memory *int     `json:"memory,omitempty" doc:"ends for lack of memory; default 1" min:"0"`
	Delay  Duration `json:"delay,omitempty" doc:"before another start, doubled each time up to a minute; default: none, 1s where no worker got ready"`
}

// Checkpoints of a run. The newest is always kept.
type Checkpoints struct {
	KeepAll   bool   `json:"keep_all,omitempty" doc:"all of them"`
	KeepLast  int    `json:"keep_last,omitempty" doc:"the last n; default 3" min:"1"`
	KeepBest  *Best  `json:"keep_best,omitempty" doc:"the best by a metric, beside these"`
	KeepEvery int64  `json:"keep_every,omitempty" doc:"the first at or after each so many reports, for good" min:"1"`
	Upload    string `json:"upload,omitempty" doc:"sync: report returns when the checkpoint is committed (default); async: when its files have been moved away, and they are committed beside the steps" enum:"sync|async"`
	Parallel  int    `json:"parallel,omitempty" doc:"files that are uploaded at once; default 8" min:"1"`
}

// Best checkpoints.
type Best struct {
	Metric string `json:"metric" doc:"name of a metric that is reported with them" required:"true"`
	Order  string `json:"order,omitempty" doc:"min (default): the smallest are the best; or max" enum:"min|max"`
	N      int    `json:"n,omitempty" doc:"how many; default 1" min:"1"`
}

// Preemption of the machine.
type Preemption struct {
	Grace Duration `json:"grace,omitempty" doc:"from the notice to the end of the workers, who save in it; default 30s"`
}

// Ranks are those of the batches: one for each worker, whatever shards.ranks says.
func (t *Train) Ranks() int { return max(t.Workers, 1) }

// TrainName is the name of the data set that a spec's own shards section describes.
const TrainName = "train"

var dataName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// trainRules reports what the keys of the train section say together that cannot be.
func (c *checker) trainRules(root *yaml.Node, s *Spec) {
	t := s.Train
	if t == nil {
		return
	}
	add := func(path, format string, args ...any) {
		c.add(find(root, path), brackets(path), format, args...)
	}
	if s.Shards == nil {
		add("train", "the spec has no shards, which say how rows become the batches of workers: add `shards: {global_batch: 256}`")
	}
	c.lasting(root, "train.storage", t.Storage)
	if k := t.Checkpoints; k != nil && k.KeepAll && (k.KeepLast > 0 || k.KeepBest != nil || k.KeepEvery > 0) {
		add("train.checkpoints.keep_all", "all checkpoints are kept, so keep_last, keep_best and keep_every say nothing: give keep_all, or the others")
	}
	if t.Command != nil && (len(t.Command) == 0 || t.Command[0] == "") {
		add("train.command", "must begin with a program, such as [python, train.py]")
	}
	for _, name := range slices.Sorted(maps.Keys(t.Data)) {
		path := "train.data." + name
		switch {
		case name == TrainName:
			add(path, "%s is the name of what this spec's own source and shards give: take another, such as val", TrainName)
		case !dataName.MatchString(name) || len(name) > 100:
			c.add(find(root, "train.data"), "train.data", "%q is no name of a data set: write letters, digits, and _ . -", name)
		case t.Data[name].Spec == "":
			add(path, "spec must not be empty: name a file")
		}
	}
	for i, kv := range t.Env {
		name, _, _ := strings.Cut(kv, "=")
		if name == "" || strings.ContainsAny(kv, "\x00") {
			add(fmt.Sprintf("train.env.%d", i), "want NAME=value or NAME")
		}
	}
	if r := t.Resources; r != nil && r.CPUs < 0 {
		add("train.resources.cpus", "must not be negative; leave it out to share the machine evenly")
	}
	if h := t.HangTimeout; h != nil && *h < 0 {
		add("train.hang_timeout", "must not be negative; 0s is never")
	}
	times := map[string]Duration{"start_timeout": t.StartTimeout, "report_timeout": t.ReportTimeout, "stop_timeout": t.StopTimeout}
	if t.Preemption != nil {
		times["preemption.grace"] = t.Preemption.Grace
	}
	if t.Failures != nil {
		times["failures.delay"] = t.Failures.Delay
	}
	for _, key := range slices.Sorted(maps.Keys(times)) {
		if path := "train." + key; times[key] < 0 || times[key] == 0 && lookup(root, path) != nil {
			add(path, "must be more than 0s")
		}
	}
	if b := t.Checkpoints; b != nil && b.KeepBest != nil && b.KeepBest.Metric == "" {
		add("train.checkpoints.keep_best.metric", "must not be empty: name a metric that is reported")
	}
}

// recorded refuses references in what the record of a run keeps: a secret would be written to the storage.
func (c *checker) recorded(root *yaml.Node) {
	for _, path := range []string{"train.command", "train.config", "train.name"} {
		if n := lookup(root, path); n != nil {
			c.noReferences(n, path)
		}
	}
}

func (c *checker) noReferences(n *yaml.Node, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for i, e := range n.Content {
		switch {
		case n.Kind == yaml.MappingNode && i%2 == 1:
			c.noReferences(e, path+"."+n.Content[i-1].Value)
		case n.Kind == yaml.SequenceNode:
			c.noReferences(e, fmt.Sprintf("%s[%d]", path, i+1))
		}
	}
	if rest := strings.ReplaceAll(n.Value, "$${", ""); n.Kind == yaml.ScalarNode && strings.Contains(rest, "${") {
		c.add(n, path, "a reference, but the record of the run keeps this, and no secret may be in it: give it to the workers as a variable, train.env: ['TOKEN=${env:TOKEN}'], and read that")
	}
}

// lookup is the node at a path of keys; nil if it is not there.
func lookup(n *yaml.Node, path string) *yaml.Node {
	for _, key := range strings.Split(path, ".") {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		at := -1
		for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				at = i + 1
			}
		}
		if at < 0 {
			return nil
		}
		n = n.Content[at]
	}
	return n
}
