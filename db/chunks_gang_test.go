package db_test

import (
	"context"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// chunkGang is a running gang whose members store checkpoints by chunks.
type chunkGang struct {
	*stage
	a       *agent
	id      berth.JobID
	attempt int
}

// gangOfChunks starts a gang on m0 that keeps one checkpoint.
func (s *stage) gangOfChunks(a *agent, members int) *chunkGang {
	s.t.Helper()
	id := s.submit(func(j *spec.Job) {
		j.Members = members
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 1}
	})
	on, ranks := make([]string, members), make([]int, members)
	for i := range members {
		on[i], ranks[i] = "m0", i
	}
	g := &chunkGang{stage: s, a: a, id: id, attempt: s.place(id, on...)}
	s.claim(id, g.attempt, ranks...)
	s.run(id)
	return g
}

func (g *chunkGang) member(rank int) db.Member {
	return db.Member{Tenant: "default", Job: g.id, Attempt: g.attempt, Rank: rank}
}

// sends stores chunks of 1000 bytes, as the agent of a member does.
func (g *chunkGang) sends(rank int, list []wire.Chunk) {
	g.t.Helper()
	copies, err := g.db.Chunks.Load(g.t.Context(), g.member(rank), 1, list)
	if err == nil {
		err = g.db.Chunks.Stored(g.t.Context(), g.member(rank), objects(copies))
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// registers reports one member's part of a step.
func (g *chunkGang) registers(ctx context.Context, rank int, step int64, list []wire.Chunk) error {
	var alloc berth.AllocationID
	if err := g.pool.QueryRow(ctx, `SELECT id FROM allocations WHERE job = $1 AND attempt = $2 AND rank = $3`, g.id, g.attempt, rank).
		Scan(&alloc); err != nil {
		return err
	}
	size := int64(len(list)) * 1000
	_, err := g.db.Objects.RegisterCheckpoint(ctx, g.a.machine, wire.CheckpointReport{
		AgentBoot: g.a.boot, Epoch: g.a.epoch, Alloc: alloc, Job: g.id, Attempt: g.attempt, OfAttempt: g.attempt, Rank: rank,
		Step: step, Manifest: manifestKey(g.id, g.attempt, rank, step), SHA256: "x", Bytes: size, Chunks: list, Chunked: size,
	})
	return err
}

// A shard waits for no row of another member's chunks. Only the shard that completes its step may prune other steps, and
// so locks the chunks of all members.
func TestAShardOfAGangLocksItsOwnChunks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.roomy()
	a, _ := s.register("host1", "agent1")
	g := s.gangOfChunks(a, 2)
	for rank, name := range []string{"first0", "first1"} {
		g.sends(rank, chunks(name))
		if err := g.registers(t.Context(), rank, 1, chunks(name)); err != nil {
			t.Fatal(err)
		}
	}
	g.sends(0, chunks("second0"))
	g.sends(1, chunks("second1"))
	other, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	if _, err := other.Exec(t.Context(), `SELECT 1 FROM chunks WHERE sha256 = decode($1, 'hex') FOR UPDATE`, chunk("first1").SHA256); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := g.registers(soon, 0, 2, chunks("second0")); err != nil {
		t.Fatalf("the first shard of step 2 waits for a chunk of another member: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- g.registers(t.Context(), 1, 2, chunks("second1")) }()
	s.blocked(1)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"first0": 0, "first1": 0, "second0": 1, "second1": 1} {
		if got := s.refs(name); got != want {
			t.Errorf("chunk %s has %d references, want %d", name, got, want)
		}
	}
}

// Transactions over the same chunks lock them in the order of hashes, broken or not, so none waits for another one that
// waits for it.
func TestChunksAreLockedInOneOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	list := chunks("one", "two")
	first, second := list[0].SHA256, list[1].SHA256
	broken := x.sends("one", "two")[second]
	if err := x.registers(1, "one", "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Chunks.Broken(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	copies, err := s.db.Chunks.Load(t.Context(), x.member(), 2, list)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	lock := `SELECT 1 FROM chunks WHERE sha256 = decode($1, 'hex') FOR UPDATE NOWAIT`
	if _, err := other.Exec(t.Context(), lock, first); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.db.Chunks.Stored(t.Context(), x.member(), objects(copies)) }()
	s.blocked(1)
	if _, err := other.Exec(t.Context(), lock, second); err != nil {
		t.Errorf("a transaction that waits for the first chunk holds the second one: %v", err)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM chunks WHERE broken`); n != 0 {
		t.Errorf("%d chunks are broken after they were sent again", n)
	}
}

// A registration locks the chunks of the steps that it prunes together with its own ones.
func TestAShardThatPrunesLocksInOneOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	g := s.gangOfChunks(a, 1)
	list := chunks("one", "two")
	g.sends(0, list)
	if err := g.registers(t.Context(), 0, 1, list[:1]); err != nil {
		t.Fatal(err)
	}
	other, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	lock := `SELECT 1 FROM chunks WHERE sha256 = decode($1, 'hex') FOR UPDATE NOWAIT`
	if _, err := other.Exec(t.Context(), lock, list[0].SHA256); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.registers(t.Context(), 0, 2, list[1:]) }()
	s.blocked(1)
	if _, err := other.Exec(t.Context(), lock, list[1].SHA256); err != nil {
		t.Errorf("a registration that waits for the first chunk holds the second one: %v", err)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := s.refs("one") + s.refs("two"); n != 1 {
		t.Errorf("the chunks have %d references, want the one of step 2", n)
	}
}
