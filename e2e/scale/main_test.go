package scale_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"berth/e2e/rig"
)

// Sizes of BenchmarkScale.
var (
	programs  = flag.String("programs", "", "folder with berthd, berth-agent, berth-dev and berth-check of another commit; empty: built from this repository")
	parts     = flag.String("parts", "idle,bare,singles,long,flood,overload", "parts of BenchmarkScale to run, in this order")
	agents    = flag.Int("agents", 300, "machines, one agent process each")
	running   = flag.String("running", "1000,5000", "numbers of long jobs to reach, one after another")
	startFor  = flag.Duration("start-for", 4*time.Minute, "longest time to wait for the starts of each number of long jobs")
	steady    = flag.Duration("steady", 20*time.Second, "length of each window in which CPU at rest is measured")
	bare      = flag.Int("bare", 400, "bare workflows")
	singles   = flag.Int("singles", 100, "single jobs, one at a time")
	floodSize = flag.Int("flood", 20_000, "elements of the array of one-second jobs")
	floodFor  = flag.Duration("flood-for", time.Minute, "time after which the flood is canceled")
	peakJobs  = flag.Int("peak", 500, "jobs by which the peak rate is measured")
	times     = flag.Float64("overload", 5, "submits of the overload, in multiples of the peak rate")
	loadFor   = flag.Duration("overload-for", 5*time.Minute, "length of the overload")
	quietFor  = flag.Duration("quiet-for", time.Minute, "length of each phase at rest with which the overload is compared")
	warmFor   = flag.Duration("warm-for", 10*time.Second, "time before each phase at rest whose calls are left out")
	groups    = flag.Bool("groups", true, "run each service of a benchmark in a control group of its own; false shows the effect of the groups")
	within    = flag.Duration("within", 15*time.Minute, "length of the whole run, for which the overload is shortened to two minutes at least")
	share     = flag.Float64("share", 0.5, "most cores that the generator of the overload may use")
	faults    = flag.String("faults", "freeze,partition,drain,rolling,kill", "faults of BenchmarkReplicas, in this order")
	holdFor   = flag.Duration("hold-for", 30*time.Second, "length of each freeze and partition of BenchmarkReplicas")
	attachFor = flag.Duration("attach-for", 15*time.Minute, "longest time for waiters to come again after each fault of BenchmarkReplicas")
	most      = flag.Float64("most", 400, "most submits a second of the overload, whatever the peak rate is")
)

// workshop is the folder of this run.
var workshop *rig.Workshop

func TestMain(m *testing.M) {
	switch os.Getenv(rig.HelperName) {
	case generatorHelper:
		os.Exit(rig.RunHelper(generate))
	case rig.ProbeHelper:
		os.Exit(rig.RunHelper(rig.RunProbe))
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if workshop, err = rig.OpenWorkshop(); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		return 1
	}
	defer func() {
		if err := workshop.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
		}
	}()
	return m.Run()
}

// start starts a stack for a test or benchmark and closes it at its end. It lifts the limit on
// the calls of one token, since each generator has one. The limit on the submits of one tenant
// stays as users have it.
func start(t testing.TB, folder string) *rig.Stack {
	t.Helper()
	return startWith(t, rig.Options{Programs: folder})
}

// startWith is start with other options. The limits of calls and the workshop are
// the same for all. In a benchmark each service has a control group of its own; a
// test leaves the host's CPU to the tests next to it as well.
func startWith(t testing.TB, o rig.Options) *rig.Stack {
	t.Helper()
	_, bench := t.(*testing.B)
	s, err := rig.Start(t.Context(), rig.Options{
		Workshop: workshop, Programs: o.Programs, Linked: o.Linked, Apart: bench && *groups,
		Berthd: []string{"--rate=100000", "--burst=100000"},
	})
	if s != nil {
		t.Cleanup(func() {
			if t.Failed() && !bench { // a benchmark fails by its figures
				t.Logf("berthd:\n%s", rig.Tail(s.Dir+"/berthd.log"))
			}
			if err := s.Close(); err != nil {
				t.Errorf("stop the stack: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// until waits for a condition that must come.
func until(t testing.TB, what string, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	if err := rig.Await(t.Context(), limit, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
