package db_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// nightly is a schedule of a small job.
func nightly(edit func(*spec.Schedule)) db.NewSchedule {
	s := spec.Schedule{Name: "nightly", Cron: "0 3 * * *", Job: &spec.Job{Image: "busybox"}}
	if edit != nil {
		edit(&s)
	}
	return db.NewSchedule{Tenant: "default", Spec: s.WithDefaults(), Actor: "user:test"}
}

func (s *stage) schedule(edit func(*spec.Schedule)) wire.Schedule {
	s.t.Helper()
	made, created, err := s.db.Schedules.Create(s.t.Context(), nightly(edit))
	if err != nil || !created {
		s.t.Fatal(created, err)
	}
	return made
}

func TestAScheduleIsMadeOnceAndReadsBackWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	n := nightly(func(x *spec.Schedule) { x.Overlap, x.Jitter = spec.OverlapAllow, spec.Duration(time.Minute) })
	made, created, err := s.db.Schedules.Create(t.Context(), n)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	if diff := cmp.Diff(n.Spec, made.Schedule); diff != "" || made.CreatedBy != "user:test" || !made.Pending {
		t.Errorf("schedule is %+v (-want +got):\n%s", made, diff)
	}
	again, created, err := s.db.Schedules.Create(t.Context(), n)
	if err != nil || created || again.ID != made.ID {
		t.Errorf("the same again: %s, created %t, %v", again.ID, created, err)
	}
	_, _, err = s.db.Schedules.Create(t.Context(), nightly(nil))
	if berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("another of that name: %v", err)
	}
	other := nightly(nil)
	other.Tenant = "b"
	s.newTenant("b", "")
	if x, created, err := s.db.Schedules.Create(t.Context(), other); err != nil || !created || x.ID == made.ID {
		t.Errorf("of another tenant: created %t, %v", created, err)
	}
	list, err := s.db.Schedules.List(t.Context(), "default")
	if err != nil || len(list) != 1 || list[0].Name != "nightly" || list[0].Job != nil || list[0].Cron != "0 3 * * *" {
		t.Errorf("list is %+v, %v", list, err)
	}
}

func TestATenantHasOnlySoManySchedules(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.schedule(nil)
	mustExec(t, s.pool, `
		INSERT INTO schedules (id, tenant, name, spec, paused, revision, created_by)
		SELECT gen_random_uuid(), 'default', 'x-' || i, spec, false, 'r', 'user:test'
		FROM schedules, generate_series(2, $1) AS i`, spec.MaxSchedules)
	_, _, err := s.db.Schedules.Create(t.Context(), nightly(func(x *spec.Schedule) { x.Name = "one-more" }))
	if !berth.IsSlug(err, berth.SlugQuota) {
		t.Errorf("one too many: %v", err)
	}
	if err := s.db.Schedules.Delete(t.Context(), "default", "x-7"); err != nil {
		t.Fatal(err)
	}
	s.schedule(func(x *spec.Schedule) { x.Name = "one-more" })
}

