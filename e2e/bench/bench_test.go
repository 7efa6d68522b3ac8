package bench_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"berth/activities/node/fakeruntime"
)

var (
	parts      = flag.String("parts", "jobs,history,latency,docker,placement", "what to measure")
	rounds     = flag.Int("rounds", 5, "rounds of jobs and of bare workflows, by turns")
	jobs       = flag.Int("jobs", 300, "jobs, and bare workflows, a round")
	singles    = flag.Int("singles", 200, "jobs one at a time")
	boxes      = flag.Int("containers", 40, "containers a round, and one at a time")
	statements = flag.Int("statements", 0, "print so many of the dearest SQL statements of a round of jobs; counting them costs")
	backlog    = flag.Int("backlog", 20_000, "jobs to be placed")
)

// BenchmarkBerth takes every figure once and prints the figures as a table. It fails if one is
// below its bound.
func BenchmarkBerth(b *testing.B) {
	chosen := func(part string) bool { return strings.Contains(","+*parts+",", ","+part+",") }
	began := time.Now()
	t := &table{}
	s := start(b)
	x := &begins{at: map[string]time.Time{}}
	s.joinFake(fakeruntime.Options{CPUMilli: 64_000, Program: x.program})
	b.ResetTimer()
	if chosen("jobs") {
		s.measureJobs(t, s.newFloor(false), s.newFloor(true), *rounds, *jobs)
	}
	if chosen("history") {
		s.measureHistory(t)
	}
	if chosen("latency") {
		s.measureLatency(t, x, *singles)
	}
	if chosen("docker") {
		image, bare := s.joinDocker()
		s.measureDockerLatency(t, image, bare, *boxes)
		s.measureDockerRate(t, image, bare, 3, *boxes)
	}
	if chosen("placement") {
		s.measurePlacement(t, 3, *backlog)
	}
	t.remark("measured in %s on %s", time.Since(began).Round(time.Second), machine())
	t.print(os.Stdout)
	if n := t.missed(); n > 0 {
		b.Errorf("%d figures are below what they must be", n)
	}
}

// machine describes the machine on which the figures were taken.
func machine() string {
	load, _ := os.ReadFile("/proc/loadavg")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%d cores, Linux %s, load %s", runtime.NumCPU(), strings.TrimSpace(string(kernel)), strings.Join(strings.Fields(string(load))[:3], " "))
}
