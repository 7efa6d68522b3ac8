package chaos_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/activities/node/runtimetest/prog"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// A gang of cells: two ranks on two machines, each with room for one rank only. The ranks add up
// numbers over the network, and each prints the result.
const (
	gangMembers = 2
	gangSteps   = 10
	gangSave    = 5
)

// gangNetwork is the network on which members of gangs meet on the nth machine with gangs. It is
// the host's network, which all machines share, so each machine has ports of its own. They lie
// above the ports of commands.Port, and below the ports that the kernel gives to connections.
func gangNetwork(n int) []string {
	const lowest, above = 30_000, 32_700
	const ports = 10 // of a machine
	const all = gangPlaces * gangMembers * ports
	first := lowest + os.Getpid()%((above-lowest)/all)*all + n*ports
	return []string{"--gang-network", "host", "--address", "127.0.0.1", "--gang-ports", fmt.Sprintf("%d-%d", first, first+ports-1)}
}

func (s *stack) gang(lane string, more ...string) spec.Job {
	jobSpec := s.spec(lane, "do", fmt.Sprintf("descend /checkpoint %d 40ms %d", gangSteps, gangSave))
	jobSpec.Command = append(jobSpec.Command, more...)
	cpus := spec.MilliCPU(40_000)
	jobSpec.Members, jobSpec.Resources.CPUs = gangMembers, &cpus
	return jobSpec
}

// broken is a gang whose first attempt runs until one of its ranks is stopped. The gang is
// repaired after about that time.
func (s *stack) broken(lane string, after time.Duration) spec.Job {
	jobSpec := s.gang(lane, "at BERTH_ATTEMPT 1 trap-term 3")
	jobSpec.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(after), Max: spec.Duration(after)}}
	return jobSpec
}

// hungAfter is the shortest stall.after that a job file may have.
const hungAfter = 10 * time.Second

// hung is a gang whose first attempt hangs: rank 1 sleeps once there is a checkpoint, and rank 0
// waits for it.
func (s *stack) hung(lane string) spec.Job {
	jobSpec := s.gang(lane)
	jobSpec.Env = map[string]string{"HANG": "sleep", "HANG_MEMBER": "1", "HANG_STEP": strconv.Itoa(gangSave + 2)}
	jobSpec.Stall = &spec.StallPolicy{After: spec.Duration(hungAfter)}
	jobSpec.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(soon), Max: spec.Duration(soon)}}
	return jobSpec
}

// wantHung waits for the success of a gang that hung once. The verdict costs its user no try, and
// rests on the evidence of one rank at least, except where the machine with the evidence was lost. A
// rank waits some seconds only for a control plane that takes its evidence, and a restart on a busy
// machine may take longer.
func (s *stack) wantHung(id berth.JobID, want tries) error {
	if err := s.wantTogether(id, want, 0); err != nil {
		return err
	}
	job, err := s.becomes(id, berth.Succeeded)
	if err != nil {
		return err
	}
	first := job.Attempts[0]
	if want.loses && first.Outcome != nil && first.Outcome.Code != berth.ReasonStalled {
		return nil // the loss of its machine came before the verdict
	}
	if first.Outcome == nil || first.Outcome.Code != berth.ReasonStalled || len(job.Hangs) != 1 || len(job.Hangs[0].Members) == 0 {
		return fmt.Errorf("gang %s: its hangs are %+v: %s", id, job.Hangs, describe(job))
	}
	return nil
}

// Pauses before a gang is repaired: none to speak of, and long enough for
// another one to take the room that is kept, which may be half of it.
const (
	soon      = time.Millisecond
	afterThat = 12 * time.Second
)

