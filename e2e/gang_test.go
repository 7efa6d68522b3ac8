package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/activities/node/runtimetest/prog"
	apiclient "berth/api/client"
	"berth/db"
	"berth/internal/machine/docker"
	"berth/spec"
	"berth/wire"
)

// gangRounds is how often two gangs compete: -args -gang-rounds 100 takes them
// through a hundred.
var gangRounds = flag.Int("gang-rounds", 25, "how often two gangs that each need the whole cluster take turns")

// sharesGangs submits two gangs at once that each need the whole cluster, a hundred times: one
// runs, then the other, despite any failure meanwhile.
func sharesGangs(t *testing.T, s *stack) {
	rounds := *gangRounds
	whole := jobSpec("whole", "exit", "0")
	whole.Members, whole.Resources.GPUs = 2, 2000 // two machines, two GPUs each
	broken := whole
	broken.Command = []string{"do", "env BERTH_MEMBER", "exit 3"}
	broken.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(time.Millisecond), Max: spec.Duration(time.Millisecond)}}
	began := time.Now()
	for round := range rounds {
		first := whole
		want := berth.Succeeded
		if round%5 == 0 {
			first, want = broken, berth.Failed
		}
		a, b := s.submit(t, first), s.submit(t, whole)
		s.becomes(t, a, want)
		s.becomes(t, b, berth.Succeeded)
	}
	t.Logf("%d rounds in %s", rounds, time.Since(began).Round(time.Millisecond))
	d, err := db.Open(t.Context(), s.database, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var kept, partly, longest float64
	var gangs, overlaps int
	err = d.Pool().QueryRow(t.Context(), `
		WITH spans AS (
			SELECT a.job, a.attempt, min(a.reserved_at) AS placed, min(a.exited_at) AS first, max(a.exited_at) AS last, count(*) AS ranks
			FROM allocations a
			WHERE a.port IS NOT NULL
			GROUP BY 1, 2
		)
		SELECT (SELECT count(*) FROM spans),
		       (SELECT count(*) FROM spans x JOIN spans y ON x.placed < y.placed AND y.placed < x.first),
		       (SELECT max(extract(epoch FROM last - first))::float8 FROM spans),
		       (SELECT max(extract(epoch FROM last - placed))::float8 FROM spans),
		       (SELECT coalesce(max(extract(epoch FROM coalesce(gone_at, now()) - made_at)), 0)::float8 FROM nomination_log WHERE victim = beneficiary)`).Scan(
		&gangs, &overlaps, &partly, &longest, &kept)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d attempts of gangs; at most %.3f s from the first to the last exit, %.3f s from placement to end, %.3f s kept for a repair", gangs, partly, longest, kept)
	if gangs < 2*rounds || overlaps > 0 || partly > 30 || kept > 60 {
		t.Errorf("%d attempts, %d overlaps, partly held for %.1f s, kept for %.1f s", gangs, overlaps, partly, kept)
	}
}

