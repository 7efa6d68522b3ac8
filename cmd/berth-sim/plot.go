package main

import (
	"bytes"
	"fmt"
	"html"
	"slices"
	"time"

	"berth"
	"berth/spec"
)

// The figure has two panels: the shares of the tenants, stacked, above the number of
// waiting jobs. Sizes are in pixels; time is averaged into columns.
const (
	plotWidth, useHeight, queueHeight = 960, 300, 140
	marginLeft, marginTop, gap        = 64, 56, 52
	columns                           = 480
)

// palette has one colour per tenant, distinguishable under colour blindness (Okabe and
// Ito).
var palette = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"}

// plot draws the time while jobs arrived, as SVG.
func (r *replay) plot(s *scenario) []byte {
	names := r.holders(s)
	whole := s.Duration.Std().Seconds()
	use := make([][]float64, len(names)) // by tenant and column: mean share
	for i := range use {
		use[i] = make([]float64, columns)
	}
	queue := make([]float64, columns)
	// One resource is drawn: GPUs if the cluster has any, else CPUs.
	share := func(c berth.Capacity) float64 {
		if r.owned.GPUMilli > 0 {
			return part(c.GPUMilli, r.owned.GPUMilli)
		}
		return part(c.CPUMilli, r.owned.CPUMilli)
	}
	width := whole / columns
	// A sample may cover several columns, or a part of one: each column gets the mean over
	// its width.
	r.each(s.Duration.Std(), func(p sample, seconds float64) {
		begin := p.at.Sub(origin).Seconds()
		for c := int(begin / width); c < columns && float64(c)*width < begin+seconds; c++ {
			part := (min(begin+seconds, float64(c+1)*width) - max(begin, float64(c)*width)) / width
			for i, name := range names {
				use[i][c] += share(p.tenants[name]) * part
			}
			queue[c] += float64(p.waiting) * part
		}
	})
	var b bytes.Buffer
	height := marginTop + useHeight + gap + queueHeight + 44
	total := marginLeft + plotWidth + 24
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" `+
		`viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", total, height, total, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", total, height)
	what := "CPUs"
	if r.owned.GPUMilli > 0 {
		what = "GPUs"
	}
	axis(&b, marginTop, useHeight, what+" in use", "100 %", "50 %", s.Duration.Std())
	// Each tenant's area lies on the areas of the tenants before it.
	base := make([]float64, columns)
	for i := range names {
		top := slices.Clone(base)
		for c := range top {
			top[c] += use[i][c]
		}
		area(&b, marginTop, useHeight, base, top, palette[i%len(palette)])
		base = top
	}
	legend(&b, names)
	// The queue is drawn relative to its greatest length.
	most := max(1, slices.Max(queue))
	axis(&b, marginTop+useHeight+gap, queueHeight, "jobs waiting", fmt.Sprintf("%.0f", most),
		fmt.Sprintf("%.3g", most/2), s.Duration.Std())
	for c := range queue {
		queue[c] /= most
	}
	area(&b, marginTop+useHeight+gap, queueHeight, make([]float64, columns), queue, "#666666")
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// holders lists the tenants that have jobs, in the order of the file.
func (r *replay) holders(s *scenario) []berth.TenantID {
	var list []berth.TenantID
	for _, x := range r.standings(s) {
		if x.jobs > 0 {
			list = append(list, x.tenant)
		}
	}
	return list
}

// axis draws a frame with its title, two horizontal marks and the hours below.
func axis(b *bytes.Buffer, top, height int, title, full, half string, whole time.Duration) {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", marginLeft, top-10, title)
	for _, m := range []struct {
		y     int
		label string
	}{{top, full}, {top + height/2, half}, {top + height, "0"}} {
		fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ddd"/>`+"\n", marginLeft, m.y,
			marginLeft+plotWidth, m.y)
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", marginLeft-8, m.y+4, m.label)
	}
	const marks = 6
	for i := range marks + 1 {
		x := marginLeft + plotWidth*i/marks
		at := spec.Duration((whole * time.Duration(i) / marks).Round(time.Second))
		fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#888"/>`+"\n", x, top+height, x, top+height+5)
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", x, top+height+19, at)
	}
}

// area fills the space between two lines of columns, each in parts of the panel's height.
func area(b *bytes.Buffer, top, height int, low, high []float64, colour string) {
	// SVG counts y downwards from the top.
	y := func(v float64) float64 { return float64(top) + float64(height)*(1-v) }
	x := func(c int) float64 { return marginLeft + float64(plotWidth)*float64(c)/columns }
	b.WriteString(`<path fill="` + colour + `" d="M`)
	for c, v := range high {
		fmt.Fprintf(b, "%.1f,%.1f %.1f,%.1f ", x(c), y(v), x(c+1), y(v))
	}
	// The path returns along the lower line, from right to left.
	for c := columns - 1; c >= 0; c-- {
		fmt.Fprintf(b, "%.1f,%.1f %.1f,%.1f ", x(c+1), y(low[c]), x(c), y(low[c]))
	}
	b.WriteString("Z\"/>\n")
}

// legend draws a square and a name per tenant to the right of the upper panel's title.
func legend(b *bytes.Buffer, names []berth.TenantID) {
	x := marginLeft + 140
	for i, n := range names {
		label := string(n)
		if label == "" {
			label = "jobs"
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			x, marginTop-21, palette[i%len(palette)], x+17, marginTop-10, html.EscapeString(label))
		x += 34 + 8*len([]rune(label))
	}
}
