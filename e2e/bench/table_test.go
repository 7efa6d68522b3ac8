package bench_test

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// figure is one line of the table. Where high is set more is better.
type figure struct {
	name      string
	value     float64
	unit      string
	must, aim float64
	high      bool
	note      string
}

// verdict compares the value with its bound and its goal.
func (f figure) verdict() string {
	reaches := func(limit float64) bool {
		if f.high {
			return f.value >= limit
		}
		return f.value <= limit
	}
	switch {
	case math.IsNaN(f.value):
		return "NOT MEASURED"
	case reaches(f.aim):
		return "aim reached"
	case reaches(f.must):
		return "ok"
	default:
		return "MISSED"
	}
}

func (f figure) missed() bool { v := f.verdict(); return v != "ok" && v != "aim reached" }

func (f figure) show(v float64) string {
	switch f.unit {
	case "ratio":
		return fmt.Sprintf("%.2f", v)
	case "ms":
		return fmt.Sprintf("%.1f ms", v)
	case "/s":
		return fmt.Sprintf("%.0f/s", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// table holds the figures of a run.
type table struct {
	figures []figure
	remarks []string
}

func (t *table) add(f figure) { t.figures = append(t.figures, f) }

func (t *table) remark(format string, args ...any) {
	t.remarks = append(t.remarks, fmt.Sprintf(format, args...))
}

// missed counts the figures below their bound.
func (t *table) missed() int {
	n := 0
	for _, f := range t.figures {
		if f.missed() {
			n++
		}
	}
	return n
}

func (t *table) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nfigure\tvalue\tmust\taim\tverdict\t")
	for _, f := range t.figures {
		sign := "<= "
		if f.high {
			sign = ">= "
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", f.name, f.show(f.value), sign+f.show(f.must), sign+f.show(f.aim), f.verdict(), f.note)
	}
	_ = w.Flush()
	for _, r := range t.remarks {
		fmt.Fprintln(out, "  "+r)
	}
	fmt.Fprintln(out)
}

// quantile is the smallest value that this part of the values does not exceed.
func quantile[T int | float64 | time.Duration](values []T, part float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

func median[T int | float64 | time.Duration](values []T) T { return quantile(values, 0.5) }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