// joinDocker runs agents over the machine's own Docker Engine, which they share.
func (s *stack) joinDocker(t *testing.T, machines ...berth.MachineID) *docker.Engine {
	t.Helper()
	engine, err := docker.Open("", docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := db.Open(t.Context(), s.database, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := d.Cluster.ID(t.Context())
	d.Close()
	if err != nil {
		t.Fatal(err)
	}
	s.t.Cleanup(func() { // leftovers of a failed test
		defer engine.Close()
		ctx, ours := context.Background(), map[string]string{berth.LabelCluster: cluster}
		left, err := engine.List(ctx, ours)
		if err != nil {
			s.t.Error(err)
		}
		for _, c := range left {
			if err := engine.Remove(ctx, c.Name); err != nil {
				s.t.Error(err)
			}
		}
		networks, err := engine.Networks(ctx, ours)
		if err != nil {
			s.t.Error(err)
		}
		for _, n := range networks {
			if err := engine.RemoveNetwork(ctx, n.Name); err != nil {
				s.t.Error(err)
			}
		}
	})
	log, _ := testLog(s.t)
	for _, m := range machines {
		s.joinOver(m, engine, log, map[string]string{"engine": "docker"}, "")
	}
	return engine
}

// repairsGangs trains a model over four containers of two machines on the real
// engine, kills one of them in mid-epoch, and gets the result of an undisturbed
// run from the checkpoint that all four had written.
func repairsGangs(t *testing.T, s *stack) {
	engine := s.joinDocker(t, "d0", "d1")
	const plainSteps = 60
	j := jobSpec("descends", "descend", "/checkpoint", "60", "30ms", "10")
	j.Image, j.Members = runtimetest.Image(t, ""), 4
	j.Placement.Labels, j.Placement.Strategy = map[string]string{"engine": "docker"}, "spread"
	j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	j.Retry.Backoff = spec.Backoff{Initial: spec.Duration(time.Millisecond), Max: spec.Duration(time.Millisecond)}
	plain := s.submit(t, j)
	s.ends(t, plain, berth.Succeeded)

	j.Command = []string{"descend", "/checkpoint", "100000", "30ms", "10"} // it does not end before the test is ready
	id := s.submit(t, j)
	var at int64
	until(t, "a checkpoint of all ranks is verified", func() bool {
		for _, c := range s.job(t, id).Checkpoints {
			if c.State == berth.CheckpointVerified {
				at = max(at, c.Step)
			}
		}
		return at >= 20
	})
	// The next attempt comes to an end, which this one will not reach.
	steps := int(at) + 600
	execute(t, s.database, fmt.Sprintf(`UPDATE job_specs SET spec = jsonb_set(jsonb_set(spec, '{command,2}', '"%d"'), '{command,3}', '"5ms"') WHERE job = '%s'`, steps, id))
	killed := time.Now()
	if err := engine.Signal(t.Context(), berth.ContainerName(id, 2, 1), "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	job := s.ends(t, id, berth.Succeeded)
	if len(job.Attempts) != 2 {
		t.Fatalf("attempts are %+v", job.Attempts)
	}
	first, second := job.Attempts[0], job.Attempts[1]
	if first.Outcome == nil || first.ExitCode == nil || *first.ExitCode != 137 || second.ResumeFrom == nil || *second.ResumeFrom < 20 || *second.ResumeFrom%10 != 0 {
		t.Errorf("attempts are %+v", job.Attempts)
	}
	if took := first.EndedAt.Sub(killed); took > time.Minute {
		t.Errorf("the gang took %s to stop", took)
	}
	t.Logf("stopped %s after the kill, went on from step %d after %s", first.EndedAt.Sub(killed).Round(time.Millisecond), *second.ResumeFrom, second.StartedAt.Sub(killed).Round(time.Millisecond))
	for run, want := range map[berth.JobID]string{plain: prog.DescendResult(plainSteps, 4), id: prog.DescendResult(steps, 4)} {
		for member := range 4 {
			if got := s.lastLine(t, run, member); got != want {
				t.Errorf("member %d of %s ends with %q, want %q", member, run, got, want)
			}
		}
	}
	record(t, "gang-repaired", s.history(t, id))
	until(t, "nothing of it is left on the engine", func() bool {
		left, err := engine.List(t.Context(), map[string]string{berth.LabelJob: string(id)})
		if err != nil {
			t.Fatal(err)
		}
		networks, err := engine.Networks(t.Context(), map[string]string{berth.LabelJob: string(id)})
		if err != nil {
			t.Fatal(err)
		}
		return len(left)+len(networks) == 0
	})
}

// lastLine is the last line of a member's log, of the latest attempt.
func (s *stack) lastLine(t *testing.T, id berth.JobID, member int) (line string) {
	t.Helper()
	err := s.api.Logs(t.Context(), id, apiclient.LogsQuery{Member: member}, func(l wire.LogLine) error {
		line = l.Text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return line
}