func TestAScheduleKeepsWhatItWillNeed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const address = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	withCode := func(x *spec.Schedule) {
		x.Pipeline, x.Job = &spec.Pipeline{Jobs: map[string]spec.Job{"a": {Image: "busybox", Workdir: address, Secrets: []string{"TOKEN"}}}}, nil
	}
	_, _, err := s.db.Schedules.Create(t.Context(), nightly(withCode))
	e := fieldsOf(err)
	if len(e) != 1 || e[0] != "pipeline.jobs.a.secrets[0]" {
		t.Errorf("without its secret: %v, fields %v", err, e)
	}
	if _, _, err := s.db.Secrets.Set(t.Context(), db.SealedSecret{Tenant: "default", Name: "TOKEN", Key: "k", Sealed: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.db.Schedules.Create(t.Context(), nightly(withCode))
	if e := fieldsOf(err); len(e) != 1 || e[0] != "pipeline.jobs.a.workdir" {
		t.Errorf("without its upload: %v, fields %v", err, e)
	}
	mustExec(t, s.pool, `
		INSERT INTO uploads (tenant, address, folder, files, bytes, used_at)
		VALUES ('default', $1, 'f', 1, 1, now() - interval '1 year'), ('b', $1, 'g', 1, 1, now() - interval '1 year')`, address)
	s.schedule(withCode)
	mustExec(t, s.pool, `UPDATE uploads SET used_at = now() - interval '1 year'`)
	doom := func(want int) {
		t.Helper()
		if n, err := s.db.Uploads.Doom(t.Context(), s.term(), time.Hour, 10); err != nil || n != want {
			t.Errorf("%d uploads are given up, %v; want %d", n, err, want)
		}
	}
	doom(1) // the other tenant's
	if err := s.db.Schedules.Delete(t.Context(), "default", "nightly"); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.unset(1) {
		if err := s.db.Schedules.Forget(t.Context(), s.term(), c.Schedule); err != nil {
			t.Fatal(err)
		}
	}
	doom(1)
}

// fieldsOf are the fields that an error names.
func fieldsOf(err error) (fields []string) {
	if e, ok := err.(*berth.Error); ok {
		for _, f := range e.Fields {
			fields = append(fields, f.Field)
		}
	}
	return fields
}

// unset returns the clocks that are to be set, which must be so many.
func (s *stage) unset(want int) []db.Clock {
	s.t.Helper()
	list, err := s.db.Schedules.UnsetClocks(s.t.Context(), 10)
	if err != nil || len(list) != want {
		s.t.Errorf("%d clocks are to be set, %v; want %d", len(list), err, want)
	}
	return list
}

func TestEachChangeIsToldToTheClockOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	made := s.schedule(nil)
	tell := func() db.Clock {
		t.Helper()
		c := s.unset(1)[0]
		if err := s.db.Schedules.ClockSet(t.Context(), s.term(), c.Schedule, c.Revision); err != nil {
			t.Fatal(err)
		}
		s.unset(0)
		return c
	}
	first := tell()
	if first.Schedule != made.ID || first.Paused || first.Spec.Cron != "0 3 * * *" || first.Spec.Job != nil || !first.Since.Equal(made.CreatedAt) {
		t.Errorf("the clock is %+v", first)
	}
	for range 2 { // the second changes nothing
		if err := s.db.Schedules.Pause(t.Context(), "default", "nightly", "holidays"); err != nil {
			t.Fatal(err)
		}
	}
	paused := tell()
	if !paused.Paused || paused.Note != "holidays" || paused.Revision == first.Revision {
		t.Errorf("paused it is %+v", paused)
	}
	if err := s.db.Schedules.Resume(t.Context(), "default", "nightly", ""); err != nil {
		t.Fatal(err)
	}
	late := s.unset(1)[0]
	if !late.Since.After(first.Since) {
		t.Errorf("it fires what came before it was resumed: since %s, made %s", late.Since, first.Since)
	}
	if err := s.db.Schedules.Pause(t.Context(), "default", "nightly", ""); err != nil { // between the read and the word
		t.Fatal(err)
	}
	if err := s.db.Schedules.ClockSet(t.Context(), s.term(), late.Schedule, late.Revision); err != nil {
		t.Fatal(err)
	}
	tell()
	if err := s.db.Schedules.ClocksLost(t.Context(), s.term(), []berth.ScheduleID{made.ID}); err != nil {
		t.Fatal(err)
	}
	tell()
}

func TestADeletedScheduleStaysUntilItsClockIsGone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	made := s.schedule(nil)
	if err := s.db.Schedules.Forget(t.Context(), s.term(), made.ID); err != nil { // it is not deleted
		t.Fatal(err)
	}
	if err := s.db.Schedules.Delete(t.Context(), "default", "nightly"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"deleted again": s.db.Schedules.Delete(t.Context(), "default", "nightly"),
		"paused":        s.db.Schedules.Pause(t.Context(), "default", "nightly", ""),
		"shown":         second(s.db.Schedules.Get(t.Context(), "default", "nightly", 1)),
		"fired":         second(s.db.Schedules.Fire(t.Context(), db.Firing{Schedule: made, At: time.Now()})),
		"backfilled":    second(s.db.Schedules.AddFires(t.Context(), db.NewFires{Schedule: made.ID, Times: []time.Time{time.Now()}, Source: wire.FireByBackfill})),
	} {
		if berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
	anew := s.schedule(nil) // its name is free
	if list := s.unset(2); list[0].Deleted == list[1].Deleted {
		t.Errorf("one of two is deleted: %+v", list)
	}
	if err := s.db.Schedules.Forget(t.Context(), s.term(), made.ID); err != nil {
		t.Fatal(err)
	}
	if got := one[string](s, `SELECT string_agg(id::text, ' ') FROM schedules`); got != string(anew.ID) {
		t.Errorf("left are %s", got)
	}
}

