package proof_test

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Bounds of the last tenth as a multiple of the first.
const (
	latencyLimit = 1.2
	memoryLimit  = 1.2
	costLimit    = 1.2
)

// blocks is how many parts a tenth is judged by: the middle one of their p99
// stands for the tenth, so that a machine that was busy for less than half of it
// spoils no verdict.
const blocks = 6

// figure is one thing in each tenth.
type figure struct {
	name   string
	values []float64
	digits int
	ratio  float64 // of the last to the first, as it is judged; 0: not compared
	trend  float64 // the same by the slope of the whole run; 0: not shown
	limit  float64 // of ratio; 0: not judged
}

// enduranceTable holds the results of a run.
type enduranceTable struct {
	figures  []figure
	verdicts []string
	remarks  []string
	failed   bool
}

func newEnduranceTable(m *meter, l *load) *enduranceTable {
	t := &enduranceTable{}
	spans := m.spans(len(m.readings) - 1)
	t.addLatencies(m, l, spans)
	t.addQueue(m, spans)
	t.addMemory(m, spans)
	t.addCost(m, l, spans)
	t.addStores(m, l, spans)
	t.addMachine(m, spans)
	for _, f := range t.figures {
		if f.limit > 0 {
			t.judge(f.name, f.ratio <= f.limit, "last tenth %.2f of the first, allowed %.2f", f.ratio, f.limit)
		}
	}
	for what, n := range l.faults {
		t.remarks = append(t.remarks, fmt.Sprintf("%d x %s", n, what))
	}
	t.judge("every call was answered", len(l.faults) == 0, "%d kinds of faults", len(l.faults))
	return t
}

// span is a tenth of the run.
type span struct{ from, to time.Duration }

// spans are the first n tenths after the warm-up.
func (m *meter) spans(n int) []span {
	var list []span
	for i := range n {
		list = append(list, span{m.readings[i].at, m.readings[i+1].at})
	}
	return list
}

func (x span) minutes() float64 { return (x.to - x.from).Minutes() }

// add adds f's value of each tenth.
func (t *enduranceTable) add(name string, digits int, spans []span, f func(int, span) float64) *figure {
	x := figure{name: name, digits: digits}
	for i, s := range spans {
		x.values = append(x.values, f(i, s))
	}
	t.figures = append(t.figures, x)
	return &t.figures[len(t.figures)-1]
}

// compare judges the last tenth by the first.
func (f *figure) compare(limit float64) {
	f.ratio, f.limit = quotient(f.values[len(f.values)-1], f.values[0]), limit
}

func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (t *enduranceTable) addLatencies(m *meter, l *load, spans []span) {
	t.add("jobs submitted", 0, spans, func(_ int, s span) float64 { return float64(len(l.between(callSubmit, s.from, s.to))) })
	starts := m.starts(spans[0].from, spans[len(spans)-1].to)
	took := func(kind string) func(from, to time.Duration) []time.Duration {
		if kind != "start" {
			return func(from, to time.Duration) []time.Duration { return l.between(kind, from, to) }
		}
		return func(from, to time.Duration) (list []time.Duration) {
			for _, c := range starts {
				if c.at >= from && c.at < to {
					list = append(list, c.took)
				}
			}
			return list
		}
	}
	for _, x := range []struct {
		kind, name string
		part       float64
		limit      float64
	}{
		{callSubmit, "submit, p50 ms", 0.50, 0},
		{callSubmit, "submit, p99 ms", 0.99, latencyLimit},
		{callList, "list, p50 ms", 0.50, 0},
		{callList, "list, p99 ms", 0.99, latencyLimit},
		{callName, "list by name, p50 ms", 0.50, 0},
		{callLabel, "list by label, p50 ms", 0.50, 0},
		{callShow, "show, history, log, p99 ms", 0.99, 0},
		{"start", "submit to start, p50 ms", 0.50, 0},
		{"start", "submit to start, p99 ms", 0.99, latencyLimit},
	} {
		of := took(x.kind)
		f := t.add(x.name, 1, spans, func(_ int, s span) float64 { return inMS(part(of(s.from, s.to), x.part)) })
		var all []float64 // of each block
		for _, s := range spans {
			step := (s.to - s.from) / blocks
			for i := range blocks {
				all = append(all, inMS(part(of(s.from+time.Duration(i)*step, s.from+time.Duration(i+1)*step), x.part)))
			}
		}
		f.ratio, f.limit = quotient(part(all[len(all)-blocks:], 0.5), part(all[:blocks], 0.5)), x.limit
		f.trend = trend(all)
	}
}

