package db_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// chunk is a chunk of this name, of 1000 bytes.
func chunk(name string) wire.Chunk {
	sum := sha256.Sum256([]byte(name))
	return wire.Chunk{SHA256: hex.EncodeToString(sum[:]), Bytes: 1000}
}

// chunks are chunks of these names, in the order of their hashes.
func chunks(names ...string) []wire.Chunk {
	list := make([]wire.Chunk, len(names))
	for i, name := range names {
		list[i] = chunk(name)
	}
	slices.SortFunc(list, func(a, b wire.Chunk) int { return strings.Compare(a.SHA256, b.SHA256) })
	return list
}

func sums(list []wire.Chunk) []string {
	sums := make([]string, len(list))
	for i, c := range list {
		sums[i] = c.SHA256
	}
	return sums
}

func (x *storer) member() db.Member {
	return db.Member{Tenant: "default", Job: x.id, Attempt: x.attempt}
}

// sends stores chunks as an agent does, and returns their copies.
func (x *storer) sends(names ...string) map[string]wire.ChunkCopy {
	x.t.Helper()
	list := chunks(names...)
	copies, err := x.db.Chunks.Load(x.t.Context(), x.member(), 1, list)
	if err != nil || len(copies) != len(list) {
		x.t.Fatalf("%d copies of %d, %v", len(copies), len(list), err)
	}
	if err := x.db.Chunks.Stored(x.t.Context(), x.member(), objects(copies)); err != nil {
		x.t.Fatal(err)
	}
	return copies
}

// objects are the objects of copies of chunks of 1000 bytes.
func objects(copies map[string]wire.ChunkCopy) (list []db.ChunkObject) {
	for _, c := range copies {
		list = append(list, db.ChunkObject{ChunkCopy: c, Bytes: 1000})
	}
	return list
}

// registers reports a checkpoint that consists of chunks and of 5 other bytes.
func (x *storer) registers(step int64, names ...string) error {
	list := chunks(names...)
	size := int64(len(names)) * 1000
	_, err := x.db.Objects.RegisterCheckpoint(x.t.Context(), x.a.machine, wire.CheckpointReport{
		AgentBoot: x.a.boot, Epoch: x.a.epoch, Alloc: x.alloc(x.id, x.attempt), Job: x.id, Attempt: x.attempt,
		OfAttempt: x.attempt, Step: step, Manifest: manifestKey(x.id, x.attempt, 0, step), SHA256: "x", Bytes: size + 5,
		Chunks: list, Chunked: size,
	})
	return err
}

// stored returns the bytes of checkpoints that the tenant is counted for.
func (s *stage) stored(when string) (bytes int64) {
	s.t.Helper()
	for _, a := range s.countsAgree(when) {
		if a.Kind == db.StoredCheckpoints {
			bytes += a.Amount
		}
	}
	return bytes
}

// refs returns the references of a chunk; -1: it has no row.
func (s *stage) refs(name string) int {
	s.t.Helper()
	return one[int](s, `SELECT coalesce((SELECT refs FROM chunks WHERE tenant = 'default' AND sha256 = decode($1, 'hex')), -1)`,
		chunk(name).SHA256)
}

// collects gives up unused chunks, whatever their age, and returns the number.
func (s *stage) collects(term db.Term) int {
	s.t.Helper()
	n, err := s.db.Chunks.Collect(s.t.Context(), term, 0, 1000)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestSharedChunksAreCountedOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	x.sends("base", "base2", "one")
	if got := s.stored("before a registration"); got != 0 {
		t.Errorf("%d bytes are counted", got)
	}
	if err := x.registers(1, "base", "base2", "one"); err != nil {
		t.Fatal(err)
	}
	x.sends("two")
	if err := x.registers(2, "base", "base2", "two"); err != nil {
		t.Fatal(err)
	}
	if got := s.stored("after two steps"); got != 4010 {
		t.Errorf("%d bytes are counted, want four chunks and twice 5", got)
	}
	list := s.job(x.id).Checkpoints
	if list[0].Bytes != 3005 || *list[0].Stored != 1005 || *list[1].Stored != 3005 {
		t.Errorf("checkpoints are %+v", list)
	}
	x.sends("three")
	if err := x.registers(3, "base", "base2", "three"); err != nil { // keep is 2: step 1 is pruned
		t.Fatal(err)
	}
	if one, base := s.refs("one"), s.refs("base"); one != 0 || base != 2 {
		t.Errorf("the chunk of step 1 has %d references, the base %d", one, base)
	}
	if got := s.stored("after a prune"); got != 4010 {
		t.Errorf("%d bytes are counted after the prune", got)
	}
	if err := x.registers(3, "base", "base2", "three"); err != nil {
		t.Errorf("registering twice: %v", err)
	}
	term := s.term()
	if n := s.collects(term); n != 1 || s.refs("one") != -1 || s.refs("base") != 2 {
		t.Errorf("%d chunks are collected", n)
	}
	// An address that was signed for the copy may still be in use.
	if doomed, err := s.db.Objects.Doomed(t.Context(), 100); err != nil || len(doomed) != 0 {
		t.Errorf("doomed objects are %v at once, %v", doomed, err)
	}
	mustExec(t, s.pool, `UPDATE doomed_objects SET since = since - interval '10 minutes'`)
	doomed, err := s.db.Objects.Doomed(t.Context(), 100)
	if err != nil || !slices.ContainsFunc(doomed, func(k string) bool { return strings.Contains(k, chunk("one").SHA256) }) {
		t.Errorf("doomed objects are %v, %v", doomed, err)
	}
	mustExec(t, s.pool, `UPDATE checkpoints SET state = 'bad' WHERE job = $1`, x.id)
	if got := s.stored("after all are bad"); got != 0 || s.refs("base") != 0 {
		t.Errorf("%d bytes are counted, and the base has %d references", got, s.refs("base"))
	}
}

