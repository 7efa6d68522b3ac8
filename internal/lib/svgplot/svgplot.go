// Package svgplot renders time series as SVG: one panel for each quantity, one below
// the other, on a shared time axis. The drawing is legible on light and on dark
// backgrounds, has no script and no external references; all text is escaped.
package svgplot

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Chart is one picture.
type Chart struct {
	Title  string
	Panels []Panel
	Empty  string // text of a chart without panels
}

// Panel is one quantity.
type Panel struct {
	Title string
	Unit  string // one of the units of package wire; "" for a job's own values
	Lines []Line

	// Limit is drawn as a dashed line with its value; 0: none. A limit far above the values is
	// only named next to the title, since the lines would be flat on its scale.
	Limit float64
}

// Line is one series: one value for each step, NaN for a gap.
type Line struct {
	Label  string
	Start  time.Time
	Step   time.Duration
	Values []float64
}

// Measures of the drawing, in pixels: the width of the picture and its margins, the heights of
// the head, of the axis below, and of a panel and its title.
const (
	width, left, right = 880, 84, 20
	head, foot         = 44, 34
	panelHead, panel   = 34, 96
	plot               = width - left - right
	labelled           = 8  // lines of a panel that are named
	longest            = 40 // runes of a label
)

// palette distinguishes lines, also for readers with colour blindness (Okabe and
// Ito, without the colours that vanish on white or on black).
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#8c6d1f"}

// style gives each class of elements a colour for light and one for dark backgrounds, by the
// reader's own setting.
const style = `<style>
.ground{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}.grid{stroke:#d1d9e0}` +
	`.line{fill:none;stroke-width:1.6;stroke-linecap:round;stroke-linejoin:round}` +
	`.limit{stroke:#cf222e;stroke-width:1.2;stroke-dasharray:6 4}.limits{fill:#cf222e}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}.grid{stroke:#3d444d}` +
	`.limit{stroke:#ff7b72}.limits{fill:#ff7b72}}
</style>
`

