package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/lib/golden"
)

func TestClusterSaysHowItFared(t *testing.T) {
	t.Parallel()
	plot := filepath.Join(t.TempDir(), "out.svg")
	got, err := sim("cluster", "../../examples/cluster/three-tenants.yaml", "--plot", plot)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/three-tenants.txt", got)
	file, err := os.Open(plot)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // read only
	paths := 0
	for d := xml.NewDecoder(file); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
			paths++
		}
	}
	if paths != 4 {
		t.Errorf("the picture has %d areas, want three tenants and the queue", paths)
	}
}

// TestClusterAddsUp replays a scenario by books of the test's own: the machines
// hold what runs, and all work is done in spite of what displacing cost.
func TestClusterAddsUp(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile("../../examples/cluster/three-tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := readScenario("three-tenants.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplay(s.fleet(), s.arrivals(), s.planner(), ticking{s.tick()})
	r.open(s.tenants())
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ran := map[berth.JobID]time.Duration{}
	starts := map[berth.JobID]int{}
	for i, a := range r.stretches {
		ran[a.task.job] += a.end.Sub(a.start)
		starts[a.task.job]++
		for _, b := range r.stretches[:i] {
			if !a.start.Before(b.end) || !b.start.Before(a.end) {
				continue
			}
			for _, x := range a.grants {
				for _, y := range b.grants {
					for _, d := range x.GPUs {
						for _, e := range y.GPUs {
							if x.Machine == y.Machine && d.Index == e.Index && d.Milli+e.Milli > 1000 {
								t.Fatalf("%s and %s share GPU %d of %s", a.task.job, b.task.job, d.Index, x.Machine)
							}
						}
					}
				}
			}
		}
	}
	displaced := 0
	for _, j := range s.arrivals() {
		id := berth.JobID(j.id)
		displaced += starts[id] - 1
		// Each displaced run paid its start cost at most, and lost what is booked.
		over := ran[id] - j.length - r.lost[id]
		if over < j.startCost || over > time.Duration(starts[id])*j.startCost {
			t.Errorf("job %s ran %s in %d starts, lost %s: want %s of work", id, ran[id], starts[id], r.lost[id], j.length)
		}
	}
	if displaced == 0 {
		t.Error("nobody was displaced: the scenario shows too little")
	}
}

func TestFaultyScenariosAreNamedByLine(t *testing.T) {
	t.Parallel()
	const good = "duration: 1h\nmachines: [{cpus: 8, memory: 8GiB}]\njobs: [{every: 1m, run: 1m}]\n"
	for name, c := range map[string]struct{ text, want string }{
		"misspelt":     {strings.Replace(good, "every", "evry", 1), "f.yaml:3:9: jobs[0].evry is not a field: did you mean every?"},
		"missing":      {"duration: 1h\nmachines: [{cpus: 8, memory: 8GiB}]\njobs: [{run: 1m}]\n", "f.yaml:3:8: jobs[0].every: the mean gap is missing"},
		"no unit":      {strings.Replace(good, "1h", "60", 1), "f.yaml:1:11: duration"},
		"no order":     {good + "policy: {order: lottery}\n", `f.yaml:4:17: policy.order: "lottery" is no order (allowed: fair, priority, fifo or srsf)`},
		"no tenant":    {strings.Replace(good, "{every", "{tenant: a, every", 1), `f.yaml:3:17: jobs[0].tenant: "a" is no tenant`},
		"no machines":  {strings.Replace(good, "[{cpus: 8, memory: 8GiB}]", "[]", 1), "machines: there are 0 machines (allowed: 1 to"},
		"too many":     {strings.Replace(good, "every: 1m", "every: 1ms", 1), "about 3600000 jobs would come (allowed: at most 200000"},
		"bad yaml":     {"duration: [\n", "f.yaml:1:"},
		"does not fit": {strings.Replace(good, "run: 1m", "run: 1m, resources: {gpus: 1}", 1), "jobs wait for ever: no machine, or no quota, is large enough"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f.yaml")
			write(t, path, c.text)
			_, err := sim("cluster", path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, new(*usageError)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for _, args := range [][]string{{"cluster"}, {"cluster", "a", "b"}, {"cluster", "none.yaml"}} {
		if _, err := sim(args...); !errors.As(err, new(*usageError)) {
			t.Errorf("%v: got %v, want wrong use", args, err)
		}
	}
}

func TestJainIsOneForEvenShares(t *testing.T) {
	t.Parallel()
	even := []*standing{{jobs: 1, weight: 2, held: 0.5}, {jobs: 1, weight: 1, held: 0.25}, {weight: 1}}
	if got := jain(even); math.Abs(got-1) > 1e-9 {
		t.Errorf("got %g for shares as their weights", got)
	}
	one := []*standing{{jobs: 1, weight: 1, held: 1}, {jobs: 1, weight: 1}}
	if got := jain(one); math.Abs(got-0.5) > 1e-9 {
		t.Errorf("got %g where one of two has all", got)
	}
}
