package proof_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/check"
)

// Flags of make endurance.
var (
	endurance = flag.Duration("endurance", 30*time.Minute, "how long BenchmarkEndurance submits jobs, after a warm-up of a tenth of it")
	rate      = flag.Float64("rate", 12, "jobs that BenchmarkEndurance submits a second, in the mean")
	loadSeed  = flag.Uint64("load-seed", 0, "replays the load of an earlier BenchmarkEndurance; 0: another one each time")
)

// The machines of the bench; each pretends to be large, so that jobs wait for
// Berth and not for room.
const (
	enduranceAgents   = 3
	enduranceReplicas = 2
)

// BenchmarkEndurance submits jobs at a steady rate for a long time, on processes as they are
// shipped, and compares the last tenth with the first. It finds operations whose time, cost or
// memory grows with the history. It prints the seed of the load.
func BenchmarkEndurance(b *testing.B) {
	if *loadSeed == 0 {
		*loadSeed = uint64(time.Now().UnixNano())
	}
	var t *enduranceTable
	b.Cleanup(func() { // after the stack's own cleanup, which shows the logs of failures
		if t != nil && t.failed {
			b.Error("not every verdict is good; see the table")
		}
	})
	s, r := onEndurance(b)
	m := s.startMeter(r)
	l := s.newLoad(r, rand.New(rand.NewPCG(*loadSeed, 0)), *rate)
	fmt.Printf("endurance: %s of %g jobs/s after a warm-up of %s, seed %d\n", *endurance, *rate, *endurance/tenths, *loadSeed)

	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	stopped := l.start(ctx, m.began)
	for i := range tenths + 1 { // the first is the warm-up
		m.runUntil(m.began.Add(time.Duration(i+1) * *endurance / tenths))
		m.read()
		if i > 0 {
			fmt.Println(m.line(l, i-1))
		}
	}
	cancel()
	<-stopped
	l.settle(m.db)

	t = newEnduranceTable(m, l)
	t.judge("every job ended as it should", l.unexpected() == 0, "%s", l.outcomes())
	s.judgeRest(t, l)
	t.print(os.Stdout)
}

// onEndurance is a stack of separate processes: PostgreSQL and Temporal, two berthd, and agents
// over engines in memory, half of them configured with one berthd, half with the other. Each
// process logs the heap that its garbage collector keeps.
func onEndurance(b *testing.B) (*stack, *replicas) {
	b.Helper()
	program(b, "berthd") // is built before the collector's logging is turned on
	b.Setenv("GODEBUG", "gctrace=1")
	s := newStack(b)
	s.image, s.machines = "testprog", enduranceAgents
	s.flags = []string{"--only", "postgres,temporal"}
	s.startDev()
	r := s.startReplicas(enduranceReplicas)
	s.connect("http://"+r.all[0].listen, r.all[0].token)
	gpus := filepath.Join(s.dir, "gpus.yaml")
	if err := os.WriteFile(gpus, []byte("- {model: H100, memory: 80GiB, count: 8}\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	for i := range enduranceAgents {
		s.agent(fmt.Sprintf("m%d", i+1), r.all[i%len(r.all)].listen,
			"--runtime", "fake", "--cpus", "64", "--fake-gpus", gpus, "--host-boot", fmt.Sprintf("boot-%d", i+1))
	}
	s.awaitMachines()
	return s, r
}

// judgeRest checks the rows once all jobs have ended.
func (s *stack) judgeRest(t *enduranceTable, l *load) {
	s.t.Helper()
	s.wantNothingReserved()
	t.judge("nothing is reserved at the end", true, "every machine is wholly free")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h, err := db.OpenHistory(ctx, s.at.DatabaseURL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer h.Close()
	found, err := check.Run(ctx, h, nil, l.accepted(), check.Options{Settled: true})
	if err != nil {
		s.t.Fatal(err)
	}
	said := fmt.Sprintf("%d breaches in %d jobs", len(found.Breaches), found.Jobs)
	for _, b := range found.Breaches[:min(len(found.Breaches), 5)] {
		said += "; " + b.String()
	}
	t.judge("berth-check finds no breach", len(found.Breaches) == 0, "%s", said)
}

// outcomes counts how the jobs have ended.
func (l *load) outcomes() string {
	by := map[berth.State]int{}
	for _, e := range l.jobs {
		by[e.ended]++
	}
	var parts []string
	for state, n := range by {
		parts = append(parts, fmt.Sprintf("%d %s", n, state))
	}
	slices.Sort(parts)
	text := strings.Join(parts, ", ")
	if n := l.unexpected(); n > 0 {
		text += fmt.Sprintf("; %d not as they should", n)
	}
	return text
}