// SVG draws the chart. The same chart always gives the same bytes.
func (c Chart) SVG() []byte {
	from, to := c.span()
	height := head + foot + len(c.Panels)*(panelHead+panel)
	if len(c.Panels) == 0 {
		height += 30
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="system-ui,sans-serif" font-size="12" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", text(c.Title), style)
	fmt.Fprintf(&b, `<rect class="ground" width="%d" height="%d"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text class="ink" x="16" y="26" font-size="15" font-weight="600">%s</text>`+"\n",
		text(cut(c.Title, 80)))
	if len(c.Panels) == 0 {
		fmt.Fprintf(&b, `<text class="soft" x="16" y="%d">%s</text>`+"\n", head+20, text(c.Empty))
	}
	top := head
	for _, p := range c.Panels {
		p.draw(&b, top+panelHead, from, to)
		top += panelHead + panel
	}
	if len(c.Panels) > 0 {
		fmt.Fprintf(&b, `<text class="soft" x="%d" y="26" text-anchor="end">%s</text>`+"\n", width-right,
			from.UTC().Format("2006-01-02 15:04:05Z"))
		times(&b, top, from, to)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// span returns the time of the picture, from the first start to the last end of all lines. It is
// at least a second, so that no division by its length fails.
func (c Chart) span() (from, to time.Time) {
	for _, p := range c.Panels {
		for _, l := range p.Lines {
			end := l.Start.Add(time.Duration(len(l.Values)) * l.Step)
			if from.IsZero() || l.Start.Before(from) {
				from = l.Start
			}
			if end.After(to) {
				to = end
			}
		}
	}
	if !to.After(from) {
		to = from.Add(time.Second)
	}
	return from, to
}

// draw draws the title, the scale with three labels, the lines, and a legend as wide as the panel
// allows. top is the upper edge of the plot.
func (p Panel) draw(b *bytes.Buffer, top int, from, to time.Time) {
	fmt.Fprintf(b, `<text class="ink" x="%d" y="%d" font-weight="600">%s</text>`+"\n", left, top-9,
		text(cut(p.Title, longest)))
	s := p.scale()
	for i, label := range s.labels(p.Unit) {
		y := top + panel*i/2
		fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`, left, y, left+plot, y)
		if label != "" {
			fmt.Fprintf(b, `<text class="soft" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, y+4,
				text(label))
		}
	}
	// The legend begins behind the title. Widths are estimates, since the reader's font is
	// unknown: ten pixels for a bold character, eight for another.
	x := p.drawLimit(b, top, s, left+10*(2+len([]rune(cut(p.Title, longest)))))
	// Beyond the palette's length colours repeat, and only the first lines are named.
	for i, l := range p.Lines {
		colour := palette[i%len(palette)]
		l.draw(b, top, colour, s, from, to)
		if l.Label == "" || i >= labelled {
			continue
		}
		label := cut(l.Label, longest)
		if next := x + 24 + 8*len([]rune(label)); next < left+plot {
			fmt.Fprintf(b, `<circle cx="%d" cy="%d" r="4" fill="%s"/><text class="soft" x="%d" y="%d">%s</text>`+"\n",
				x, top-13, colour, x+9, top-9, text(label))
			x = next
		}
	}
}

// drawLimit draws the limit's line, if the scale holds it, and names the limit at x. It returns
// the place for the next label.
func (p Panel) drawLimit(b *bytes.Buffer, top int, s scale, x int) int {
	if p.Limit <= 0 {
		return x
	}
	if p.Limit <= s.most {
		y := float64(top) + panel*(1-s.share(p.Limit))
		fmt.Fprintf(b, `<line class="limit" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`+"\n", left, y, left+plot, y)
	}
	label := "limit " + Format(p.Limit, p.Unit)
	fmt.Fprintf(b, `<text class="limits" x="%d" y="%d">%s</text>`+"\n", x, top-9, text(label))
	return x + 16 + 8*len([]rune(label))
}

// scale is the range of values from the lower to the upper edge of a panel.
type scale struct{ least, most float64 }

// limitReach is how many times the largest value a limit may be to still be on the scale.
const limitReach = 4

// scale returns the scale of the panel. Measurements start at 0. A job's own values may be
// negative, or vary little around a large value, so their scale starts near the smallest.
func (p Panel) scale() scale {
	least, most := p.extremes()
	if p.Unit != "" {
		if p.Limit > most && p.Limit <= limitReach*most {
			most = p.Limit
		}
		return scale{0, ceiling(most, p.Unit)}
	}
	if most-least < leastSpan { // a flat line is drawn in the middle
		d := max(math.Abs(least)/2, 1)
		return scale{least - d, least + d}
	}
	// Half of the scale is a round step, and both edges are multiples of it.
	step := ceiling((most-least)/2, "")
	low := math.Floor(least/step) * step
	for low+2*step < most {
		step = ceiling(step*1.01, "")
		low = math.Floor(least/step) * step
	}
	return scale{low, low + 2*step}
}

// share returns the place of v on the scale, from 0 to 1.
func (s scale) share(v float64) float64 {
	return min(1, max(0, (v-s.least)/(s.most-s.least)))
}

// labels returns the labels of the upper edge, the middle and the lower edge. A label that
// rounds to the text of another one is empty: it would claim that the scale is flat.
func (s scale) labels(unit string) [3]string {
	values := [3]float64{s.most, (s.most + s.least) / 2, s.least}
	var labels [3]string
	for i, v := range values {
		labels[i] = Format(v, unit)
	}
	// A job's own values may differ in late digits only.
	for digits := 4; unit == "" && digits < 16 && (labels[0] == labels[1] || labels[1] == labels[2]); digits++ {
		for i, v := range values {
			labels[i] = strconv.FormatFloat(v, 'g', digits, 64)
		}
	}
	if labels[1] == labels[0] || labels[1] == labels[2] {
		labels[1] = ""
	}
	if labels[2] == labels[0] {
		labels[2] = ""
	}
	return labels
}

// Bounds of a scale. A job may report any number as its own value: beyond greatest a difference
// of two values overflows, and a scale of less than leastSpan has no round step.
const (
	greatest  = 1e300
	leastSpan = 1e-300
)

// extremes returns the smallest and the largest value of all lines, 0 without any, within the
// bounds of a scale.
func (p Panel) extremes() (least, most float64) {
	least, most = math.Inf(1), math.Inf(-1)
	for _, l := range p.Lines {
		for _, v := range l.Values {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if least > most {
		return 0, 0
	}
	return max(least, -greatest), min(most, greatest)
}

// draw joins the middles of the steps by straight lines. A gap ends a line, and a value between
// two gaps is a dot.
func (l Line) draw(b *bytes.Buffer, top int, colour string, s scale, from, to time.Time) {
	whole := to.Sub(from).Seconds()
	fmt.Fprintf(b, `<path class="line" stroke="%s" d="`, colour)
	join := false
	for i, v := range l.Values {
		if math.IsNaN(v) {
			join = false
			continue
		}
		at := l.Start.Add(time.Duration(i)*l.Step + l.Step/2).Sub(from).Seconds()
		x, y := left+plot*at/whole, float64(top)+panel*(1-s.share(v))
		verb := "L"
		if !join {
			verb = "M"
		}
		fmt.Fprintf(b, "%s%.1f,%.1f", verb, x, y)
		// A move alone would draw nothing: the tiny line makes a single value visible as a dot.
		if !join {
			b.WriteString("h0.1")
		}
		join = true
	}
	b.WriteString("\"/>\n")
}

// timeSteps are the steps between two marks of the time axis.
var timeSteps = []time.Duration{
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
	15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour,
	12 * time.Hour, 24 * time.Hour,
}

// timeStep returns the least round step that needs at most seven marks for a time. Beyond the
// largest of timeSteps the steps are whole days.
func timeStep(whole time.Duration) time.Duration {
	const marks = 7
	for _, step := range timeSteps {
		if whole/step < marks {
			return step
		}
	}
	const day = 24 * time.Hour
	return (whole/marks + day - 1).Truncate(day)
}

// times draws the time axis: marks at round times since the start, each with another label.
func times(b *bytes.Buffer, y int, from, to time.Time) {
	whole := to.Sub(from)
	for at, step := time.Duration(0), timeStep(whole); at <= whole; at += step {
		x, anchor := left+int(int64(plot)*int64(at/time.Millisecond)/int64(max(whole/time.Millisecond, 1))), "middle"
		if x > left+plot-30 {
			anchor = "end"
		}
		label := "+" + spec.Duration(at).String()
		fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`+
			`<text class="soft" x="%d" y="%d" text-anchor="%s">%s</text>`+"\n",
			x, y, x, y+5, x, y+20, anchor, label)
	}
}

// ceiling returns a round number at or above v, the top of the scale. Bytes are rounded in units
// of 1024, so that the labels are round too; a ratio always has the scale of 0 to 1.
func ceiling(v float64, unit string) float64 {
	switch {
	case unit == wire.UnitRatio:
		return 1
	case (v <= 0 || math.IsInf(v, 0)) && (unit == wire.UnitBytes || unit == wire.UnitBytesPerSecond):
		return 2 // one byte has no label of its half
	case v <= 0 || math.IsInf(v, 0):
		return 1
	}
	base := 1.0
	// Less than two bytes have no round half.
	if unit == wire.UnitBytes || unit == wire.UnitBytesPerSecond {
		v = max(v, 2)
	}
	if unit == wire.UnitBytes || unit == wire.UnitBytesPerSecond {
		base = math.Pow(1024, math.Floor(math.Log(v)/math.Log(1024)))
	}
	scale := math.Pow(10, math.Floor(math.Log10(v/base))) * base
	// The middle label shows half of the top, so that the top should be round when halved too.
	steps := []float64{1, 2, 4, 5, 10}
	i := slices.IndexFunc(steps, func(s float64) bool { return s*scale >= v })
	return steps[max(i, 0)] * scale
}

// Format formats a value with its unit, in about three digits.
func Format(v float64, unit string) string {
	switch unit {
	case wire.UnitRatio:
		return fmt.Sprintf("%.0f %%", 100*v)
	case wire.UnitBytes:
		return berth.BytesText(int64(v))
	case wire.UnitBytesPerSecond:
		return berth.BytesText(int64(v)) + "/s"
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

// cut shortens a text to a number of runes, the last of which is then an ellipsis.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// text escapes a shown text, and drops the characters that XML excludes, since a label may hold
// any.
func text(s string) string {
	clean := make([]rune, 0, len(s))
	for _, r := range s {
		if r >= ' ' && r != 0x7f && r != 0xfffe && r != 0xffff {
			clean = append(clean, r)
		}
	}
	return html.EscapeString(string(clean))
}
