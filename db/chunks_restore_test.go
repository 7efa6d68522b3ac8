package db_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

// leaps makes the database notice that it was restored.
func (s *stage) leaps() {
	s.t.Helper()
	id := one[string](s, `SELECT id FROM cluster`)
	proof := db.Outside{StoredWatermark: wire.StoredWatermark{Cluster: id, Watermark: wire.Watermark{Number: 1 << 40, Branch: "lost"}}}
	if done, err := s.db.Leader.Leap(s.t.Context(), proof); err != nil || !done {
		s.t.Fatal(done, err)
	}
}

// held returns the chunks that the member may leave out.
func (x *storer) held(names ...string) map[string]bool {
	x.t.Helper()
	held, err := x.db.Chunks.Held(x.t.Context(), x.member(), sums(chunks(names...)))
	if err != nil {
		x.t.Fatal(err)
	}
	return held
}

// A restored database may name copies that were deleted after the backup: members send all chunks again, under new keys,
// and the copies that they replace are deleted.
func TestARestoredDatabaseDoubtsItsChunks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	first := x.sends("base", "unused")[chunk("base").SHA256]
	if err := x.registers(1, "base"); err != nil {
		t.Fatal(err)
	}
	open, err := s.db.Chunks.Load(t.Context(), x.member(), 2, chunks("open"))
	if err != nil {
		t.Fatal(err)
	}
	rows := func() string {
		return one[string](s, `SELECT string_agg(x.row, ' ' ORDER BY x.row) FROM (
			SELECT sha256::text || ctid::text || xmin::text || xmax::text AS row FROM chunks
			UNION ALL
			SELECT sha256::text || ctid::text || xmin::text || xmax::text FROM chunk_loads) x`)
	}
	before := rows()
	s.leaps()
	if rows() != before {
		t.Error("the leap writes or locks rows of chunks: with millions of them, it would take too long to succeed")
	}
	if held := x.held("base", "unused"); len(held) != 0 {
		t.Errorf("the member may leave out %v", held)
	}
	// The leap has ended the session.
	mustExec(t, s.pool, `UPDATE machines SET agent_boot = 'agent1' WHERE id = 'm0'`)
	mustExec(t, s.pool, `UPDATE machine_leases SET agent_boot = 'agent1' WHERE machine_id = 'm0'`)
	if err := x.registers(2, "base"); !berth.IsSlug(err, wire.SlugObjectMissing) {
		t.Errorf("a registration of a chunk in doubt: %v", err)
	}
	again, err := s.db.Chunks.Load(t.Context(), x.member(), 2, chunks("open"))
	if err != nil || again[chunk("open").SHA256] == open[chunk("open").SHA256] {
		t.Errorf("the key of a copy from before the restore is used again: %v, %v", again, err)
	}
	loads, err := s.db.Chunks.Loads(t.Context(), x.member(), sums(chunks("base", "unused", "open")))
	if err != nil || len(loads) != 1 {
		t.Errorf("the loads are %v, %v; want the one after the restore", loads, err)
	}
	second := x.sends("base")[chunk("base").SHA256]
	if err := x.registers(2, "base"); err != nil {
		t.Fatal(err)
	}
	got, err := s.db.Chunks.Named(t.Context(), x.member(), 1, sums(chunks("base")))
	if err != nil || got[chunk("base").SHA256] != second || second == first {
		t.Errorf("step 1 reads %v, want %v, %v", got, second, err)
	}
}

