package main

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/internal/lib/golden"
	"berth/placement"
)

// queue runs berth-sim queue and returns what it printed and wrote.
func queue(t *testing.T, args ...string) (printed, written string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.csv")
	printed, err := sim(append([]string{"queue", "--out", out}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return printed, string(b)
}

func TestQueueSaysWhatRanWhenAndWhere(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for _, p := range policyNames() {
		printed, written := queue(t, "--trace", "testdata/queue.csv", "--machines", "2", "--policy", p)
		fmt.Fprintf(&got, "%s\n%s\n", printed, written)
		trace, err := os.ReadFile("testdata/queue.csv")
		if err != nil {
			t.Fatal(err)
		}
		checkQueue(t, rows(t, string(trace)), rows(t, written), 2, 8)
	}
	golden.Check(t, "testdata/queue.txt", got.String())
}

// TestQueueKeepsWhatIsPublished holds the policies to the results published on
// this trace (see docs/design/simulation.md), by books of the test's own.
func TestQueueKeepsWhatIsPublished(t *testing.T) {
	t.Parallel()
	const srsf, srsfP99, sjf, tiresias, fifo, fifoP99 = 184_200, 3_692_000, 247_600, 343_200, 649_900, 1_349_000
	for name, most := range map[string]outcome{
		"srsf": {mean: 0.95 * srsf, p99: math.Inf(1), preemptions: 2},
		"sjf":  {mean: 1.001 * sjf, p99: math.Inf(1), preemptions: 0}, // the same rule
		"fifo": {mean: fifo, p99: 1.15 * fifoP99, preemptions: 0},     // the published one preempts
		"fair": {mean: 1.25 * srsf, p99: srsfP99 / 2, preemptions: 2},
		// The bound of two preemptions a job costs a tenth at this low load.
		"learned": {mean: 0.8 * tiresias, p99: math.Inf(1), preemptions: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const path = "testdata/muri_trace3.csv.gz"
			_, written := queue(t, "--trace", path, "--policy", name)
			got := checkQueue(t, rows(t, unzipped(t, path)), rows(t, written), 8, 8)
			t.Logf("%+v", got)
			if name == "learned" && got.often > placement.LearnedPreemptions {
				t.Errorf("a job was preempted %d times", got.often)
			}
			if got.mean > most.mean || got.p99 > most.p99 || got.preemptions > most.preemptions {
				t.Errorf("got %+v, want at most %+v", got, most)
			}
		})
	}
}

// TestQueueHoldsOnAnyTrace replays random traces on clusters that are too small
// for them.
func TestQueueHoldsOnAnyTrace(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		machines, gpus := 1+r.IntN(6), 1+r.IntN(8)
		var b strings.Builder
		b.WriteString("job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n")
		at := 0
		for i := range 80 {
			if r.IntN(3) > 0 {
				at += r.IntN(200_000)
			}
			models := []string{"vgg16", "a2c", "gpt2", "resnet18"}
			fmt.Fprintf(&b, "%d,%d,%d,%d,%s,%d\n", i, 1+r.IntN(machines*gpus), at, 1+r.IntN(2000), models[r.IntN(4)], 1+r.IntN(1000))
		}
		path := filepath.Join(t.TempDir(), "trace.csv")
		write(t, path, b.String())
		for _, p := range policyNames() {
			args := []string{"--trace", path, "--policy", p, "--machines", strconv.Itoa(machines), "--gpus", strconv.Itoa(gpus)}
			_, first := queue(t, args...)
			got := checkQueue(t, rows(t, b.String()), rows(t, first), machines, gpus)
			if p == "learned" && got.often > placement.LearnedPreemptions {
				t.Errorf("seed %d: a job was preempted %d times", seed, got.often)
			}
			if _, again := queue(t, args...); first != again {
				t.Errorf("seed %d, %s: two runs differ", seed, p)
			}
		}
	}
}

