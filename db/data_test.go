package db_test

import (
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

func TestTheDatabaseKnowsTheKeysOfArchives(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, tenant := range []berth.TenantID{"default", "a-team"} {
		for _, digit := range []string{"0", "7", "f"} {
			a := berth.Address("sha256:" + strings.Repeat(digit, 64))
			if got, want := one[int64](s, `SELECT content_key($1, $2)`, tenant, a), int64(spec.ArchiveKey(tenant, a)); got != want {
				t.Errorf("tenant %s, %s: %d, want %d", tenant, a.Short(), got, want)
			}
		}
	}
}

// dataOf returns a queued job's input data keys.
func (s *stage) dataOf(id berth.JobID) []spec.DataKey {
	s.t.Helper()
	row, _, err := s.db.Queue.Row(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	return row.Data
}

func TestTheQueueTellsWhatDataJobsNeed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	source := s.ended()
	left := s.leaves(source, 1, 0, "model", "1")
	code := berth.Address("sha256:" + strings.Repeat("c", 64))
	mustExec(t, s.pool, `INSERT INTO uploads (tenant, address, files, bytes, folder) VALUES ('default', $1, 1, 1, 'x')`, code)
	bucket := spec.Input{From: "s3://bucket/data/", To: "/more"}
	all := func(j *spec.Job) {
		takes(source, "model")(j)
		j.Workdir, j.Inputs = string(code), append(j.Inputs, bucket)
	}
	image := spec.ImageKey("default", "busybox")
	want := []spec.DataKey{spec.ArchiveKey("default", code), bucket.SourceKey("default"), image, spec.ArchiveKey("default", left)}
	array := s.submit(func(j *spec.Job) { all(j); j.Array = &spec.Array{Size: 2} })
	s.tend(array)
	for what, id := range map[string]berth.JobID{"a job": s.submit(all), "an element": s.element(array, 1)} {
		if got := s.dataOf(id); !slices.Equal(got, want) {
			t.Errorf("%s needs %v, want %v", what, got, want)
		}
	}
	if got := s.dataOf(s.submit(nil)); !slices.Equal(got, []spec.DataKey{image}) {
		t.Errorf("a job of an image alone needs %v", got)
	}
	// A step's input is known once the other step has stored the output.
	id := s.line()
	if got := s.dataOf(s.step(id, "c")); !slices.Equal(got, []spec.DataKey{image}) {
		t.Errorf("a step that waits needs %v", got)
	}
	left = s.leaves(s.step(id, "a"), 1, 0, "model", "2")
	for _, step := range []string{"a", "b"} {
		s.finish(s.step(id, step), 0)
		s.tend(id)
	}
	if got := s.dataOf(s.step(id, "c")); !slices.Equal(got, []spec.DataKey{image, spec.ArchiveKey("default", left)}) {
		t.Errorf("it needs %v, want the key of its image and of %s", got, left)
	}
}

func (a *agent) holds(seq int64, list ...spec.CachedData) {
	a.t.Helper()
	if _, err := a.sync(func(r *wire.SyncRequest) { r.Cache, r.Seq, r.Brief = &wire.CacheReport{Holds: list}, seq, true }); err != nil {
		a.t.Fatal(err)
	}
}

func TestAMachineTellsWhatItsCacheHolds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("h", "b")
	two := []spec.CachedData{{Key: 7, MiB: 4096}, {Key: -7, MiB: 16}}
	a.holds(3, two...)
	told := func() []db.MachineCache { return s.loadQueue().Caches }
	if got := told(); len(got) != 1 || got[0].Machine != "m0" || !slices.Equal(got[0].Holds, two) {
		t.Errorf("the queue has %+v", got)
	}
	xid := func() string { return one[string](s, `SELECT xid::text FROM machine_caches`) }
	was := xid()
	a.holds(4, two...)
	if xid() != was {
		t.Error("the same list was written again")
	}
	cursor := s.catchUp(s.loadQueue().Next).Next
	if c := s.feed(cursor, db.Hinted{}); len(c.Caches) != 0 {
		t.Errorf("nothing changed, and the feed brings %+v", c.Caches)
	}
	a.holds(2, spec.CachedData{Key: 1, MiB: 99}) // overtaken on its way
	if xid() != was {
		t.Error("a report that was overtaken was taken")
	}
	a.holds(5, two[1])
	found := false
	for c := (db.Changes{Next: cursor}); !found; {
		c = s.feed(c.Next, db.Hinted{})
		for _, m := range c.Caches {
			found = found || slices.Equal(m.Holds, two[1:])
		}
		if !found && c.Next == c.End {
			t.Fatalf("the feed has passed it by: %+v", c)
		}
	}
	a.holds(6)
	if got := told(); len(got) != 1 || len(got[0].Holds) != 0 {
		t.Errorf("an empty cache: %+v", got)
	}
	many := make([]spec.CachedData, 10*spec.MaxCachedData)
	for i := range many {
		many[i] = spec.CachedData{Key: spec.DataKey(i), MiB: int64(i - 1)}
	}
	a.holds(7, many...)
	if got := told(); len(got[0].Holds) != spec.MaxCachedData-2 {
		t.Errorf("of %d, %d are kept", len(many), len(got[0].Holds))
	}
	if err := s.db.Machines.Retire(t.Context(), "m0", "user:test"); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM machine_caches`); n != 0 {
		t.Errorf("of a machine that was removed there are %d rows", n)
	}
	// A report that was under way has come late.
	mustExec(t, s.pool, `INSERT INTO machine_caches (machine_id, keys, mib) VALUES ('m0', '{7}', '{4096}')`)
	if got := told(); len(got) != 0 {
		t.Errorf("of a machine that was removed: %+v", got)
	}
	if c := s.catchUp(cursor); len(c.Caches) != 0 {
		t.Errorf("of a machine that was removed the feed brings %+v", c.Caches)
	}
}