// A restored database doubts its chunks until a look: the leader looks for them first, and a look ends the doubt.
func TestLooksEndTheDoubtAfterARestore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	copies := x.sends("intact", "lost", "open")
	if err := x.registers(1, "intact", "lost", "open"); err != nil {
		t.Fatal(err)
	}
	unseen := func() []db.ChunkLook {
		t.Helper()
		list, err := s.db.Chunks.Unseen(t.Context(), time.Hour, 100)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if n := len(unseen()); n != 0 {
		t.Errorf("%d chunks are due for a look at once", n)
	}
	s.leaps()
	inForce, err := s.db.Chunks.InForce(t.Context(), "default", sums(chunks("intact", "lost", "open")))
	if err != nil || len(inForce) != 0 {
		t.Errorf("copies in doubt are in force: %v, %v", inForce, err)
	}
	looks := unseen()
	if len(looks) != 3 || !looks[0].Broken {
		t.Fatalf("the leader looks for %v", looks)
	}
	looks = slices.DeleteFunc(looks, func(l db.ChunkLook) bool { return l.SHA256 == chunk("open").SHA256 })
	for i := range looks {
		looks[i].Lost = looks[i].SHA256 == chunk("lost").SHA256
	}
	broken, intact, err := s.db.Chunks.Looked(t.Context(), s.term(), looks)
	if err != nil || broken != 0 || intact != 1 {
		t.Errorf("%d chunks are marked as broken, %d as intact, %v; want 0 and 1", broken, intact, err)
	}
	if held := x.held("intact", "lost", "open"); len(held) != 1 || !held[chunk("intact").SHA256] {
		t.Errorf("the member may leave out %v", held)
	}
	if left := unseen(); len(left) != 1 || left[0].ChunkCopy != copies[chunk("open").SHA256] {
		t.Errorf("the leader looks for %v", left)
	}
}

// Looks at the store mark lost chunks, and intact ones that were in doubt, if the row is as it was when the look began.
func TestLooksMarkLostAndIntactChunks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	term := s.term()
	copies := x.sends("sound", "lost", "doubted", "found", "replaced")
	if err := x.registers(1, "sound", "lost", "doubted", "found", "replaced"); err != nil {
		t.Fatal(err)
	}
	breaks := func(name string) {
		t.Helper()
		if _, err := s.db.Chunks.Broken(t.Context(), copies[chunk(name).SHA256]); err != nil {
			t.Fatal(err)
		}
	}
	breaks("doubted")
	breaks("replaced")
	looks, err := s.db.Chunks.Unseen(t.Context(), 0, 100)
	if err != nil || len(looks) != 5 {
		t.Fatalf("%d chunks are unseen, %v", len(looks), err)
	}
	lost := chunk("lost").SHA256
	for i := range looks {
		looks[i].Lost = looks[i].SHA256 == lost
		if looks[i].Bytes != 1000 || looks[i].ChunkCopy != copies[looks[i].SHA256] {
			t.Errorf("look at %+v, want %+v", looks[i], copies[looks[i].SHA256])
		}
	}
	breaks("found") // by a reader, after the look
	x.sends("replaced")
	broken, intact, err := s.db.Chunks.Looked(t.Context(), term, looks)
	if err != nil || broken != 1 || intact != 1 {
		t.Errorf("%d chunks are marked as broken, %d as intact, %v; want 1 and 1", broken, intact, err)
	}
	held := x.held("sound", "lost", "doubted", "found", "replaced")
	for name, want := range map[string]bool{"sound": true, "lost": false, "doubted": true, "found": false, "replaced": true} {
		if held[chunk(name).SHA256] != want {
			t.Errorf("the member may leave out %s: %v, want %v", name, !want, want)
		}
	}
	// The member that still has the content sends a lost chunk again.
	x.sends("lost", "found")
	if err := x.registers(2, "sound", "lost", "doubted", "found"); err != nil {
		t.Error(err)
	}
}

// Stored believes a comparison for the copy and the length that were compared.
func TestAComparisonIsOfOneCopyAndOneLength(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	copies, err := s.db.Chunks.Load(t.Context(), x.member(), 1, chunks("base"))
	if err != nil {
		t.Fatal(err)
	}
	sum := chunk("base").SHA256
	present := copies[sum]
	other := present
	other.Random = "0123456789abcdef"
	for name, o := range map[string]db.ChunkObject{
		"another copy": {ChunkCopy: other, Bytes: 1000}, "another length": {ChunkCopy: present, Bytes: 999},
	} {
		if err := s.db.Chunks.Stored(t.Context(), x.member(), []db.ChunkObject{o}); err != nil {
			t.Error(err)
		}
		if held := x.held("base"); len(held) != 0 || s.refs("base") != -1 {
			t.Errorf("%s was compared, and the chunk is recorded as stored", name)
		}
	}
	longer := chunks("base")
	longer[0].Bytes = 1001
	if _, err := s.db.Chunks.Load(t.Context(), x.member(), 1, longer); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a second length of one chunk: %v", err)
	}
	loads, err := s.db.Chunks.Loads(t.Context(), x.member(), sums(chunks("base")))
	if want := (db.ChunkObject{ChunkCopy: present, Bytes: 1000}); err != nil || loads[sum] != want {
		t.Errorf("the load is %+v, want %+v, %v", loads[sum], want, err)
	}
	// A repeated record of the same comparison changes nothing.
	for range 2 {
		if err := s.db.Chunks.Stored(t.Context(), x.member(), objects(copies)); err != nil {
			t.Fatal(err)
		}
	}
	if n := one[int](s, `SELECT count(*) FROM doomed_objects`); n != 0 || s.refs("base") != 0 {
		t.Errorf("%d copies are marked for deletion, and the chunk has %d references", n, s.refs("base"))
	}
}