// outcome is what the jobs of a replay got.
type outcome struct {
	mean, p99, preemptions float64
	often                  int // preemptions of the job that was preempted most
}

// costs are the start costs as they are published, on 1 to 32 GPUs.
const costs = `vgg16 7 7 8 9 9 10
vgg19 7 7 8 9 10 10
resnet18 4 5 5 7 7 7
shufflenet_v2_x1_0 4 4 5 5 7 8
a2c 38 39 39 46 46 46
dqn 5 5 6 6 8 8`

func costOf(model string, gpus int) int64 {
	for line := range strings.Lines(costs) {
		f := strings.Fields(line)
		if f[0] != model {
			continue
		}
		size := 0
		for size < 5 && 1<<size < gpus {
			size++
		}
		n, _ := strconv.ParseInt(f[1+size], 10, 64)
		return n * 1e9
	}
	return 10 * 1e9
}

// checkQueue replays what was written, by books of its own: every job runs, not
// before it came, on places it may have, all of it and no more.
func checkQueue(t *testing.T, trace, written [][]string, machines, gpus int) outcome {
	t.Helper()
	type span struct {
		start, end int64
		nodes      string
	}
	spans := map[string][]span{}
	type change struct {
		at   int64
		node int
		gpus int
	}
	var changes []change
	for _, row := range written {
		s := span{nanos(t, row[1]), nanos(t, row[2]), row[3]}
		spans[row[0]] = append(spans[row[0]], s)
		total, nodes := 0, strings.Split(row[3], ";")
		seen := map[int]bool{}
		for _, part := range nodes {
			var node, n int
			if _, err := fmt.Sscanf(part, "%d:%d", &node, &n); err != nil || node < 0 || node >= machines || n < 1 || n > gpus || seen[node] {
				t.Fatalf("row %v: node %q", row, part)
			}
			seen[node] = true
			total += n
			if len(nodes) > 1 {
				n = gpus // whole machines
			}
			changes = append(changes, change{s.start, node, n}, change{s.end, node, -n})
		}
		i := slices.IndexFunc(trace, func(j []string) bool { return j[0] == row[0] })
		if i < 0 {
			t.Fatalf("row %v for no job", row)
		}
		if strconv.Itoa(total) != trace[i][1] || len(nodes) != (total+gpus-1)/gpus || s.end <= s.start {
			t.Fatalf("row %v for job %v", row, trace[i])
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.gpus, b.gpus)) })
	used := make([]int, machines)
	for _, c := range changes {
		if used[c.node] += c.gpus; used[c.node] > gpus {
			t.Fatalf("node %d has %d GPUs in use at %d ns", c.node, used[c.node], c.at)
		}
	}
	var times []float64
	starts, often := 0, 0
	for _, j := range trace {
		model := j[4]
		n, _ := strconv.Atoi(j[1])
		submitted, _ := strconv.ParseFloat(j[2], 64)
		iterations, _ := strconv.ParseFloat(j[3], 64)
		each, _ := strconv.ParseFloat(j[5], 64)
		list := spans[j[0]]
		slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.start, b.start) })
		at, ran, last := int64(submitted*1e6), int64(0), span{end: -1}
		begun := 0
		for _, s := range list {
			if s.start < at {
				t.Fatalf("job %s runs at %d, before %d", j[0], s.start, at)
			}
			if s.start != last.end || s.nodes != last.nodes {
				begun++
			}
			at, last = s.end, s
			ran += s.end - s.start
		}
		want := int64(iterations*each*1.015*1e6) + int64(begun)*costOf(model, n)
		if begun == 0 || math.Abs(float64(ran-want)) > 1000 {
			t.Fatalf("job %s ran %d ns in %v, want %d", j[0], ran, list, want)
		}
		starts += begun
		often = max(often, begun-1)
		times = append(times, float64(at)/1e9-submitted/1000)
	}
	slices.Sort(times)
	sum := 0.0
	for _, x := range times {
		sum += x
	}
	rank := 0.99 * float64(len(times)-1)
	low := int(rank)
	high := min(low+1, len(times)-1)
	return outcome{
		mean: sum / float64(len(times)), p99: times[low] + (rank-float64(low))*(times[high]-times[low]),
		preemptions: float64(starts)/float64(len(times)) - 1,
		often:       often,
	}
}

