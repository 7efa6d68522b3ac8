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
	Unit  string // one of the units of package wire
	Lines []Line
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
	`.line{fill:none;stroke-width:1.6;stroke-linecap:round;stroke-linejoin:round}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}.grid{stroke:#3d444d}}
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
	most := ceiling(p.largest(), p.Unit)
	for i := range 3 {
		y := top + panel*i/2
		fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`, left, y, left+plot, y)
		fmt.Fprintf(b, `<text class="soft" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, y+4,
			text(Format(most*float64(2-i)/2, p.Unit)))
	}
	// The legend begins behind the title. Widths are estimates, since the reader's font is
	// unknown: ten pixels for a bold character, eight for another.
	x := left + 10*(2+len([]rune(cut(p.Title, longest))))
	// Beyond the palette's length colours repeat, and only the first lines are named.
	for i, l := range p.Lines {
		colour := palette[i%len(palette)]
		l.draw(b, top, colour, most, from, to)
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

// largest returns the largest value of all lines, 0 without any.
func (p Panel) largest() float64 {
	most := 0.0
	for _, l := range p.Lines {
		for _, v := range l.Values {
			if v > most { // false of NaN
				most = v
			}
		}
	}
	return most
}

// draw joins the middles of the steps by straight lines. A gap ends a line, and a value between
// two gaps is a dot.
func (l Line) draw(b *bytes.Buffer, top int, colour string, most float64, from, to time.Time) {
	whole := to.Sub(from).Seconds()
	fmt.Fprintf(b, `<path class="line" stroke="%s" d="`, colour)
	join := false
	for i, v := range l.Values {
		if math.IsNaN(v) {
			join = false
			continue
		}
		at := l.Start.Add(time.Duration(i)*l.Step + l.Step/2).Sub(from).Seconds()
		x, y := left+plot*at/whole, float64(top)+panel*(1-min(1, max(0, v/most)))
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

// times draws the time axis: seven marks with the time since the start.
func times(b *bytes.Buffer, y int, from, to time.Time) {
	const marks = 6
	for i := range marks + 1 {
		anchor := "middle"
		if i == marks {
			anchor = "end"
		}
		x, at := left+plot*i/marks, to.Sub(from)*time.Duration(i)/marks
		label := "+" + spec.Duration(at.Round(time.Second)).String()
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
	case v <= 0 || math.IsInf(v, 0):
		return 1
	}
	base := 1.0
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
