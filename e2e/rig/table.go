package rig

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// Figure is one line of a table of measurements.
type Figure struct {
	Name  string
	Value float64 // NaN: not measured

	// Between is the interval of a value that chance moves; nil: none was computed.
	Between *Interval

	Unit string // printed after the value; "ratio" prints no unit
	Must *float64
	Aim  *float64
	High bool // more is better
	Note string
}

// Limit returns a bound for Must and Aim.
func Limit(v float64) *float64 { return &v }

// notCertain is added to a verdict where the bound lies within the interval: another run may find the opposite.
const notCertain = ", not certain"

// Verdict compares the value with its bounds. The value alone decides; the interval only says how certain the verdict
// is, so a wide interval excuses nothing.
func (f Figure) Verdict() string {
	switch {
	case f.Must == nil:
		return ""
	case math.IsNaN(f.Value):
		return "NOT MEASURED"
	}
	text := "MISSED"
	if f.reaches(f.Value, f.Must) {
		text = "ok"
		if f.reaches(f.Value, f.Aim) {
			text = "aim reached"
		}
	}
	if f.Between != nil && f.reaches(f.Between.Low, f.Must) != f.reaches(f.Between.High, f.Must) {
		text += notCertain
	}
	return text
}

// reaches reports whether a value keeps a bound. No value keeps a bound that is nil.
func (f Figure) reaches(v float64, limit *float64) bool {
	return limit != nil && (f.High && v >= *limit || !f.High && v <= *limit)
}

// show formats a value with three significant digits and its unit, "" for nil.
func (f Figure) show(v *float64) string {
	if v == nil {
		return ""
	}
	digits := 3
	switch x := math.Abs(*v); {
	case x >= 100 || x == math.Trunc(x):
		digits = 0
	case x >= 10:
		digits = 1
	case x >= 1:
		digits = 2
	}
	text := fmt.Sprintf("%.*f", digits, *v)
	if f.Unit != "" && f.Unit != "ratio" {
		text += " " + f.Unit
	}
	return text
}

// Table collects figures and remarks.
type Table struct {
	Figures []Figure
	Remarks []string
}

// Add adds a figure.
func (t *Table) Add(f Figure) { t.Figures = append(t.Figures, f) }

// Remark adds a line below the table.
func (t *Table) Remark(format string, args ...any) {
	t.Remarks = append(t.Remarks, fmt.Sprintf(format, args...))
}

// Missed returns how many figures are outside their bounds or were not measured.
func (t *Table) Missed() int {
	n := 0
	for _, f := range t.Figures {
		if v := f.Verdict(); strings.HasPrefix(v, "MISSED") || v == "NOT MEASURED" {
			n++
		}
	}
	return n
}

// Print prints the table.
func (t *Table) Print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nfigure\tseen\tmust\taim\tverdict\t")
	for _, f := range t.Figures {
		sign := "<= "
		if f.High {
			sign = ">= "
		}
		bound := func(v *float64) string {
			if v == nil {
				return ""
			}
			return sign + f.show(v)
		}
		seen := "-"
		if !math.IsNaN(f.Value) {
			seen = f.show(&f.Value)
			if f.Between != nil {
				seen += fmt.Sprintf(" [%.2f, %.2f]", f.Between.Low, f.Between.High)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, seen, bound(f.Must), bound(f.Aim), f.Verdict(), f.Note)
	}
	_ = w.Flush()
	for _, r := range t.Remarks {
		fmt.Fprintln(out, "  "+r)
	}
	fmt.Fprintln(out)
}