// A member that names a hash gets no content by it: it must have sent the chunk, or may restore it.
func TestAHashIsNoProofOfContent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.roomy()
	a, _ := s.register("host1", "agent1")
	x, y := s.storer(a), s.storer(a)
	x.sends("secret")
	if err := x.registers(1, "secret"); err != nil {
		t.Fatal(err)
	}
	if held, err := s.db.Chunks.Held(t.Context(), y.member(), sums(chunks("secret"))); err != nil || len(held) != 0 {
		t.Errorf("another job may leave out %v, %v", held, err)
	}
	if held, err := s.db.Chunks.Held(t.Context(), x.member(), sums(chunks("secret"))); err != nil || len(held) != 1 {
		t.Errorf("the job itself may leave out %v, %v", held, err)
	}
	err := y.registers(1, "secret")
	if !berth.IsSlug(err, wire.SlugObjectMissing) || !strings.Contains(err.Error(), chunk("secret").SHA256) {
		t.Errorf("a registration by the hash alone: %v", err)
	}
	if _, err := s.db.Chunks.Load(t.Context(), y.member(), 1, chunks("secret")); err != nil {
		t.Fatal(err)
	}
	if err := y.registers(1, "secret"); !berth.IsSlug(err, wire.SlugObjectMissing) {
		t.Errorf("a registration of a chunk that was announced and not sent: %v", err)
	}
	part := db.Member{Job: x.id, Attempt: x.attempt}
	for name, c := range map[string]struct {
		machine berth.MachineID
		step    int64
		names   []string
		want    int
	}{
		"the member itself": {a.machine, 1, []string{"secret", "other"}, 1},
		"another step":      {a.machine, 2, []string{"secret"}, 0},
		"another machine":   {"m1", 1, []string{"secret"}, 0},
	} {
		got, err := s.db.Chunks.Readable(t.Context(), c.machine, part, c.step, sums(chunks(c.names...)))
		if err != nil || len(got) != c.want {
			t.Errorf("%s may read %v, %v", name, got, err)
		}
	}
	// After it has sent the content, both jobs share the first copy, and the second one is deleted.
	own := y.sends("secret")
	if err := y.registers(1, "secret"); err != nil {
		t.Fatal(err)
	}
	if s.refs("secret") != 2 {
		t.Errorf("the chunk has %d references", s.refs("secret"))
	}
	second := own[chunk("secret").SHA256].Key()
	if n := one[int](s, `SELECT count(*) FROM doomed_objects WHERE prefix = $1 AND since > clock_timestamp()`, second); n != 1 {
		t.Errorf("the second copy %s is not marked for deletion", second)
	}
}

