package bench_test

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/activities/node/runtimetest/prog"
)

// begins notes when each job's process began.
type begins struct {
	mu sync.Mutex
	at map[string]time.Time
}

// program runs in every container of the machine in memory.
func (x *begins) program(ctx context.Context, p *prog.Process) int {
	now := time.Now()
	if id, ok := p.Env("BERTH_JOB_ID"); ok {
		x.mu.Lock()
		x.at[id] = now
		x.mu.Unlock()
	}
	return prog.Run(ctx, p)
}

func (x *begins) of(id berth.JobID) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.at[string(id)]
}

// measureLatency takes one job at a time from the client's POST to its process.
func (s *stack) measureLatency(t *table, x *begins, n int) {
	waits := make([]time.Duration, 0, n)
	for range n {
		began := time.Now()
		id := s.submit(jobSpec(fake, "testprog", "exit", "0"))
		s.ends(id)
		waits = append(waits, x.of(id).Sub(began))
	}
	t.add(figure{name: "submit to process start, p50", value: ms(quantile(waits, 0.50)), unit: "ms", must: 30, aim: 18})
	t.add(figure{name: "submit to process start, p99", value: ms(quantile(waits, 0.99)), unit: "ms", must: 80, aim: 45})
}
