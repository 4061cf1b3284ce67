package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// The tables and goals of the scan: a case is an engine and a file.

var scanCPU = column{title: "CPU s", get: key("cpu"), digits: 3}
var scanWall = column{title: "wall s", get: key("wall"), digits: 3}

var scanPeak = column{title: "peak MiB", get: func(f figures) float64 { return key("peak")(f) / (1 << 20) }, digits: 0}

// scanFiles are the files of a scan, in order.
func scanFiles(m *measured) (files []string) {
	for _, c := range m.Cases {
		if _, f, ok := strings.Cut(c.Name, "/"); ok && !slices.Contains(files, f) {
			files = append(files, f)
		}
	}
	slices.Sort(files)
	return files
}

// scanSpread is the A/A spread of a file, and of the geometric mean over files.
func scanSpread(m *measured, files []string) (by map[string]float64, mean float64) {
	by = map[string]float64{}
	rounds := 0
	for _, f := range files {
		a, b := m.get("penstock/"+f), m.get("penstock again/"+f)
		by[f] = spreadOf(a.Runs, b.Runs, scanCPU)
		rounds = max(rounds, len(a.Runs))
	}
	mean = 1
	for r := range rounds {
		var v []float64
		for _, f := range files {
			a, b := m.get("penstock/"+f), m.get("penstock again/"+f)
			if r < len(a.Runs) && r < len(b.Runs) {
				v = append(v, a.Runs[r]["cpu"]/b.Runs[r]["cpu"])
			}
		}
		if g := geomean(v); !math.IsNaN(g) {
			mean = max(mean, g, 1/g)
		}
	}
	return by, mean
}

func scanRatio(m *measured, ours, other, file string, c column, spread float64) ratio {
	return ratioOf(m.get(ours+"/"+file), m.get(other+"/"+file), c, spread)
}

func scanMean(m *measured, other string, files []string) float64 {
	var v []float64
	for _, f := range files {
		v = append(v, scanRatio(m, "penstock", other, f, scanCPU, 1).value)
	}
	return geomean(v)
}

func scanGoals(m *measured) (gs []goal) {
	files := scanFiles(m)
	by, mean := scanSpread(m, files)
	for _, g := range []struct {
		other string
		bound float64
	}{{"duckdb lazy", 0.65}, {"polars sink_ipc", 0.45}, {"arrow-go pqarrow", 0.25}, {"decompress + copy", 1.25}} {
		v := scanMean(m, g.other, files)
		gs = append(gs, goal{what: fmt.Sprintf("Scan of %d files, 1 core, CPU, geometric mean, penstock / %s", len(files), g.other),
			figure: up(v, 2) + "x", aa: aa(mean), want: "<= " + down(g.bound, 2) + "x", met: verdict(v, g.bound, mean)})
	}
	worst, file := 0.0, ""
	for _, f := range files {
		if r := scanRatio(m, "penstock", "duckdb lazy", f, scanCPU, 1).value; r > worst {
			worst, file = r, f
		}
	}
	if file == "" {
		worst = nan
	}
	gs = append(gs, goal{what: "Scan: the worst file against duckdb lazy (" + file + ")", figure: up(worst, 2) + "x", aa: aa(by[file]), want: "<= 1.15x", met: verdict(worst, 1.15, max(1, by[file]))})
	with, ok := 0, 0
	least, leastFile := math.Inf(1), ""
	for _, f := range files {
		duck := scanRatio(m, "duckdb lazy", "duckdb lazy, 2 cores", f, scanWall, 1).value
		own := scanRatio(m, "penstock", "penstock, 2 cores", f, scanWall, 1).value
		if !(duck >= 1.7) || math.IsNaN(own) {
			continue
		}
		with++
		if own >= 1.7 {
			ok++
		}
		if own < least {
			least, leastFile = own, f
		}
	}
	g := goal{what: "Scan: 2 cores against one, wall, on the files where duckdb gets 1.7x", aa: "-", want: "all >= 1.70x", met: "**no**"}
	switch {
	case with == 0:
		g.figure, g.met = "none where duckdb does", "not measured"
	default:
		g.figure = fmt.Sprintf("%d of %d files, least %sx (%s)", ok, with, down(least, 2), leastFile)
		if ok == with {
			g.met = "yes"
		}
	}
	return append(gs, g)
}