func TestATenantWithSchedulesStays(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "lab"}); err != nil {
		t.Fatal(err)
	}
	n := nightly(nil)
	n.Tenant = "lab"
	if _, _, err := s.db.Schedules.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Tenants.Delete(t.Context(), "lab"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("deleted: %v", err)
	}
	if err := s.db.Schedules.Delete(t.Context(), "lab", "nightly"); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Tenants.Delete(t.Context(), "lab"); err != nil {
		t.Error(err)
	}
}

func TestOldFiresGoAndTheirTimesAreFiredNoMore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	made := s.schedule(nil)
	mustExec(t, s.pool, `
		INSERT INTO schedule_fires (schedule, at, source, status, over, decided_at)
		SELECT $1, timestamptz '2026-01-01 00:00:00Z' + i * interval '1 day', 'clock', 'skipped', true, now() - interval '40 days'
		FROM generate_series(0, 29) AS i`, made.ID)
	prune := func(want int) {
		t.Helper()
		if n, err := s.db.Schedules.PruneFires(t.Context(), s.term(), 30*24*time.Hour, 100); err != nil || n != want {
			t.Errorf("pruned %d fires, %v; want %d", n, err, want)
		}
	}
	prune(10) // the last 20 stay
	prune(0)
	day := func(d int) time.Time { return time.Date(2026, 1, d, 0, 0, 0, 0, time.UTC) }
	fill := func(from, to int) error {
		var times []time.Time
		for d := from; d <= to; d++ {
			times = append(times, day(d))
		}
		_, err := s.db.Schedules.AddFires(t.Context(), db.NewFires{Schedule: made.ID, Times: times, Source: wire.FireByBackfill, Again: true})
		return err
	}
	if err := fill(10, 12); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a range that is not on record: %v", err)
	}
	if err := fill(11, 12); err != nil {
		t.Errorf("a range that is: %v", err)
	}
	if diff := cmp.Diff(fmt.Sprint([]db.FireRef{{Schedule: made.ID, At: day(11)}, {Schedule: made.ID, At: day(12)}}), s.pending()); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
}

func (s *stage) pending() string {
	s.t.Helper()
	list, err := s.db.Schedules.PendingFires(s.t.Context(), 100)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range list {
		list[i].At = list[i].At.UTC()
	}
	return fmt.Sprint(list)
}

func TestAScheduleOfASingleTimeGoesAfterIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	past := spec.Instant{Time: time.Now().Add(-time.Hour)}
	once := func(x *spec.Schedule) { x.Cron, x.At = "", &past }
	b := s.bell(once)
	s.schedule(func(x *spec.Schedule) { once(x); x.Name = "undecided" })
	s.schedule(func(x *spec.Schedule) { x.Name = "again" })
	if _, err := s.db.Schedules.AddFires(t.Context(), db.NewFires{Schedule: s.bell(func(x *spec.Schedule) { once(x); x.Name = "due" }).it.ID, Times: []time.Time{past.Time}, Source: wire.FireByClock}); err != nil {
		t.Fatal(err)
	}
	ends := func(after time.Duration, want int) {
		t.Helper()
		if n, err := s.db.Schedules.DeleteEnded(t.Context(), s.term(), after, 10); err != nil || n != want {
			t.Errorf("%d are deleted, %v; want %d", n, err, want)
		}
	}
	job := b.fire(0).Job
	ends(time.Minute, 0)
	s.cancel(job)
	ends(2*time.Hour, 0)
	ends(time.Minute, 1)
	if got := one[string](s, `SELECT string_agg(name, ' ' ORDER BY name) FROM schedules WHERE deleted_at IS NULL`); got != "again due undecided" {
		t.Errorf("left are %s", got)
	}
}