// Chunks of the same content belong to their tenants: nothing is shared or shown across them.
func TestTenantsShareNoChunks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	x.sends("same")
	if err := x.registers(1, "same"); err != nil {
		t.Fatal(err)
	}
	other := db.Member{Tenant: "other", Job: berth.NewJobID(time.Now()), Attempt: 1}
	if held, err := s.db.Chunks.Held(ctx, other, sums(chunks("same"))); err != nil || len(held) != 0 {
		t.Errorf("held: %v, %v", held, err)
	}
	copies, err := s.db.Chunks.Load(ctx, other, 1, chunks("same"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Chunks.Stored(ctx, other, objects(copies)); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM chunks WHERE sha256 = decode($1, 'hex')`, chunk("same").SHA256); n != 2 {
		t.Errorf("the two tenants have %d rows", n)
	}
}

// A broken chunk is replaced by the next member that has the content, for all checkpoints that name it.
func TestABrokenChunkIsSentAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	first := x.sends("base")[chunk("base").SHA256]
	if err := x.registers(1, "base"); err != nil {
		t.Fatal(err)
	}
	if inForce, err := s.db.Chunks.Broken(t.Context(), first); err != nil || !inForce {
		t.Fatalf("the copy is in force: %v, %v", inForce, err)
	}
	if held, err := s.db.Chunks.Held(t.Context(), x.member(), sums(chunks("base"))); err != nil || len(held) != 0 {
		t.Errorf("held: %v, %v", held, err)
	}
	if err := x.registers(2, "base"); !berth.IsSlug(err, wire.SlugObjectMissing) {
		t.Errorf("a registration of a broken chunk: %v", err)
	}
	second := x.sends("base")[chunk("base").SHA256]
	if err := x.registers(2, "base"); err != nil {
		t.Fatal(err)
	}
	got, err := s.db.Chunks.Named(t.Context(), x.member(), 1, sums(chunks("base")))
	if err != nil || got[chunk("base").SHA256] != second || second == first {
		t.Errorf("step 1 reads %v, want %v, %v", got, second, err)
	}
	if n := one[int](s, `SELECT count(*) FROM doomed_objects WHERE prefix = $1`, first.Key()); n != 1 {
		t.Error("the broken copy is not marked for deletion")
	}
	// A reader of the first copy that finds it missing has found nothing about the second one.
	inForce, err := s.db.Chunks.Broken(t.Context(), first)
	if held, _ := s.db.Chunks.Held(t.Context(), x.member(), sums(chunks("base"))); err != nil || inForce || len(held) != 1 {
		t.Errorf("the replaced copy is in force: %v, %v, and %v are held", inForce, err, held)
	}
}

// Agents that know no chunks get no work whose checkpoint has some: they would take it for damaged.
func TestAnAgentWithoutChunksIsRefusedARestore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	claim := func(chunks bool) error {
		_, err := s.db.Agents.Claim(t.Context(), a.machine, wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch,
			Alloc: x.alloc(x.id, x.attempt), Job: x.id, Attempt: x.attempt, Sources: true, Chunks: chunks})
		return err
	}
	if err := claim(false); err != nil {
		t.Errorf("without a checkpoint: %v", err)
	}
	x.sends("base")
	if err := x.registers(1, "base"); err != nil {
		t.Fatal(err)
	}
	if err := claim(false); berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), "restores a checkpoint with shared content") {
		t.Errorf("an old agent: %v", err)
	}
	if err := claim(true); err != nil {
		t.Errorf("a new agent: %v", err)
	}
}

// The statements of the version before, which knows no chunks, prune, archive and reject checkpoints with chunks.
func TestStatementsOfTheVersionBeforeLetChunksGo(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"prune":   `UPDATE checkpoints SET state = 'pruned' WHERE job = $1 AND step = 1`,
		"reject":  `UPDATE checkpoints SET state = 'bad' WHERE job = $1 AND step = 1`,
		"archive": `DELETE FROM checkpoints WHERE job = $1 AND step = 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			a, _ := s.register("host1", "agent1")
			x := s.storer(a)
			x.sends("base", "one")
			if err := errors.Join(x.registers(1, "base", "one"), x.registers(2, "base")); err != nil {
				t.Fatal(err)
			}
			mustExec(t, s.pool, statement, x.id)
			if s.refs("one") != 0 || s.refs("base") != 1 {
				t.Errorf("references: %d and %d", s.refs("one"), s.refs("base"))
			}
			if got := s.stored("afterwards"); got != 1005 {
				t.Errorf("%d bytes are counted", got)
			}
		})
	}
}

// A quota counts a chunk once, and a step over it is refused without a trace.
func TestAQuotaCountsChunksOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.storageQuota("default", spec.StorageLimits{Checkpoints: new(spec.MiB(1))})
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	x.sends("base", "big")
	mustExec(t, s.pool, `UPDATE chunks SET bytes = 700000 WHERE sha256 = decode($1, 'hex')`, chunk("base").SHA256)
	mustExec(t, s.pool, `UPDATE chunks SET bytes = 500000 WHERE sha256 = decode($1, 'hex')`, chunk("big").SHA256)
	register := func(step int64, list ...wire.Chunk) error {
		size := int64(0)
		for _, c := range list {
			size += c.Bytes
		}
		_, err := s.db.Objects.RegisterCheckpoint(t.Context(), a.machine, wire.CheckpointReport{
			AgentBoot: a.boot, Epoch: a.epoch, Alloc: x.alloc(x.id, x.attempt), Job: x.id, Attempt: x.attempt,
			OfAttempt: x.attempt, Step: step, Manifest: manifestKey(x.id, x.attempt, 0, step), SHA256: "x", Bytes: size,
			Chunks: list, Chunked: size,
		})
		return err
	}
	base, big := chunk("base"), chunk("big")
	base.Bytes, big.Bytes = 700_000, 500_000
	if err := errors.Join(register(1, base), register(2, base)); err != nil {
		t.Fatal(err)
	}
	list := []wire.Chunk{base, big}
	slices.SortFunc(list, func(a, b wire.Chunk) int { return strings.Compare(a.SHA256, b.SHA256) })
	if err := register(3, list...); !berth.IsSlug(err, berth.SlugStorageQuota) {
		t.Errorf("a step over the quota: %v", err)
	}
	if got := s.stored("after the refusal"); got != 700_000 || s.refs("big") != 0 {
		t.Errorf("%d bytes are counted, and the refused chunk has %d references", got, s.refs("big"))
	}
}

