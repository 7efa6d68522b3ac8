package rig

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// Figure is one line of a table of measurements.
type Figure struct {
	Name  string
	Value float64 // NaN: not measured
	Unit  string  // printed after the value; "ratio" prints no unit
	Must  *float64
	Aim   *float64
	High  bool // more is better
	Note  string
}

// Limit returns a bound for Must and Aim.
func Limit(v float64) *float64 { return &v }

// Verdict compares the value with its bounds.
func (f Figure) Verdict() string {
	reaches := func(limit *float64) bool {
		return limit != nil && (f.High && f.Value >= *limit || !f.High && f.Value <= *limit)
	}
	switch {
	case f.Must == nil:
		return ""
	case math.IsNaN(f.Value):
		return "NOT MEASURED"
	case reaches(f.Aim):
		return "aim reached"
	case reaches(f.Must):
		return "ok"
	}
	return "MISSED"
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
		if v := f.Verdict(); v == "MISSED" || v == "NOT MEASURED" {
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
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, seen, bound(f.Must), bound(f.Aim), f.Verdict(), f.Note)
	}
	_ = w.Flush()
	for _, r := range t.Remarks {
		fmt.Fprintln(out, "  "+r)
	}
	fmt.Fprintln(out)
}

// Quantile returns the smallest value that this part of the values does not
// exceed; 0 of none.
func Quantile(values []time.Duration, part float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// Mean returns the mean of the values; 0 of none.
func Mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(len(values), 1))
}

// MS returns a duration in milliseconds.
func MS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
