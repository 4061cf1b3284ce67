package main

import (
	"fmt"
	"path/filepath"
	"time"
)

// workload is what all engines do, each as its documentation does it fastest.
type workload struct {
	name, title, what string
	cases             []kase
	columns           []column // of the table
	ratios            []column // ours / peer: smaller is better for us
	bars              column   // of the plot
	files             []string // to read once before, so that the page cache is warm
	rounds            int      // most rounds; 0: as many as the run has
	goals             func(w *measured) []goal
}

// kase is one engine's way.
type kase struct {
	name   string
	args   []string
	cores  int // 1: on one core; 0: all
	limit  time.Duration
	once   bool // in the first round only: it takes too long
	differ bool // gives other rows by design (a part of the files), so totals are not compared
}

// column is a figure of a case. Times and sizes of ours are rounded up, of others down; of rates
// the other way round.
type column struct {
	title  string
	get    func(f figures) float64 // NaN: has none
	digits int
	rate   bool
}

func key(name string) func(figures) float64 {
	return func(f figures) float64 {
		v, ok := f[name]
		if !ok {
			return nan
		}
		return v
	}
}

func per(a, b string) func(figures) float64 {
	return func(f figures) float64 { return key(a)(f) / key(b)(f) }
}

var (
	wallColumn  = column{title: "wall s", get: key("wall"), digits: 2}
	cpuColumn   = column{title: "CPU s", get: key("cpu"), digits: 2}
	firstColumn = column{title: "first batch s", get: key("first"), digits: 3}
	rateColumn  = column{title: "rows/s", get: per("rows", "wall"), digits: 0, rate: true}
	peakColumn  = column{title: "peak MiB", get: func(f figures) float64 { return f["peak"] / (1 << 20) }, digits: 0}
)

// env is where things are.
type env struct {
	self, python, drivers, data, work string
	quick                             bool
}

func (e env) ours(args ...string) []string { return append([]string{e.self, "case"}, args...) }

func (e env) py(driver string, args ...string) []string {
	return append([]string{e.python, filepath.Join(e.drivers, driver+".py")}, args...)
}

func (e env) at(names ...string) string { return filepath.Join(append([]string{e.data}, names...)...) }