// nanos reads seconds exactly.
func nanos(t *testing.T, s string) int64 {
	t.Helper()
	whole, part, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole+(part + "000000000")[:9], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func unzipped(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	list, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := csv.NewWriter(&b).WriteAll(list); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFaultyTracesAreNamedByLine(t *testing.T) {
	t.Parallel()
	const muri = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n"
	const philly = "timestamp,duration,num_gpus,cluster\n"
	for name, c := range map[string]struct{ trace, want string }{
		"other columns": {"a,b\n1,2\n", "trace.csv:1: columns of no known trace: allowed are job_id,num_gpu"},
		"empty":         {"", "trace.csv: empty"},
		"no rows":       {muri, "trace.csv: no rows"},
		"no GPUs":       {muri + "1,0,0,1,vgg16,1\n", `trace.csv:2: num_gpu "0": allowed are whole numbers from 1`},
		"not a number":  {muri + "1,1,0,1,vgg16,1\n2,1,soon,1,vgg16,1\n", `trace.csv:3: submit_time "soon": allowed are numbers from 0`},
		"NaN":           {muri + "1,1,NaN,1,vgg16,1\n", `submit_time "NaN"`},
		"no id":         {muri + ",1,0,1,vgg16,1\n", "trace.csv:2: job_id is empty"},
		"id twice":      {muri + "1,1,0,1,vgg16,1\n1,1,0,1,vgg16,1\n", `trace.csv:3: job_id "1" appears twice`},
		"centuries":     {muri + "1,1,0,1000000000,vgg16,1000000\n", "trace.csv:2: iterations x iteration_time"},
		"too large":     {muri + "1,65,0,1,vgg16,1\n", "job 1 wants 65 GPUs: allowed are up to 64, on 8 machines of 8"},
		"no time":       {philly + "yesterday,1,1,x\n", `trace.csv:2: timestamp "yesterday": allowed are times like 2006`},
		"back in time":  {philly + "2017-09-02 00:00:00,1,1,x\n2017-09-01 00:00:00,1,1,x\n", "trace.csv:3: timestamp"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			trace, out := filepath.Join(dir, "trace.csv"), filepath.Join(dir, "out.csv")
			write(t, trace, c.trace)
			_, err := sim("queue", "--trace", trace, "--policy", "srsf", "--out", out)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, new(*usageError)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if left, _ := filepath.Glob(out + "*"); left != nil {
				t.Errorf("%v was written all the same", left)
			}
		})
	}
}

func TestWrongUseIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	_, err := sim("queue", "--machines", "0", "--gpus", "65", "--policy", "best")
	for _, want := range []string{
		"--trace is missing", "--out is missing", "--machines 0: allowed are 1 to", "--gpus 65: allowed are 1 to 64",
		`--policy "best": allowed are srsf, sjf, fair`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(*usageError)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for _, args := range [][]string{{"quque"}, {}, {"queue", "more"}, {"queue", "--trase", "x"}} {
		if _, err := sim(args...); err == nil || !errors.As(err, new(*usageError)) {
			t.Errorf("%v: got %v, want wrong use", args, err)
		}
	}
}

func TestPhillyTracesRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "trace.csv")
	write(t, path, "timestamp,duration,num_gpus,cluster\n2017-09-01 00:00:00,100.5,8,a\n2017-09-01 00:00:10,5,1,b\n")
	_, written := queue(t, "--trace", path, "--machines", "1", "--policy", "sjf")
	want := "job_id,start,end,nodes\n0,0,110.5,0:8\n1,110.5,125.5,0:1\n"
	if diff := gocmp.Diff(want, written); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
