package bench_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
)

var (
	before  = flag.String("before", "", "test program of this package at an earlier commit, for BenchmarkPaired")
	pairs   = flag.Int("pairs", 9, "pairs of runs of BenchmarkPaired, at least 6")
	atLeast = flag.Float64("at-least", 0.97, "lowest end of the interval of the first figure, after over before")
)

// The figures that BenchmarkPaired names itself.
const (
	jobsOverBare = "jobs per second / bare workflows per second"
	jobsRate     = "jobs per second"
	cpuPerJob    = "CPU per job"
)

// BenchmarkPaired compares this commit with an earlier one. Each pair runs the test programs of both
// commits one after the other, each with its own PostgreSQL and Temporal server, and the order changes
// with each pair, so that a slow minute of the machine falls on both. For each figure the benchmark
// prints the median of the quotients after/before and an interval for this median (see interval).
//
// The benchmark fails if the interval of jobs over bare workflows begins below -at-least, or if the
// interval of the CPU per job lies above 1 as a whole.
func BenchmarkPaired(b *testing.B) {
	if *before == "" {
		b.Skip("needs -before: see scripts/bench-paired.sh")
	}
	if _, _, level := interval(make([]float64, *pairs)); level < 0.95 {
		b.Fatalf("-pairs %d: an interval of 95 %% needs at least 6 pairs", *pairs)
	}
	after, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c := comparison{quotients: map[string][]float64{}, before: map[string][]float64{}, after: map[string][]float64{}}
	for i := range *pairs {
		programs := []string{*before, after}
		if i%2 == 1 {
			slices.Reverse(programs)
		}
		found := map[string]map[string]float64{}
		for _, program := range programs {
			if found[program], err = runBench(b.Context(), program); err != nil {
				b.Fatal(err)
			}
		}
		c.add(found[*before], found[after])
		fmt.Printf("pair %d: %.3f and %.3f of the rate of bare workflows, before and after\n",
			i+1, found[*before][jobsOverBare], found[after][jobsOverBare])
	}
	fmt.Println(c.String() + "  measured on " + machine())
	c.judge(b)
}

// judge compares the intervals with the bounds.
func (c *comparison) judge(b *testing.B) {
	if q := c.quotients[jobsOverBare]; len(q) > 0 {
		if low, _, _ := interval(q); low < *atLeast {
			b.Errorf("%s: the interval of after over before begins at %.3f, at least %.3f is allowed",
				jobsOverBare, low, *atLeast)
		}
	}
	if q := c.quotients[cpuPerJob]; len(q) > 0 {
		if low, _, _ := interval(q); low > 1 {
			b.Errorf("%s: the interval of after over before begins at %.3f: a job costs more CPU than before", cpuPerJob, low)
		}
	}
}

// runBench runs BenchmarkBerth of one commit for one round and returns its figures. A figure that
// misses its bound fails the program, but is a figure.
func runBench(ctx context.Context, program string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, program,
		"-test.run", "^$", "-test.bench", "^BenchmarkBerth$", "-test.benchtime", "1x", "-test.timeout", "20m",
		"-parts", *parts, "-rounds", "1", "-jobs", strconv.Itoa(*jobs),
		"-singles", strconv.Itoa(*singles), "-containers", strconv.Itoa(*boxes))
	cmd.Dir = filepath.Dir(program) // a test program finds the sources of what it builds from its folder
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	figures := readFigures(out.String())
	if len(figures) == 0 {
		return nil, fmt.Errorf("%s printed no figure (%w):\n%s", program, err, out.String())
	}
	return figures, nil
}

var (
	roundLine = regexp.MustCompile(
		`(?m)^round \d+: ([\d.]+) jobs/s, ([\d.]+) bare workflows/s, ratio [\d.]+; CPU ([\d.]+) and`)
	tableLine = regexp.MustCompile(`(?m)^(\S.*?) {2,}([\d.]+)(?: ms|/s)? {2,}[<>]=`)
)

// readFigures reads the lines of a run of BenchmarkBerth with one round. The line of the round has
// more digits than the table.
func readFigures(out string) map[string]float64 {
	figures := map[string]float64{}
	number := func(text string) float64 {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return math.NaN()
		}
		return v
	}
	for _, m := range tableLine.FindAllStringSubmatch(out, -1) {
		figures[m[1]] = number(m[2])
	}
	if m := roundLine.FindStringSubmatch(out); m != nil {
		figures[jobsRate], figures[cpuPerJob] = number(m[1]), number(m[3])
		figures[jobsOverBare] = number(m[1]) / number(m[2])
	}
	return figures
}

// comparison has the figures of all pairs so far, by the name of the figure.
type comparison struct {
	names                    []string // sorted
	quotients, before, after map[string][]float64
}

