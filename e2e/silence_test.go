package e2e_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/e2e/faultproxy"
	"berth/internal/control/controlplane"
	"berth/internal/control/scheduler"
	"berth/spec"
	"berth/wire"
)

// silentFor is the flag of make proof-silence, which chooses more than wire.WaiterTimeout.
var silentFor = flag.Duration("silent-for", 0, "the least time for which more than a third of the machines is silent")

// Times of a silence: any machine and any job would be given up after silenceLost.
const (
	silenceSuspect = 8 * time.Second // more than the long poll of a sync
	silenceLost    = silenceSuspect
)

// TestF28NoActivityIsRepeatedWhileVerdictsAreFrozen cuts off three of eight machines for longer than any of them may
// be silent. Nothing but the freeze of verdicts protects their work: all machines may be lost within a minute, and the
// jobs have the shortest lost_after. While verdicts are frozen, each waiter sends its heartbeats, so Temporal repeats
// none of their activities. When the machines are back, each job ends in the container of its first attempt.
func TestF28NoActivityIsRepeatedWhileVerdictsAreFrozen(t *testing.T) {
	t.Parallel()
	s := startWith(t, scheduler.Ages{}, func(c *controlplane.Config) {
		c.SuspectAfter, c.LostAfter, c.LostShare = silenceSuspect, silenceLost, 1
	})
	const machines, silent = 8, 3
	links, jobs := make([]*faultproxy.Proxy, silent), map[berth.MachineID]berth.JobID{}
	log, _ := testLog(t)
	for i := range machines {
		m := berth.MachineID(fmt.Sprintf("m%d", i))
		s.gateway = ""
		if i < silent {
			var err error
			if links[i], err = faultproxy.Start(strings.TrimPrefix(s.url, "http://")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = links[i].Close() })
			s.gateway = "http://" + links[i].Address()
		}
		s.join(m, log)
		if i == silent-1 {
			continue // an idle machine
		}
		j := jobSpec("lasts", "trap-term", "0")
		j.LostAfter, j.Placement.Constraint = spec.Duration(2*time.Second), fmt.Sprintf("machine.id == %q", m)
		jobs[m] = s.submit(t, j)
	}
	for _, id := range jobs {
		s.becomes(t, id, berth.Running)
	}

	for _, l := range links {
		l.Cut()
	}
	const frozen = "berth_scheduler_verdicts_frozen"
	until(t, "verdicts are frozen", func() bool { return s.metric(t, frozen) == 1 })
	began := time.Now()
	until(t, "each of the silent machines would be given up", func() bool {
		n := s.count(t, `SELECT count(*) FROM machine_leases WHERE clock_timestamp() - seen_at > $1`, silenceLost+waiterBeat)
		return n == silent
	})
	s.beatAgain(t, jobs)
	until(t, "the silence has lasted", func() bool { return time.Since(began) >= *silentFor })
	s.beatAgain(t, jobs)
	if got := s.metric(t, frozen); got != 1 {
		t.Errorf("the metric of frozen verdicts is %v", got)
	}
	s.wantFirstAttempts(t, jobs)

	for _, l := range links {
		l.Heal()
	}
	until(t, "all machines are ready, and verdicts possible", func() bool {
		return s.count(t, `SELECT count(*) FROM machines WHERE state = 'ready'`) == machines && s.metric(t, frozen) == 0
	})
	s.wantFirstAttempts(t, jobs)
	for m, id := range jobs {
		if n := s.containers(t, id); n != 1 {
			t.Errorf("job of %s has %d containers", m, n)
		}
		s.finish(t, id)
		job := s.ends(t, id, berth.Succeeded)
		waiters := slices.DeleteFunc(steps(s.history(t, id)), func(step string) bool {
			return !strings.HasPrefix(step, wire.ActivityRun.Name()+" on ")
		})
		if len(job.Attempts) != 1 || job.Losses+job.Failures != 0 || len(waiters) != 1 {
			t.Errorf("job of %s: attempts %+v, %d losses, %d failures, waiters %v",
				m, job.Attempts, job.Losses, job.Failures, waiters)
		}
	}
}

// beatAgain waits until the waiter of each job has sent two more heartbeats.
func (s *stack) beatAgain(t *testing.T, jobs map[berth.MachineID]berth.JobID) {
	t.Helper()
	for m, id := range jobs {
		last := time.Now()
		for range 2 {
			until(t, "the waiter of the job of "+string(m)+" sends a heartbeat", func() bool {
				at := s.pending(t, id).GetLastHeartbeatTime()
				if at == nil || !at.AsTime().After(last) {
					return false
				}
				last = at.AsTime()
				return true
			})
		}
	}
}

// wantFirstAttempts checks that no machine was given up, that each job runs in its first attempt, and that its waiter
// does too.
func (s *stack) wantFirstAttempts(t *testing.T, jobs map[berth.MachineID]berth.JobID) {
	t.Helper()
	if n := s.count(t, `SELECT count(*) FROM machine_events WHERE state = 'lost'`); n != 0 {
		t.Errorf("%d machines were declared lost", n)
	}
	for m, id := range jobs {
		job, waiter := s.job(t, id), s.pending(t, id)
		if job.Status != berth.Running || job.Attempt != 1 || waiter.GetAttempt() != 1 {
			t.Errorf("job of %s is %s in attempt %d (%+v), its waiter in attempt %d", m, job.Status, job.Attempt, job.Reason,
				waiter.GetAttempt())
		}
	}
}

// count returns a number from the database.
func (s *stack) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
