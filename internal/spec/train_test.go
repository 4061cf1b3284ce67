package spec

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const trained = `version: 1
source: {range: {n: 100}}
shards: {global_batch: 10}
train:
  command: [python, train.py, --deep]
  workers: 4
  resources: {cpus: 1.5, gpus: 1, memory: 8GiB}
  name: first
  storage: s3://bucket/runs
  data: {val: {spec: val.yaml, eval: true}}
  config: {lr: 0.1, layers: [64, 32], name: x, deep: {er: true}}
  env: [A=1, HOME]
  working_dir: src
  logs: logs
  start_timeout: 1m
  hang_timeout: 0s
  report_timeout: 2m
  stop_timeout: 3s
  failures: {worker: 0, hang: 5, memory: 2, delay: 4s}
  checkpoints: {keep_last: 5, keep_best: {metric: val_loss, order: max, n: 2}, keep_every: 100, upload: async, parallel: 4}
  preemption: {grace: 45s}
`

func TestTrain(t *testing.T) {
	s, err := parse(t, "t.yaml", []byte(trained), []string{"train.config.lr=0.5", "train.config.deep.er=false", "train.workers=3"})
	if err != nil {
		t.Fatal(err)
	}
	zero, five, two, never := 0, 5, 2, Duration(0)
	want := Train{
		Command: []string{"python", "train.py", "--deep"}, Workers: 3, Resources: &Resources{CPUs: 1.5, GPUs: 1, Memory: 8 << 30}, Name: "first",
		Storage: "s3://bucket/runs", Data: map[string]TrainData{"val": {Spec: "val.yaml", Eval: true}}, Config: s.Train.Config, Env: []string{"A=1", "HOME"},
		WorkingDir: "src", Logs: "logs", StartTimeout: Duration(time.Minute), HangTimeout: &never, ReportTimeout: Duration(2 * time.Minute),
		StopTimeout: Duration(3 * time.Second), Failures: &Failures{&zero, &five, &two, Duration(4 * time.Second)}, Preemption: &Preemption{Duration(45 * time.Second)},
		Checkpoints: &Checkpoints{KeepLast: 5, KeepBest: &Best{"val_loss", "max", 2}, KeepEvery: 100, Upload: "async", Parallel: 4},
	}
	if !reflect.DeepEqual(*s.Train, want) {
		t.Errorf("%+v, want %+v", *s.Train, want)
	}
	for key, want := range map[string]string{"lr": "0.5", "layers": "[64,32]", "name": `"x"`, "deep": `{"er":false}`} {
		if got := string(s.Train.Config[key]); got != want {
			t.Errorf("config.%s is %s, want %s", key, got, want)
		}
	}
	if s, err := parse(t, "t.yaml", []byte("version: 1\nsource: {range: {n: 5}}\nshards: {global_batch: 1}\ntrain:\n"), nil); err != nil || s.Train == nil && s.Shards == nil {
		t.Error(err)
	}
}