// add adds the figures that both runs of a pair have.
func (c *comparison) add(before, after map[string]float64) {
	for name, was := range before {
		is, ok := after[name]
		if !ok || was == 0 {
			continue
		}
		if c.quotients[name] == nil {
			c.names = append(c.names, name)
		}
		c.quotients[name] = append(c.quotients[name], is/was)
		c.before[name] = append(c.before[name], was)
		c.after[name] = append(c.after[name], is)
	}
	slices.Sort(c.names)
}

// String renders the figures as a table.
func (c *comparison) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nfigure\tpairs\tbefore\tafter\tafter/before\tinterval")
	for _, name := range c.names {
		low, high, level := interval(c.quotients[name])
		fmt.Fprintf(w, "%s\t%d\t%.3g\t%.3g\t%.3f\t%.3f to %.3f (%.1f %%)\n", name, len(c.quotients[name]),
			middle(c.before[name]), middle(c.after[name]), middle(c.quotients[name]), low, high, 100*level)
	}
	_ = w.Flush()
	return text.String()
}

// middle returns the median of at least one value. Of an even number it is the mean of the two in the middle.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// interval returns the narrowest pair of symmetric order statistics that encloses the median of the
// distribution with a probability of at least 95 %, and that probability. The interval assumes only that
// the values are independent and of one distribution (David and Nagaraja, Order Statistics, 3rd edition,
// section 7.1). Fewer than six values have no such interval; then low and high are the least and the
// greatest value, and level says with which probability these enclose the median.
func interval(values []float64) (low, high, level float64) {
	n := len(values)
	if n == 0 {
		return math.NaN(), math.NaN(), 0
	}
	sorted := slices.Sorted(slices.Values(values))
	level = 1 - math.Pow(0.5, float64(n-1)) // the least and the greatest value
	k, each := 0, math.Pow(0.5, float64(n)) // each: the probability that exactly k values lie below the median
	for {
		each *= float64(n-k) / float64(k+1)
		if next := level - 2*each; next >= 0.95 && k+1 < n/2 {
			k, level = k+1, next
			continue
		}
		return sorted[k], sorted[n-1-k], level
	}
}

func TestFiguresOfARunAreRead(t *testing.T) {
	out := `round 1: 41.5 jobs/s, 50.0 bare workflows/s, ratio 0.83; CPU 30.1 and 22.0 ms each, ratio 0.73

figure                                       value    must        aim         verdict
jobs per second / bare workflows per second  0.83     >= 0.75     >= 0.90     ok        42/s of 50/s; by CPU 0.73
submit to process start, p50                 11.2 ms  <= 30.0 ms  <= 18.0 ms  aim reached
history events of a job placed at once       13       <= 22       <= 14       aim reached
  one job: CPU 30.1 ms in this process
`
	want := map[string]float64{jobsRate: 41.5, jobsOverBare: 0.83, cpuPerJob: 30.1,
		"submit to process start, p50": 11.2, "history events of a job placed at once": 13}
	got := readFigures(out)
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, v := range want {
		if math.Abs(got[name]-v) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got[name], v)
		}
	}
}

// Tables of the binomial distribution give the same ranks.
func TestIntervalsOfMedians(t *testing.T) {
	for n, want := range map[int]struct{ low, high, level float64 }{
		5:  {1, 5, 0.9375},
		6:  {1, 6, 0.96875},
		9:  {2, 8, 0.9609375},
		12: {3, 10, 0.96142578125},
		20: {6, 15, 0.958610534668},
	} {
		values := make([]float64, n)
		for i := range values {
			values[i] = float64(n - i)
		}
		low, high, level := interval(values)
		if low != want.low || high != want.high || math.Abs(level-want.level) > 1e-9 {
			t.Errorf("%d values: got %v to %v at %v, want %+v", n, low, high, level, want)
		}
	}
}

func TestPairsAreComparedByTheirQuotients(t *testing.T) {
	c := comparison{quotients: map[string][]float64{}, before: map[string][]float64{}, after: map[string][]float64{}}
	for i := range 9 {
		slow := float64(1 + i) // a machine that becomes slower and slower
		c.add(map[string]float64{jobsRate: 100 / slow, "gone": 1}, map[string]float64{jobsRate: 98 / slow, "new": 1})
	}
	low, high, _ := interval(c.quotients[jobsRate])
	if math.Abs(low-0.98) > 1e-9 || math.Abs(high-0.98) > 1e-9 || !slices.Equal(c.names, []string{jobsRate}) {
		t.Errorf("got %v to %v of %v, want 0.98 for %s alone", low, high, c.names, jobsRate)
	}
}