// workloads are all but the scan, which has its own way of running.
func workloads(e env) []workload {
	const sec = time.Second
	pick := func(full, quick int) string {
		if e.quick {
			return fmt.Sprint(quick)
		}
		return fmt.Sprint(full)
	}
	table, limit := e.at("table"), 90*sec
	ws := []workload{{
		name: "table", title: "Filter, two columns, batches of 1024 x 42 float32",
		what: "8 files of pyarrow (snappy, dictionaries as it likes), 42 columns; `distance < 2.9 && passengers > 1` keeps 41 %; 40 columns, `tip / fare` and `log1p(distance)` come as one contiguous float32 " +
			"array per batch, column by column (torch: row by row). The consumer counts rows and sums the two computed columns; totals of all engines must agree.",
		files: []string{"table/*"},
		cases: []kase{
			{name: "penstock", args: e.ours("table", table)},
			{name: "polars collect_batches", args: e.py("table", "polars", table)},
			{name: "duckdb to arrow", args: e.py("table", "duckdb", table)},
			{name: "pyarrow dataset", args: e.py("table", "pyarrow", table)},
			{name: "torch DataLoader, 0 workers", args: e.py("table", "torch", table)},
			{name: "torch DataLoader, 2 workers", args: e.py("table", "torch_2", table)},
			{name: "datasets, arrow", args: e.py("table", "datasets", table)},
			{name: "daft", args: e.py("table", "daft", table)},
			{name: "ray data", args: e.py("table", "ray", table)},
			{name: "penstock again", args: e.ours("table", table)},
		},
		columns: []column{wallColumn, cpuColumn, firstColumn, rateColumn, peakColumn}, ratios: []column{wallColumn, cpuColumn}, bars: wallColumn,
		goals: func(w *measured) []goal {
			return []goal{
				w.least("polars collect_batches", wallColumn, 0.7), w.least("polars collect_batches", cpuColumn, 0.7),
				w.least("ray data", wallColumn, 0.1), w.atMost("peak memory", peakColumn, 250*1e6/(1<<20), "MiB (250 MB)"),
			}
		},
	}, {
		name: "shuffle", title: "The same, shuffled",
		what: "Penstock: the order model with its defaults (lanes, windows of 4 MiB), resumable. Torch: a hand-written pool of 100,000 rows in the data set. Ray: `local_shuffle_buffer_size=100_000`. " +
			"datasets: `shuffle(buffer_size=100_000)`, cut after a while, so only its rate counts. Mosaic: 100,000 rows in its own format (converting them is not counted), so only its rate counts. " +
			"Grain: all rows read into one array in memory, and an order of all of them. DuckDB, Polars, pyarrow and Daft have no shuffle of a stream.",
		files: []string{"table/*"},
		cases: []kase{
			{name: "penstock", args: e.ours("table-shuffle", table)},
			{name: "penstock, in order", args: e.ours("table", table)},
			{name: "torch DataLoader, 0 workers", args: e.py("table", "torch_shuffle", table)},
			{name: "torch DataLoader, 2 workers", args: e.py("table", "torch_2_shuffle", table)},
			{name: "ray data", args: e.py("table", "ray_shuffle", table)},
			{name: "datasets, arrow", args: e.py("table", "datasets_shuffle", table), limit: 60 * sec, once: true, differ: true},
			{name: "mosaic streaming, 2 workers", args: e.py("table", "mosaic_shuffle", table, e.work), once: true, differ: true},
			{name: "grain, in memory", args: e.py("table", "grain_shuffle", table), once: true, limit: 150 * sec},
			{name: "penstock again", args: e.ours("table-shuffle", table)},
		},
		columns: []column{wallColumn, cpuColumn, firstColumn, rateColumn, peakColumn},
		ratios:  []column{{title: "wall s per row", get: per("wall", "rows")}, {title: "CPU s per row", get: per("cpu", "rows")}}, bars: rateColumn,
		goals: func(w *measured) []goal {
			return []goal{
				w.least("penstock, in order", wallColumn, 1/0.8), w.least("penstock, in order", cpuColumn, 1/0.8),
				w.atMost("peak memory", peakColumn, 250*1e6/(1<<20), "MiB (250 MB)"),
			}
		},
	}, {
		name: "tokens", title: "Tokens and packing",
		what: "200,000 documents (lognormal, 492 tokens on average) to samples of 2,048; every token is counted. On one core, but for Ray. Grain gets a quarter of the files. Penstock also gives segment and position ids. " +
			"`best fit`: Penstock and the Python loop look for the best place in windows of 1,000 documents, Grain online in 64 bins, so compare padding with care.",
		files: []string{"tokens/*"},
		cases: []kase{
			{name: "penstock", args: e.ours("tokens", e.at("tokens"), "concat"), cores: 1},
			{name: "penstock best fit", args: e.ours("tokens", e.at("tokens"), "best_fit"), cores: 1},
			{name: "numpy concat", args: e.py("tokens", "numpy", e.at("tokens")), cores: 1},
			{name: "python best fit", args: e.py("tokens", "python_bestfit", e.at("tokens")), cores: 1},
			{name: "datasets, arrow", args: e.py("tokens", "datasets", e.at("tokens")), cores: 1},
			{name: "grain concat", args: e.py("tokens", "grain", e.at("tokens")), cores: 1, differ: true},
			{name: "grain best fit", args: e.py("tokens", "grain_bestfit", e.at("tokens")), cores: 1, differ: true},
			{name: "ray data concat", args: e.py("tokens", "ray", e.at("tokens"))},
			{name: "penstock again", args: e.ours("tokens", e.at("tokens"), "concat"), cores: 1},
		},
		columns: []column{wallColumn, cpuColumn, tokenRate, {title: "padding %", get: func(f figures) float64 { return 100 * key("padding")(f) }, digits: 3}, peakColumn},
		ratios:  []column{tokenCost}, bars: tokenRate,
		goals: func(w *measured) []goal {
			return []goal{
				w.least("numpy concat", tokenCost, 53.0/60), w.between("penstock best fit", "python best fit", tokenCost, 37.0/40),
				w.of("penstock best fit").atMost("padding of best fit", column{get: func(f figures) float64 { return 100 * f["padding"] }, digits: 3}, 0.3, "%"),
			}
		},
	}, {
		name: "many", title: "1,000 files of 10 row groups",
		what:  "10 M rows of 4 columns in 10,000 row groups of 1,000 rows, as record batches of the engine's own size; the first one after imports (and `ray.init`).",
		files: []string{"many/*"},
		cases: []kase{
			{name: "penstock", args: e.ours("many", e.at("many"))},
			{name: "duckdb to arrow", args: e.py("many", "duckdb", e.at("many"))},
			{name: "polars collect_batches", args: e.py("many", "polars", e.at("many"))},
			{name: "pyarrow dataset", args: e.py("many", "pyarrow", e.at("many"))},
			{name: "daft", args: e.py("many", "daft", e.at("many"))},
			{name: "datasets, arrow", args: e.py("many", "datasets", e.at("many"))},
			{name: "torch DataLoader, 0 workers", args: e.py("many", "torch", e.at("many"))},
			{name: "ray data", args: e.py("many", "ray", e.at("many")), once: true, limit: 150 * sec},
			{name: "penstock again", args: e.ours("many", e.at("many"))},
		},
		columns: []column{wallColumn, cpuColumn, firstColumn, rateColumn, peakColumn}, ratios: []column{wallColumn, cpuColumn, {title: "first batch", get: key("first")}}, bars: wallColumn,
		goals: func(w *measured) []goal {
			return []goal{w.atMost("first batch", firstColumn, 0.05, "s"), w.least("duckdb to arrow", wallColumn, 0.8), w.least("duckdb to arrow", cpuColumn, 0.8)}
		},
	}, {
		name: "slots", title: "Memory-limited pipeline",
		what: "After arXiv 2501.12407: 8 CPU slots, 4 GPU slots; a video loads for 10 units and gives 5 frames of 20 MiB one by one, each is transformed for 1 unit (a new frame) and inferred for 1 unit on a GPU slot. " +
			"All of it sleeps; the unit is 0.1 s, memory is 60 or 160 frames. Ideal = videos x 15 / 8 units. Penstock: load and transform in 8 tasks, infer in 4 goroutines of the consumer. " +
			"A run that is cut counts the rest at its rate so far (in its favour: without the last wait).",
		cases: []kase{
			{name: "penstock", args: e.ours("slots", pick(96, 32), "100", "20", "60")},
			{name: "penstock, 160 frames", args: e.ours("slots", pick(96, 32), "100", "20", "160")},
			{name: "ray data, 60 frames", args: e.py("slots", pick(96, 32), "100", "20", "60"), once: true, limit: 75 * sec, differ: true},
			{name: "ray data, 160 frames", args: e.py("slots", pick(96, 32), "100", "20", "160"), once: true, limit: 75 * sec, differ: true},
			{name: "penstock again", args: e.ours("slots", pick(96, 32), "100", "20", "60")},
		},
		columns: []column{wallColumn, idealColumn, cpuColumn, peakColumn}, ratios: []column{wallColumn}, bars: idealColumn, rounds: 2,
		goals: func(w *measured) []goal { return []goal{w.atMost("at 60 frames", idealColumn, 1.1, "x ideal")} },
	}, {
		name: "inflate", title: "Inflating rows, 4 KiB to 4 MiB",
		what:  "2,000 rows (8.4 GB in all), default settings, a consumer that takes 2 ms per row (4 s). Penstock: a budget of 512 MiB.",
		files: []string{"inflate.parquet"},
		cases: []kase{
			{name: "penstock", args: e.ours("inflate", e.at("inflate.parquet"))},
			{name: "torch DataLoader, 2 workers", args: e.py("inflate", "torch_2", e.at("inflate.parquet"))},
			{name: "torch DataLoader, 0 workers", args: e.py("inflate", "torch", e.at("inflate.parquet"))},
			{name: "ray data map", args: e.py("inflate", "ray", e.at("inflate.parquet")), once: true, limit: 90 * sec},
			{name: "ray data map_batches", args: e.py("inflate", "ray_batches", e.at("inflate.parquet")), once: true, limit: 90 * sec},
			{name: "daft", args: e.py("inflate", "daft", e.at("inflate.parquet")), once: true, limit: 90 * sec},
			{name: "penstock again", args: e.ours("inflate", e.at("inflate.parquet"))},
		},
		columns: []column{wallColumn, cpuColumn, firstColumn, rateColumn, peakColumn}, ratios: []column{wallColumn, {title: "peak memory", get: key("peak")}}, bars: peakColumn,
		goals: func(w *measured) []goal {
			return []goal{w.atMost("peak memory", peakColumn, 1.25*512+150, "MiB"), w.least("torch DataLoader, 2 workers", wallColumn, 1)}
		},
	}, {
		name: "resume", title: "Resume at 90 %",
		what: "t0: files opened anew to the first batch, page cache warm; t90: the same from a state at 90 % of the epoch, in place (no conversion). Exact: the next 8 batches are those of the undisturbed run; the sums of " +
			"two columns per batch tell. Penstock: shuffled, the whole table, restored on 1 and on 3 ranks. Others: one file of 8 (Mosaic 30,000 rows of it, converted first; datasets shuffled 8,000 rows through a buffer of 2,000), on another number of workers where they have some.",
		files: []string{"table/*"},
		cases: []kase{
			{name: "penstock", args: e.ours("resume", table)},
			{name: "penstock, one file", args: e.ours("resume", e.at("table", "part0.parquet"))},
			{name: "datasets, in order", args: e.py("resume", "datasets", e.at("table", "part0.parquet"), e.work), once: true},
			{name: "datasets, shuffled", args: e.py("resume", "datasets_shuffle", e.at("table", "part0.parquet"), e.work), once: true},
			{name: "torchdata, shuffled, 2 workers", args: e.py("resume", "torchdata_shuffle", e.at("table", "part0.parquet"), e.work), once: true},
			{name: "mosaic streaming, shuffled", args: e.py("resume", "mosaic", e.at("table", "part0.parquet"), e.work), once: true},
			{name: "grain, shuffled, in memory", args: e.py("resume", "grain", e.at("table", "part0.parquet"), e.work), once: true},
			{name: "penstock again", args: e.ours("resume", table)},
		},
		columns: []column{{title: "t0 s", get: key("t0"), digits: 3}, {title: "t90 s", get: key("t90"), digits: 3}, resumeColumn, {title: "to 90 % s", get: key("to90"), digits: 2},
			{title: "state bytes", get: key("state_bytes")}, {title: "exact", get: key("exact")}, {title: "other number", get: key("other_ranks")}},
		ratios: []column{{title: "t90", get: key("t90")}, resumeColumn}, bars: resumeColumn,
		goals: func(w *measured) []goal {
			return []goal{w.atMost("t90 / t0", resumeColumn, 2.5, ""), w.of("penstock, one file").atMost("t90 / t0, one file", resumeColumn, 2.5, ""),
				w.atLeast("exact, on 1 and on 3 ranks", column{get: func(f figures) float64 { return min(f["exact"], f["other_ranks"]) }}, 1, "")}
		},
	}}
	for _, size := range []struct {
		name, label string
		bytes, n    int
	}{{"handoff", "4 MiB", 4 << 20, 500}, {"handoff-small", "64 KiB", 64 << 10, 5000}} {
		n := size.n
		if e.quick {
			n /= 4
		}
		b, c := fmt.Sprint(size.bytes), fmt.Sprint(n)
		w := workload{
			name: size.name, title: "Hand-off to another process, batches of " + size.label,
			what: fmt.Sprintf("%d batches from one process to another; the consumer looks at a byte of every page. The rate begins with the first batch. `memcpy`: the same loop within one process, a copy into a ring of 8. ", n) +
				"Penstock: the Python client over the ring in shared memory of `shard/feed`, beside it the one in Go; the copying of rows in memory into batches is included.",
			cases: []kase{
				{name: "penstock", args: e.py("handoff", "penstock", b, c, e.work, e.self)},
				{name: "penstock, Go client", args: e.ours("handoff", b, c)},
				{name: "memcpy", args: e.ours("memcpy", b, c)},
				{name: "shared memory by hand", args: e.py("handoff", "shm", b, c, e.work)},
				{name: "ray object store", args: e.py("handoff", "ray", b, c, e.work)},
				{name: "arrow flight", args: e.py("handoff", "flight", b, c, e.work)},
				{name: "torch DataLoader", args: e.py("handoff", "torch", b, c, e.work)},
				{name: "torch DataLoader, file_system", args: e.py("handoff", "torch_fs", b, c, e.work)},
				{name: "penstock again", args: e.py("handoff", "penstock", b, c, e.work, e.self)},
			},
			columns: []column{{title: "GB/s", get: func(f figures) float64 { return f["steady_bytes"] / f["steady"] / 1e9 }, digits: 2, rate: true}, {title: "us per batch", get: batchMicros, digits: 1}, cpuColumn, peakColumn},
			ratios:  []column{{title: "time per batch", get: batchMicros}}, bars: column{title: "us per batch", get: batchMicros, digits: 1},
			goals: func(w *measured) []goal {
				return []goal{w.least("memcpy", column{title: "time", get: batchMicros}, 1/0.8)}
			},
		}
		if size.bytes < 1<<20 {
			w.goals = func(w *measured) []goal {
				return []goal{w.atMost("per batch of 64 KiB", column{get: batchMicros, digits: 1}, 50, "us")}
			}
		}
		ws = append(ws, w)
	}
	ten := e.at("many", "f0000.parquet")
	start := workload{
		name: "start", title: "From the start of a process to the first ten rows", what: "One file of 10,000 rows; interpreter, imports and `ray.init` included.",
		cases:   []kase{{name: "penstock", args: e.ours("ten", ten)}},
		columns: []column{startColumn, peakColumn, {title: "processes", get: key("procs")}}, ratios: []column{startColumn}, bars: startColumn,
		goals: func(w *measured) []goal { return []goal{w.atMost("to the first rows", startColumn, 0.2, "s")} },
	}
	for _, p := range []string{"pyarrow", "duckdb", "polars", "daft", "datasets", "torch", "ray"} {
		start.cases = append(start.cases, kase{name: p, args: e.py("start", p, ten)})
	}
	start.cases = append(start.cases, kase{name: "penstock again", args: e.ours("ten", ten)})
	ws = append(ws, start)
	for i := range ws {
		for j := range ws[i].cases {
			if ws[i].cases[j].limit == 0 {
				ws[i].cases[j].limit = limit
			}
		}
	}
	return ws
}

var (
	tokenRate    = column{title: "M tokens per CPU s", get: func(f figures) float64 { return f["tokens"] / f["cpu"] / 1e6 }, digits: 1, rate: true}
	tokenCost    = column{title: "CPU per token", get: per("cpu", "tokens")}
	idealColumn  = column{title: "x ideal", get: per("wall", "ideal"), digits: 3}
	resumeColumn = column{title: "t90 / t0", get: per("t90", "t0"), digits: 2}
	startColumn  = column{title: "s", get: func(f figures) float64 { return key("start")(f) + key("first")(f) }, digits: 3}
)

func batchMicros(f figures) float64 { return 1e6 * f["steady"] / max(1, f["batches"]-1) }