func (t *enduranceTable) addQueue(m *meter, spans []span) {
	live := func(s span) (list []float64) {
		for _, x := range m.within(s.from, s.to) {
			list = append(list, sum(x.queue))
		}
		return list
	}
	t.add("live jobs, mean", 1, spans, func(_ int, s span) float64 { return mean(live(s)) })
	t.add("live jobs, most", 0, spans, func(_ int, s span) float64 { return part(live(s), 1) })
}

func (t *enduranceTable) addMemory(m *meter, spans []span) {
	of := func(read func(sample) float64) func(int, span) float64 {
		return func(_ int, s span) float64 {
			var list []float64
			for _, x := range m.within(s.from, s.to) {
				list = append(list, read(x))
			}
			return part(list, 0.5)
		}
	}
	for _, name := range m.names() {
		t.add(name+", memory MiB", 1, spans, of(func(x sample) float64 { return x.rss[name] })).compare(memoryLimit)
		t.add(name+", live heap MiB", 0, spans, of(func(x sample) float64 { return x.heap[name] })).compare(0)
		t.add(name+", open files", 0, spans, of(func(x sample) float64 { return x.files[name] })).compare(0)
	}
	t.add("postgres, processes", 0, spans, of(func(x sample) float64 { return x.processes })).compare(0)
	t.add("postgres, memory of its own MiB", 1, spans, of(func(x sample) float64 { return x.private })).compare(memoryLimit)
	t.add("postgres, shared buffers touched MiB", 1, spans, of(func(x sample) float64 { return x.shared })).compare(0)
}

func (t *enduranceTable) addCost(m *meter, l *load, spans []span) {
	perJob := func(name string) func(int, span) float64 {
		return func(i int, s span) float64 {
			d := m.readings[i+1].cpu[name] - m.readings[i].cpu[name]
			return inMS(d) / float64(len(l.between(callSubmit, s.from, s.to)))
		}
	}
	parts := append(m.names(), "postgres")
	all := t.add("CPU a job, ms", 1, spans, func(i int, s span) (cpu float64) {
		for _, name := range parts {
			cpu += perJob(name)(i, s)
		}
		return cpu
	})
	all.compare(costLimit)
	all.trend = trend(all.values)
	for _, name := range parts {
		t.add("  of "+name, 1, spans, perJob(name)).compare(0)
	}
}

func (t *enduranceTable) addStores(m *meter, l *load, spans []span) {
	for _, name := range slices.Sorted(maps.Keys(m.readings[0].sizes)) {
		t.add("database "+name+", MiB", 0, spans, func(i int, _ span) float64 { return m.readings[i+1].sizes[name] })
	}
	last := m.readings[len(m.readings)-1].tables
	names := slices.SortedFunc(maps.Keys(last), func(a, b string) int { return cmp.Compare(last[b].size, last[a].size) })
	for _, name := range names[:min(6, len(names))] {
		t.add("  "+name+", MiB", 1, spans, func(i int, _ span) float64 { return m.readings[i+1].tables[name].size })
	}
	t.add("dead rows", 0, spans, func(i int, _ span) (n float64) {
		for _, x := range m.readings[i+1].tables {
			n += x.dead
		}
		return n
	})
	perJob := func(read func(table) float64, only string) func(int, span) float64 {
		return func(i int, s span) (n float64) {
			for name, x := range m.readings[i+1].tables {
				if only == "" || name == only {
					n += read(x) - read(m.readings[i].tables[name])
				}
			}
			return n / float64(len(l.between(callSubmit, s.from, s.to)))
		}
	}
	for _, way := range []struct {
		name string
		read func(table) float64
	}{
		{"rows read a job, by scans", func(x table) float64 { return x.scanned }},
		{"rows read a job, by indexes", func(x table) float64 { return x.fetched }},
	} {
		t.add(way.name, 0, spans, perJob(way.read, "")).compare(0)
		busiest := slices.SortedFunc(maps.Keys(last), func(a, b string) int { return cmp.Compare(way.read(last[b]), way.read(last[a])) })
		for _, name := range busiest[:min(4, len(busiest))] {
			t.add("  of "+name, 0, spans, perJob(way.read, name)).compare(0)
		}
	}
	t.add("rows of Temporal's histories", 0, spans, func(i int, _ span) float64 { return m.readings[i+1].nodes })
	t.add("files of the object store", 0, spans, func(i int, _ span) float64 { return m.readings[i+1].blobs })
	t.add("entries of the agents' folders", 0, spans, func(i int, _ span) float64 { return m.readings[i+1].state })
}