func TestTrainMistakes(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "hush")
	for _, c := range []struct{ from, to, want string }{
		{"workers: 4", "worker: 4", `t.yaml:6:3: train: unknown key "worker": did you mean "workers"?`},
		{"workers: 4", "workers: 0", "t.yaml:6:12: train.workers: must be at least 1, not 0"},
		{"workers: 4", "workers: many", "train.workers: want a whole number"},
		{"shards: {global_batch: 10}\n", "", "t.yaml:4:3: train: the spec has no shards, which say how rows become the batches of workers"},
		{"[python, train.py, --deep]", "[]", "t.yaml:5:12: train.command: must begin with a program"},
		{"[python, train.py, --deep]", "[python, '${env:PENSTOCK_TEST_SECRET}']", "t.yaml:5:21: train.command[2]: a reference, but the record of the run keeps this"},
		{"lr: 0.1", "lr: {token: '${env:PENSTOCK_TEST_SECRET}'}", "train.config.lr.token: a reference"},
		{"name: first", "name: '${file:name}'", "train.name: a reference"},
		{"lr: 0.1", "lr: '$${env:PENSTOCK_TEST_SECRET}'", ""},
		{"[A=1, HOME]", "['A=${env:PENSTOCK_TEST_SECRET}']", ""},
		{"lr: 0.1", "lr: .nan", "train.config.lr: want what JSON can hold"},
		{"lr: 0.1", "lr: {1: 2, [a]: 3}", "train.config.lr: "},
		{"{lr: 0.1, layers: [64, 32], name: x, deep: {er: true}}", "[lr]", "train.config: want a mapping, not a list"},
		{"val: {spec", "train: {spec", "t.yaml:10:17: train.data.train: train is the name of what this spec's own source and shards give"},
		{"val: {spec", "a/b: {spec", `t.yaml:10:9: train.data: "a/b" is no name of a data set`},
		{"spec: val.yaml", "spec: ''", "train.data.val: spec must not be empty"},
		{"spec: val.yaml, ", "", `train.data.val: key "spec" is missing`},
		{"eval: true", "evl: true", `train.data.val: unknown key "evl": did you mean "eval"?`},
		{"[A=1, HOME]", "[A=1, =2]", "t.yaml:12:14: train.env[2]: want NAME=value or NAME"},
		{"[A=1, HOME]", "A=1", "train.env: want a list"},
		{"cpus: 1.5", "cpus: -1", "train.resources.cpus: must not be negative"},
		{"gpus: 1", "gpus: 0.5", "train.resources.gpus: want a whole number"},
		{"memory: 8GiB", "memory: lots", "train.resources.memory: want a size"},
		{"hang_timeout: 0s", "hang_timeout: -1s", "train.hang_timeout: must not be negative; 0s is never"},
		{"start_timeout: 1m", "start_timeout: 0s", "t.yaml:15:18: train.start_timeout: must be more than 0s"},
		{"grace: 45s", "grace: -45s", "train.preemption.grace: must be more than 0s"},
		{"worker: 0", "worker: -1", "train.failures.worker: must be at least 0"},
		{"order: max", "order: best", `train.checkpoints.keep_best.order: want one of min, max, not "best"`},
		{"metric: val_loss, ", "", `train.checkpoints.keep_best: key "metric" is missing`},
		{"metric: val_loss", "metric: ''", "train.checkpoints.keep_best.metric: must not be empty"},
		{"keep_last: 5", "keep_last: 0", "train.checkpoints.keep_last: must be at least 1"},
		{"keep_last: 5", "keep_all: true", "t.yaml:20:27: train.checkpoints.keep_all: all checkpoints are kept, so keep_last, keep_best and keep_every say nothing"},
		{"keep_last: 5, keep_best: {metric: val_loss, order: max, n: 2}, keep_every: 100", "keep_all: true", ""},
		{"delay: 4s", "delay: -4s", "train.failures.delay: must be more than 0s"},
		{"parallel: 4", "parallel: 0", "train.checkpoints.parallel: must be at least 1"},
		{"upload: async", "upload: later", `want one of sync, async, not "later"`},
	} {
		text := strings.Replace(trained, c.from, c.to, 1)
		if text == trained {
			t.Fatalf("%q is not in the spec", c.from)
		}
		_, err := parse(t, "t.yaml", []byte(text), nil)
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.to, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%q: error %v, want %q", c.to, err, c.want)
		}
	}
}

// What a record keeps makes the same specs again, when the files are gone, and holds no secret.
func TestOriginal(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "hush")
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("t.yaml", strings.Replace(trained, "A=1", "'A=${env:PENSTOCK_TEST_SECRET}'", 1))
	load := func() (*Original, *Spec, error) {
		return LoadOriginal(filepath.Join(dir, "t.yaml"), []string{"train.workers=2"}, Trust{})
	}
	if _, _, err := load(); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `t.yaml:10:22: data set "val": open `) {
		t.Errorf("no file: %v", err)
	}
	write("val.yaml", "version: 1\nsource: {range: {n: 5}}\n")
	if _, _, err := load(); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `val.yaml: data set "val" has no shards`) {
		t.Errorf("no shards: %v", err)
	}
	write("val.yaml", "version: 1\nsource: {rang: {n: 5}}\n")
	if _, _, err := load(); err == nil || !strings.Contains(err.Error(), `val.yaml:2:10: source: unknown key "rang"`) {
		t.Errorf("misspelt: %v", err)
	}
	write("val.yaml", "version: 1\nsource: {range: {n: 5}}\nshards: {global_batch: 2}\n")
	o, s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	text := o.String()
	if strings.Contains(text, "hush") || !strings.Contains(text, "${env:PENSTOCK_TEST_SECRET}") || s.Train.Env[0] != "A=hush" {
		t.Errorf("%s", text)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	again, err := ParseOriginal(text)
	if err != nil {
		t.Fatal(err)
	}
	s2, err := again.Spec(Trust{})
	if err != nil || s2.Train.Workers != 2 || !reflect.DeepEqual(s.Train, s2.Train) {
		t.Errorf("%+v, %v", s2, err)
	}
	val, err := again.DataSpec("val", Trust{})
	if err != nil || val.Source.Range.N != 5 {
		t.Errorf("%+v, %v", val, err)
	}
	if _, err := again.DataSpec("test", Trust{}); fault.CodeOf(err) != fault.NotFound {
		t.Error(err)
	}
	if _, err := ParseOriginal("version: 1"); fault.CodeOf(err) != fault.Corrupt {
		t.Error(err)
	}
}