// Loads of ended attempts go, with the copies that were not stored; loads of live attempts hold their chunks.
func TestLoadsEndWithTheirAttempt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	x.sends("kept")
	open, err := s.db.Chunks.Load(t.Context(), x.member(), 1, chunks("open"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.db.Chunks.Load(t.Context(), x.member(), 1, chunks("open"))
	if err != nil || again[chunk("open").SHA256] != open[chunk("open").SHA256] {
		t.Errorf("a repeated call names another copy: %v, %v", again, err)
	}
	term := s.term()
	if n := s.collects(term); n != 0 {
		t.Errorf("%d chunks of a live attempt are collected", n)
	}
	mustExec(t, s.pool, `UPDATE attempts SET ended_at = now() - interval '1 minute' WHERE job = $1`, x.id)
	if n := s.collects(term); n != 1 {
		t.Errorf("%d chunks of the ended attempt are collected", n)
	}
	if n := one[int](s, `SELECT count(*) FROM doomed_objects WHERE prefix = $1`, open[chunk("open").SHA256].Key()); n != 1 {
		t.Error("the open upload is not marked for deletion")
	}
}

// TestCollectionsAndRegistrationsRace lets registrations of several jobs with common chunks, prunes and collections race.
// Whichever comes first, no registered checkpoint lacks a chunk, and all counts are right.
func TestCollectionsAndRegistrationsRace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.roomy()
	a, _ := s.register("host1", "agent1")
	members := []*storer{s.storer(a), s.storer(a), s.storer(a)}
	term := s.term()
	var work, collector sync.WaitGroup
	done := make(chan struct{})
	refused := make([]int, len(members))
	for i, x := range members {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		work.Go(func() {
			for step := int64(1); step <= 25; step++ {
				var names []string
				for n := range 12 {
					if random.IntN(2) == 0 {
						names = append(names, fmt.Sprint("common", n))
					}
				}
				names = append(names, fmt.Sprint("own", i, step))
				for {
					// As the agent does: only chunks that the server does not let it leave out are sent.
					held, err := x.db.Chunks.Held(t.Context(), x.member(), sums(chunks(names...)))
					if err != nil {
						t.Error(err)
						return
					}
					var send []string
					for _, name := range names {
						if !held[chunk(name).SHA256] {
							send = append(send, name)
						}
					}
					if len(send) > 0 {
						x.sends(send...)
					}
					err = x.registers(step, names...)
					if err == nil {
						break
					}
					if !berth.IsSlug(err, wire.SlugObjectMissing) {
						t.Errorf("job %d, step %d: %v", i, step, err)
						return
					}
					refused[i]++
				}
			}
		})
	}
	collector.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			// Loads would hold the chunks: without them the collector meets the registrations.
			mustExec(t, s.pool, `DELETE FROM chunk_loads WHERE stored AND random() < 0.2`)
			mustExec(t, s.pool, `UPDATE chunks SET broken = true WHERE ctid = (SELECT ctid FROM chunks ORDER BY random() LIMIT 1)`)
			if _, err := s.db.Chunks.Collect(t.Context(), term, 0, 1000); err != nil {
				t.Error(err)
				return
			}
		}
	})
	work.Wait()
	close(done)
	collector.Wait()
	t.Logf("refused registrations: %v", refused)
	if n := one[int](s, `SELECT count(*) FROM chunk_refs r LEFT JOIN chunks c USING (tenant, sha256) WHERE c.sha256 IS NULL`); n != 0 {
		t.Errorf("%d references have no chunk", n)
	}
	if n := one[int](s, `SELECT count(*) FROM chunks c WHERE refs <> (SELECT count(*) FROM chunk_refs r WHERE r.tenant = c.tenant AND r.sha256 = c.sha256)`); n != 0 {
		t.Errorf("%d chunks count another number of references", n)
	}
	s.stored("after the race")
	for _, x := range members {
		if got := len(slices.DeleteFunc(s.job(x.id).Checkpoints, func(c berth.Checkpoint) bool { return c.State != berth.CheckpointVerified })); got != 2 {
			t.Errorf("job %s has %d verified checkpoints", x.id, got)
		}
	}
}