// addMachine shows how even the machine was: if its own figures grow, the figures above have
// grown through no fault of Berth's.
func (t *enduranceTable) addMachine(m *meter, spans []span) {
	for _, x := range []struct {
		name string
		read func(sample) time.Duration
	}{{"probe of the CPU", func(x sample) time.Duration { return x.spin }}, {"probe of the disk", func(x sample) time.Duration { return x.flush }}} {
		for _, p := range []struct {
			name string
			part float64
		}{{"p50", 0.5}, {"p90", 0.9}} {
			t.add(x.name+", "+p.name+" ms", 1, spans, func(_ int, s span) float64 {
				var list []time.Duration
				for _, y := range m.within(s.from, s.to) {
					list = append(list, x.read(y))
				}
				return inMS(part(list, p.part))
			}).compare(0)
		}
	}
	t.add("cores that others use", 2, spans, func(i int, s span) float64 {
		a, b := m.readings[i], m.readings[i+1]
		others := b.all - a.all
		for name := range b.cpu {
			others -= b.cpu[name] - a.cpu[name]
		}
		return others.Seconds() / (s.to - s.from).Seconds()
	})
}

func (t *enduranceTable) judge(name string, ok bool, format string, args ...any) {
	word := "ok    "
	if !ok {
		word, t.failed = "MISSED", true
	}
	t.verdicts = append(t.verdicts, word+"  "+name+": "+fmt.Sprintf(format, args...))
}

func (t *enduranceTable) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\ntenth\t")
	for i := range t.figures[0].values {
		fmt.Fprintf(w, "%d\t", i+1)
	}
	fmt.Fprintln(w, "last/first\ttrend\t")
	for _, f := range t.figures {
		fmt.Fprintf(w, "%s\t", f.name)
		for _, v := range f.values {
			fmt.Fprintf(w, "%.*f\t", f.digits, v)
		}
		for _, v := range []float64{f.ratio, f.trend} {
			if v > 0 {
				fmt.Fprintf(w, "%.2f", v)
			}
			fmt.Fprint(w, "\t")
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\nlast/first of a latency: the middle of %d blocks' quantiles of the last tenth over the same of the first\n"+
		"trend: what the middle slope between any two blocks, or tenths, makes of the whole run\n\n", blocks)
	for _, line := range append(t.verdicts, t.remarks...) {
		fmt.Fprintln(out, line)
	}
}

// line describes a tenth as soon as the tenth is over.
func (m *meter) line(l *load, i int) string {
	s := m.spans(i + 1)[i]
	var starts []time.Duration
	for _, c := range m.starts(s.from, s.to) {
		starts = append(starts, c.took)
	}
	submits := l.between(callSubmit, s.from, s.to)
	var live []float64
	var spins []time.Duration
	memory := map[string]float64{}
	for _, x := range m.within(s.from, s.to) {
		live, spins = append(live, sum(x.queue)), append(spins, x.spin)
		maps.Copy(memory, x.rss)
	}
	var parts []string
	for _, name := range m.names() {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, memory[name]))
	}
	return fmt.Sprintf("tenth %2d: %d jobs (%.1f/s); submit p50 %.1f p99 %.1f, list p99 %.1f, start p50 %.1f p99 %.1f ms; %.0f live; MiB: %s; probe %.1f ms",
		i+1, len(submits), float64(len(submits))/60/s.minutes(), inMS(part(submits, 0.5)), inMS(part(submits, 0.99)), inMS(part(l.between(callList, s.from, s.to), 0.99)),
		inMS(part(starts, 0.5)), inMS(part(starts, 0.99)), mean(live), strings.Join(parts, ", "), inMS(part(spins, 0.5)))
}

// trend is the end of a run as a multiple of its beginning, by the median slope between any two
// of its parts.
func trend(values []float64) float64 {
	var slopes []float64
	for i, a := range values {
		for j := i + 1; j < len(values); j++ {
			if a > 0 && values[j] > 0 {
				slopes = append(slopes, math.Log(values[j]/a)/float64(j-i))
			}
		}
	}
	if len(slopes) == 0 {
		return 0
	}
	return math.Exp(part(slopes, 0.5) * float64(len(values)-1))
}

// part is the smallest value that this part of the values does not exceed.
func part[T float64 | time.Duration](values []T, p float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

func mean(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return quotient(total, float64(len(values)))
}

func inMS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