func scanTables(b *strings.Builder, m *measured) {
	files := scanFiles(m)
	by, mean := scanSpread(m, files)
	b.WriteString("\n## Scan\n\nEvery column of every file decoded, on one core; CPU seconds of a pass, the median of the rounds (a round is one pass that does not count, then passes for 0.3 s). " +
		"`duckdb lazy`: `EXPLAIN ANALYZE`, whose sink drops vectors, dictionaries and strings as they are in the file; `to arrow`: true Arrow batches. `polars sink_ipc`: to /dev/null, decodes all. " +
		"`decompress + copy`: every page decompressed (or copied) into one scratch, and as many bytes copied as the columns take in Arrow form. " +
		"CPU is what each engine's process counts of itself; one that starts others is marked. Peak memory is the high-water mark of the process, which does all files and rounds. " +
		"Names: content, writer (duckv2: DuckDB with Parquet V2 encodings; bss: BYTE_STREAM_SPLIT), codec, rows of a row group.\n\n")
	var engines []string
	for _, e := range scanEngines {
		if e.cores == 1 && e.name != "penstock again" {
			engines = append(engines, e.name)
		}
	}
	b.WriteString("| file | " + strings.Join(engines, " | ") + " |\n|---|" + strings.Repeat("---|", len(engines)) + "\n")
	for _, f := range files {
		fmt.Fprintf(b, "| %s |", f)
		for _, e := range engines {
			c := m.get(e + "/" + f)
			if len(c.Runs) == 0 {
				fmt.Fprintf(b, " %s |", orDash(c.Err))
				continue
			}
			fmt.Fprintf(b, " %s |", figure(median(values(c.Runs, scanCPU)), scanCPU, e == "penstock"))
		}
		b.WriteString("\n")
	}
	b.WriteString("| **peak MiB, all files** |")
	for _, e := range engines {
		most := 0.0
		for _, f := range files {
			for _, v := range values(m.get(e+"/"+f).Runs, scanPeak) {
				most = max(most, v) // NaN stays: an older run has no peaks
			}
		}
		if most == 0 {
			most = nan
		}
		fmt.Fprintf(b, " %s |", figure(most, scanPeak, e == "penstock"))
	}
	b.WriteString("\n\nPenstock / the other, CPU on one core; on the right, wall on one core / on two:\n\n| file | A/A |")
	for _, e := range engines[1:] {
		fmt.Fprintf(b, " %s |", e)
	}
	b.WriteString(" penstock 2 cores | duckdb 2 cores |\n|---|---|" + strings.Repeat("---|", len(engines)+1) + "\n")
	for _, f := range files {
		fmt.Fprintf(b, "| %s | %s |", f, aa(by[f]))
		for _, e := range engines[1:] {
			fmt.Fprintf(b, " %s |", scanRatio(m, "penstock", e, f, scanCPU, by[f]).text())
		}
		fmt.Fprintf(b, " %s | %s |\n", down(scanRatio(m, "penstock", "penstock, 2 cores", f, scanWall, 1).value, 2), up(scanRatio(m, "duckdb lazy", "duckdb lazy, 2 cores", f, scanWall, 1).value, 2))
	}
	fmt.Fprintf(b, "| **geometric mean** | %s |", aa(mean))
	for _, e := range engines[1:] {
		fmt.Fprintf(b, " **%s** |", ratio{value: scanMean(m, e, files), spread: mean}.text())
	}
	b.WriteString(" | |\n")
	for _, c := range m.Cases {
		if c.Err != "" {
			fmt.Fprintf(b, "\n%s: %s\n", c.Name, orDash(c.Err))
		}
	}
}