// together is the gang that comes by the cell's failpoint.
func (s *stack) together(c cell, lane string, attempts tries) *work {
	jobSpec, failures := s.gang(lane), 0
	w := &work{attempt: 1, drive: func() error { return nil }}
	if c.under("worker.keep.", "leader.repair.") {
		jobSpec, attempts.least, failures = s.broken(lane, soon), 2, 1
		w.drive = func() error { return s.endOneRank(w.job) }
		w.undo = func() error { return s.cancelAll(jobSpec.Name) }
	}
	if c.ofHang() {
		jobSpec, attempts.least = s.hung(lane), 2
	}
	if c.loses() {
		jobSpec.LostAfter = spec.Duration(lost)
	}
	w.ended = func() error { return s.wantTogether(w.job, attempts, failures) }
	if c.ofHang() {
		w.ended = func() error { return s.wantHung(w.job, attempts) }
	}
	if c.under("leader.yield.") {
		jobSpec, attempts.least, failures = s.broken(lane, afterThat), 2, 1
		var other berth.JobID
		w.drive = func() (err error) {
			other, err = s.takeTheRoom(w.job, lane)
			return err
		}
		w.undo = func() error { return s.cancelAll(jobSpec.Name) }
		w.ended = func() error {
			if err := s.wantTogether(other, once, 0); err != nil {
				return err
			}
			return s.wantTogether(w.job, attempts, failures)
		}
	}
	w.submit = func() (err error) {
		w.job, err = s.submit(jobSpec)
		return err
	}
	w.gone = func() error { return s.forgotten(w.job) }
	w.left = func() error { return s.givenUp(w.job, w.attempt) }
	return w
}

// takeTheRoom ends a rank of a gang, and submits another one that needs the room
// which is kept for the other.
func (s *stack) takeTheRoom(id berth.JobID, lane string) (other berth.JobID, err error) {
	if err := s.endOneRank(id); err != nil {
		return "", err
	}
	err = await("the attempt of gang "+string(id)+" is over", func() error { return s.givenUp(id, 1) })
	if err != nil {
		return "", err
	}
	return s.submit(s.gang(lane))
}

// wantTogether waits for a gang's success. Each of its attempts must have had all
// its ranks, and in the last one all must have begun and come to one result.
func (s *stack) wantTogether(id berth.JobID, want tries, failures int) error {
	job, err := s.becomes(id, berth.Succeeded)
	if is, err := want.poisoned(job); is {
		return err
	}
	if err != nil {
		return err
	}
	if err := want.check(job); err != nil {
		return err
	}
	if job.Failures != failures {
		return fmt.Errorf("gang %s: its user pays for %d failures, want %d: %s", id, job.Failures, failures, describe(job))
	}
	var partly string
	err = await("the ranks of gang "+string(id)+" are read", func() error {
		return s.database.QueryRow(context.Background(), `
			SELECT coalesce(string_agg(says, '; '), '')
			FROM (
				SELECT format('attempt %s had %s ranks, of which %s began, on %s machines', attempt, count(*), count(started_at), count(DISTINCT machine_id)) AS says
				FROM allocations
				WHERE job = $1
				GROUP BY attempt
				HAVING count(*) <> $2 OR count(DISTINCT machine_id) <> $2 OR attempt = $3 AND count(started_at) <> $2
			) x`, id, gangMembers, job.Attempt).Scan(&partly)
	})
	if err != nil {
		return err
	}
	if partly != "" {
		return fmt.Errorf("gang %s: %s", id, partly)
	}
	for member := range gangMembers {
		if err := s.wantResult(job, member); err != nil {
			return err
		}
	}
	return nil
}

// wantResult wants a rank to have met the others in the last attempt, and to have
// come to the gang's result there, unless its last logs were given up.
func (s *stack) wantResult(job wire.Job, member int) error {
	var lines []string
	err := await("the log of gang "+string(job.ID)+" is read", func() error {
		lines = nil
		return s.api.Logs(context.Background(), job.ID, client.LogsQuery{Attempt: job.Attempt, Member: member}, func(l wire.LogLine) error {
			lines = append(lines, l.Text)
			return nil
		})
	})
	if err != nil {
		return err
	}
	met := func(line string) bool { return strings.HasPrefix(line, "together at step ") }
	if n := len(lines); n > 0 && met(lines[0]) && !slices.ContainsFunc(lines[1:], met) && lines[n-1] == prog.DescendResult(gangSteps, gangMembers) {
		return nil
	}
	if warned, err := s.lastLogsGivenUp(job.ID); err != nil || warned {
		return err
	}
	return fmt.Errorf("rank %d of gang %s printed %q in attempt %d, want it to meet the others once and to end with %q", member, job.ID, lines, job.Attempt, prog.DescendResult(gangSteps, gangMembers))
}
