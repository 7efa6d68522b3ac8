package e2e_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"
	apiclient "berth/api/client"
	"berth/internal/control/scheduler"
)

// BenchmarkJobs runs short jobs through the whole system: b.N jobs, submitted by 16 clients at
// once, until each has ended. In addition to the rate it reports this process's CPU time a job,
// which includes Temporal, control plane and agents, but not PostgreSQL.
func BenchmarkJobs(b *testing.B) {
	s := start(b, scheduler.Ages{}, "m0", "m1")
	one := s.submit(b, jobSpec("warm-up", "exit", "0"))
	s.ends(b, one, berth.Succeeded)
	before := cpu(b)
	b.ResetTimer()
	var wg sync.WaitGroup
	next := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				if _, _, err := s.api.Submit(b.Context(), jobSpec(fmt.Sprintf("job-%d", i), "exit", "0"), ""); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range b.N {
		next <- i
	}
	close(next)
	wg.Wait()
	submitted := b.Elapsed()
	until(b, "every job ends", func() bool { return s.live(b) == 0 })
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(float64(b.N)/submitted.Seconds(), "submits/s")
	b.ReportMetric((cpu(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/job")
}

// live counts the jobs that have not ended, at most a page of them.
func (s *stack) live(t testing.TB) int {
	t.Helper()
	page, err := s.api.Jobs(t.Context(), apiclient.JobsQuery{
		Status: []berth.State{berth.Submitted, berth.Queued, berth.Scheduled, berth.Running, berth.Retrying}, Limit: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Items)
}

// cpu is the processor time this process has used.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
