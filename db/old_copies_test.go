package db_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// oldCopy is the insert of the version before migration 0051, which does not know the column
// format. oldFired is its record of a fire.
const (
	oldCopy = `
		INSERT INTO jobs (id, tenant, kind, total, expanded, name, class, priority, preemptible, run_limit_ms, grace_ms,
			lost_after_ms, labels, actor, retry_of)
		SELECT @id, 'default', @kind, @total, @total, 'old', 'c', 500, true, 0, 30000, 90000, '{}', 'user:old', @retry_of`
	oldFired = `
		INSERT INTO schedule_fires (schedule, at, source, status, job, reason, over, decided_at)
		VALUES (@schedule, @at, 'clock', 'submitted', @job, NULL, false, clock_timestamp())
		ON CONFLICT (schedule, at) DO UPDATE
		SET status = excluded.status, job = excluded.job, reason = excluded.reason, over = excluded.over,
			decided_at = excluded.decided_at`
)

// oldCopies copies a file as the version before does, in one transaction: as the retry of a job,
// or for a time of a schedule.
func (s *stage) oldCopies(of *berth.JobID, schedule *wire.Schedule, at time.Time) error {
	s.t.Helper()
	id := berth.NewJobID(time.Now())
	return pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(s.t.Context(), oldCopy,
			pgx.NamedArgs{"id": id, "kind": "pipeline", "total": 2, "retry_of": of}); err != nil || schedule == nil {
			return err
		}
		_, err := tx.Exec(s.t.Context(), oldFired, pgx.NamedArgs{"schedule": schedule.ID, "at": at, "job": id})
		return err
	})
}

// refusedTooOld checks for the error that each version answers with 503 and repeats.
func refusedTooOld(t *testing.T, what string, err error) {
	t.Helper()
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "57T01" || !strings.Contains(pg.Message, "repeat the call, or upgrade this berthd") {
		t.Errorf("%s: got %v", what, err)
	}
}

// newerFiles are pipelines with a field that the version before drops.
func newerFiles() map[string]spec.Pipeline {
	listed := graph(spec.FailFast, "a")
	listed.Jobs["each"] = spec.Job{Image: "busybox", Needs: []string{"a"}, Array: &spec.Array{From: "job:a/list"}}
	watched := graph(spec.FailFast, "a")
	watched.Jobs["b"] = spec.Job{Image: "busybox", Stall: &spec.StallPolicy{After: spec.Duration(time.Hour)}}
	walled := graph(spec.FailFast, "a")
	walled.Jobs["b"] = spec.Job{Image: "busybox", Network: spec.Network{Egress: spec.EgressNone}}
	user := graph(spec.FailFast, "a")
	user.Jobs["b"] = spec.Job{Image: "busybox", User: spec.UserImage}
	sealed := graph(spec.FailFast, "a")
	sealed.Jobs["b"] = spec.Job{Image: "busybox", ReadOnlyRoot: true}
	tolerant := graph(spec.FailFast, "a")
	tolerant.Jobs["b"] = spec.Job{Image: "busybox", Placement: spec.Placement{Tolerations: []string{"rack=new"}}}
	wide := graph(spec.FailFast, "a")
	wide.Jobs["b"] = spec.Job{Image: "busybox", Checkpoint: &spec.CheckpointPolicy{Path: "/c", Reshard: spec.ReshardAll}}
	kept := graph(spec.FailFast, "a")
	kept.Jobs["b"] = spec.Job{Image: "busybox", HoldOnFailure: spec.Duration(time.Hour)}
	inner := graph(spec.FailFast, "a")
	inner.Jobs["in"] = spec.Job{Jobs: conditions(spec.FailFast, "x", "y!").Jobs}
	return map[string]spec.Pipeline{
		"final":      conditions(spec.FailFast, "a", "clean!"),
		"when":       conditions(spec.FailFast, "a", "undo?failure: a"),
		"array.from": listed.WithDefaults(),
		"stall":      watched.WithDefaults(),
		"network":    walled.WithDefaults(),
		"user":       user.WithDefaults(),
		"root":       sealed.WithDefaults(),
		"tolerant":   tolerant.WithDefaults(),
		"kept":       kept.WithDefaults(),
		"reshard":    wide.WithDefaults(),
		"nested":     inner.WithDefaults(),
	}
}

func TestTheVersionBeforeRetriesNoNewerFile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for name, file := range newerFiles() {
		id := s.stores(file)
		s.cancel(id)
		refusedTooOld(t, name, s.oldCopies(&id, nil, time.Time{}))
		if again := s.retry(id, db.RetryOptions{Fresh: true}); again.RetryOf == nil || *again.RetryOf != id {
			t.Errorf("%s: this version retries it as %+v", name, again)
		}
	}
	if _, err := s.db.Jobs.ArchiveTerminal(t.Context(), s.term(), 0, 100); err != nil {
		t.Fatal(err)
	}
	archived := berth.JobID(one[string](s, `SELECT id::text FROM archived_jobs WHERE job ? 'pipeline' LIMIT 1`))
	refusedTooOld(t, "archived", s.oldCopies(&archived, nil, time.Time{}))

	alone := s.submit(func(j *spec.Job) { j.Placement.Tolerations = []string{"rack=new"} })
	s.cancel(alone)
	refusedTooOld(t, "a job with tolerations", s.oldCopies(&alone, nil, time.Time{}))

	// Files without such fields, also with variables of these names.
	plain := graph(spec.FailFast, "a", "b: a")
	for key, step := range plain.Jobs {
		step.Env = map[string]string{"when": "1", "final": "1", "stall": "1", "network": "1", "jobs": "1", "tolerations": "1"}
		plain.Jobs[key] = step
	}
	id := s.stores(plain)
	s.cancel(id)
	if err := s.oldCopies(&id, nil, time.Time{}); err != nil {
		t.Errorf("a file without newer fields: %v", err)
	}
}

// TestANewerReplicaFiresWhatTheVersionBeforeCannot checks that a refused fire leaves no trace, and
// that this version decides it.
func TestANewerReplicaFiresWhatTheVersionBeforeCannot(t *testing.T) {
	t.Parallel()
	file := conditions(spec.FailFast, "a", "clean!")
	b := newStage(t).bell(func(x *spec.Schedule) { x.Job, x.Pipeline, x.Overlap = nil, &file, spec.OverlapAllow })
	refusedTooOld(t, "a time of the clock", b.oldCopies(nil, &b.it, b.at(0)))
	if _, err := b.db.Schedules.AddFires(t.Context(),
		db.NewFires{Schedule: b.it.ID, Times: []time.Time{b.at(1)}, Source: wire.FireByClock}); err != nil {
		t.Fatal(err)
	}
	refusedTooOld(t, "a time that is due", b.oldCopies(nil, &b.it, b.at(1)))
	b.wants(wire.FireDue)
	if n := b.jobs(); n != 0 {
		t.Errorf("%d jobs", n)
	}
	for minute := range 2 {
		b.wantFinal(b.fire(minute).Job)
	}
	b.wants(wire.FireSubmitted, wire.FireSubmitted)
}

func (b *bell) wantFinal(id berth.JobID) {
	b.t.Helper()
	raw := one[[]byte](b.stage, `SELECT s.spec FROM job_specs s WHERE s.job = $1`, id)
	var p spec.Pipeline
	if err := json.Unmarshal(raw, &p); err != nil || !p.Jobs["clean"].Final {
		b.t.Errorf("the submitted file is %s, %v", raw, err)
	}
}
