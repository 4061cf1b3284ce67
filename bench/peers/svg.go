package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Plots are SVG in plain text: they follow the reader's light or dark scheme, and their figures are text.

const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="12" role="img" aria-label="%s">
<style>
.bg{fill:#fff}text{fill:#333}.o{fill:#1f6fb2}.p{fill:#a9b4bf}.g{stroke:#d8dde2}.a{stroke:#c0392b;stroke-dasharray:4 3}.t{font-size:14px;font-weight:bold}.x0{fill:#1f6fb2}.x1{fill:#d9822b}.x2{fill:#5b9a4d}.x3{fill:#9a6fb0}
@media(prefers-color-scheme:dark){.bg{fill:#0d1117}text{fill:#d0d7de}.o{fill:#58a6ff}.p{fill:#57606a}.g{stroke:#30363d}.a{stroke:#ff7b72}.x0{fill:#58a6ff}.x1{fill:#f0a35e}.x2{fill:#7ee787}.x3{fill:#d2a8ff}}
</style>
<rect class="bg" width="%d" height="%d"/>
`

type canvas struct{ strings.Builder }

func newCanvas(w, h int, label string) *canvas {
	c := &canvas{}
	fmt.Fprintf(c, svgHead, w, h, w, h, html.EscapeString(label), w, h)
	return c
}

func (c *canvas) text(x, y float64, anchor, class, s string) {
	fmt.Fprintf(c, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y, anchor, class, html.EscapeString(s))
}

func (c *canvas) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(c, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" class=\"%s\"/>\n", x, y, w, h, class)
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(c, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

func (c *canvas) done() string { return c.String() + "</svg>\n" }

// plot is a bar per case, with the figure behind it.
func (m *measured) plot() string {
	type bar struct {
		name  string
		value float64
		own   bool
	}
	var bars []bar
	top := 0.0
	for _, c := range m.Cases {
		if len(c.Runs) == 0 || c.Err != "" || c.Name == "penstock again" {
			continue
		}
		v := median(values(c.Runs, m.w.bars))
		if math.IsNaN(v) {
			continue
		}
		bars = append(bars, bar{c.label(), v, c.ours()})
		top = max(top, v)
	}
	const left, width, row = 235, 720, 24
	h := 58 + row*len(bars)
	title := m.w.title + ": " + m.w.bars.title
	if m.w.bars.rate {
		title += " (more is better)"
	} else {
		title += " (less is better)"
	}
	c := newCanvas(width, h, title)
	c.text(12, 24, "start", "t", title)
	for i, b := range bars {
		y := float64(44 + i*row)
		class := "p"
		if b.own {
			class = "o"
		}
		c.text(left-8, y+12, "end", "", b.name)
		w := max(1, (width-left-90)*b.value/top)
		c.rect(left, y, w, row-8, class)
		c.text(left+w+6, y+12, "start", "", figure(b.value, m.w.bars, b.own))
	}
	return c.done()
}

// scanPlot is a dot per file and engine: ours / it, on a logarithmic axis.
func scanPlot(m *measured) string {
	files := scanFiles(m)
	engines := []string{"duckdb lazy", "polars sink_ipc", "arrow-go pqarrow", "decompress + copy"}
	const left, width, row, low, high = 190, 720, 20, 0.05, 4.0
	h := 96 + row*len(files)
	title := "Scan, one core: CPU of Penstock / the other (left of 1 is faster; dots on the edge are beyond it)"
	c := newCanvas(width, h, title)
	c.text(12, 24, "start", "t", title)
	at := func(v float64) float64 {
		return left + (width-left-20)*math.Log(min(high, max(low, v))/low)/math.Log(high/low)
	}
	for i, e := range engines {
		x := float64(left + i*130)
		c.rect(x, 38, 10, 10, fmt.Sprintf("x%d", i))
		c.text(x+15, 47, "start", "", e)
	}
	bottom := float64(62 + row*len(files))
	for _, v := range []float64{0.05, 0.1, 0.25, 0.5, 1, 2, 4} {
		class := "g"
		if v == 1 {
			class = "a"
		}
		c.line(at(v), 58, at(v), bottom, class)
		c.text(at(v), bottom+16, "middle", "", fmt.Sprintf("%gx", v))
	}
	for j, f := range files {
		y := float64(62 + row*j)
		c.text(left-8, y+13, "end", "", f)
		for i, e := range engines {
			if v := scanRatio(m, "penstock", e, f, scanCPU, 1).value; !math.IsNaN(v) {
				fmt.Fprintf(c, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" class=\"x%d\"><title>%s: %sx of %s</title></circle>\n", at(v), y+9, i, html.EscapeString(f), up(v, 2), e)
			}
		}
	}
	return c.done()
}