// Only content that the tenant does not have counts before a checkpoint is stored.
func TestNewBytesLeaveOutTheContentOfOtherCheckpoints(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.roomy()
	a, _ := s.register("host1", "agent1")
	x, y := s.storer(a), s.storer(a)
	x.sends("base", "stored")
	if err := x.registers(1, "base"); err != nil {
		t.Fatal(err)
	}
	adds := func(fresh, all int64, names ...string) {
		t.Helper()
		f, n, err := s.db.Chunks.NewBytes(t.Context(), "default", chunks(names...))
		if err != nil || f != fresh || n != all {
			t.Errorf("%v add %d bytes, %d with the announced ones, want %d and %d: %v", names, f, n, fresh, all, err)
		}
	}
	adds(2000, 2000, "base", "stored", "own")
	y.sends("own", "base")
	adds(2000, 3000, "own", "more") // stored is announced, and no checkpoint names it
	adds(1000, 3000, "more")
	adds(0, 2000, "base")
	if n, err := s.db.Chunks.Announced(t.Context(), "default"); err != nil || n < 1000 {
		t.Errorf("%d bytes are announced, %v", n, err)
	}
	if err := s.db.Chunks.Refused(t.Context(), y.member(), 1); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM chunk_loads WHERE at < now() - interval '22 hours'`); n != 2 {
		t.Errorf("%d chunks are given up soon, want the two of the refused step", n)
	}
}

// One transaction of the archive ends the references of few chunks, also of one job with many.
func TestTheArchiveEndsFewReferencesAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.roomy()
	a, _ := s.register("host1", "agent1")
	large, small := s.storer(a), s.storer(a)
	mustExec(t, s.pool, `INSERT INTO chunks (tenant, sha256, bytes, job, attempt, rank, copy)
		SELECT 'default', sha256(n::text::bytea), 1, $1, 1, 0, 'x' FROM generate_series(1, 15000) n`, large.id)
	for id, steps := range map[berth.JobID]int{large.id: 4, small.id: 1} {
		mustExec(t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state, bytes, chunked_bytes)
			SELECT $1, n, 1, 1, 'verified', 15000, 15000 FROM generate_series(1, $2) n`, id, steps)
		mustExec(t, s.pool, `INSERT INTO chunk_refs (job, step, attempt, rank, tenant, sha256)
			SELECT $1, s, 1, 0, 'default', sha256(n::text::bytea) FROM generate_series(1, $2) s, generate_series(1, 15000) n`, id, steps)
	}
	large.fails()
	small.fails()
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	mustExec(t, s.pool, `CREATE TABLE ended (tx xid8, refs bigint)`)
	mustExec(t, s.pool, `CREATE FUNCTION note_ended() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO ended SELECT pg_current_xact_id(), count(*) FROM old_rows; RETURN NULL; END $$`)
	mustExec(t, s.pool, `CREATE TRIGGER note AFTER DELETE ON chunk_refs REFERENCING OLD TABLE AS old_rows
		FOR EACH STATEMENT EXECUTE FUNCTION note_ended()`)
	s.archive(2)
	if n := one[int](s, `SELECT count(*) FROM chunk_refs`) + one[int](s, `SELECT count(*) FROM chunks WHERE refs > 0`); n != 0 {
		t.Errorf("%d references and chunks with some are left", n)
	}
	all := one[int](s, `SELECT coalesce(sum(refs), 0)::bigint FROM ended`)
	most := one[int](s, `SELECT coalesce(max(n), 0)::bigint FROM (SELECT sum(refs) AS n FROM ended GROUP BY tx) x`)
	if all != 75000 || most > 30000 {
		t.Errorf("%d references ended, %d of them in one transaction; want 75000, and at most 30000", all, most)
	}
	s.stored("after the archive")
}
