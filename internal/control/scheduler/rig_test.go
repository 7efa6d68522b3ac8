package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/failure"
	"berth/internal/control/scheduler"
	"berth/internal/lib/poll"
	"berth/spec"
	"berth/wire"
)

// rig is a database with machines, and schedulers that lead it by turns.
type rig struct {
	t    testing.TB
	url  string
	db   *db.DB
	poke *pokes
	log  *logs
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigOn(t, dbtest.DB(t, db.Options{}))
}

// newRigAt returns a rig on the database at url.
func newRigAt(t testing.TB, url string) *rig {
	t.Helper()
	return newRigOn(t, dbtest.Open(t, url, db.Options{}))
}

func newRigOn(t testing.TB, d *db.DB) *rig {
	return &rig{t, d.Pool().Config().ConnString(), d, &pokes{count: map[berth.JobID]int{}}, &logs{}}
}

// lead runs a scheduler until the returned function is called, or the test ends.
func (r *rig) lead(edit func(*scheduler.Options)) (stop func()) {
	r.t.Helper()
	o := scheduler.Options{
		DB: r.db, Poker: r.poke, Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Silence: db.Silence{Suspect: time.Hour, Lost: 2 * time.Hour}, // the machines are rows, which say nothing
	}
	if edit != nil {
		edit(&o)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = scheduler.New(o).Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Pool().Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%v\n%s", err, sql)
	}
}

func value[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	var v T
	if err := r.db.Pool().QueryRow(r.t.Context(), sql, args...).Scan(&v); err != nil {
		r.t.Fatalf("%v\n%s", err, sql)
	}
	return v
}

// machine adds a ready machine that has just been heard.
func (r *rig) machine(id string, cpus, gpus int) {
	r.t.Helper()
	r.exec(`INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ($1, 'ready', $2, 1 << 20, 1 << 20, $3)`, id, 1000*cpus, 1000*gpus)
	for i := range gpus {
		r.exec(`INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb) VALUES ($1, $2, $3, 'H100', 81920)`, id, i, fmt.Sprintf("%s-%d", id, i))
	}
	r.exec(`INSERT INTO machine_leases (machine_id, epoch, until) VALUES ($1, 1, now() + interval '1 hour')`, id)
}

// queued submits a job and queues it, as its workflow would.
func (r *rig) queued(edit func(*spec.Job)) berth.JobID {
	r.t.Helper()
	id := r.submitted(edit)
	if _, err := r.db.Jobs.Load(r.t.Context(), id); err != nil {
		r.t.Fatal(err)
	}
	return id
}

func (r *rig) submitted(edit func(*spec.Job)) berth.JobID {
	r.t.Helper()
	jobSpec := spec.Job{Name: "x", Image: "busybox"}
	jobSpec.Resources.Memory = new(spec.MiB)
	*jobSpec.Resources.Memory = 4
	jobSpec = jobSpec.WithDefaults()
	if edit != nil {
		edit(&jobSpec)
	}
	job, _, err := r.db.Jobs.Submit(r.t.Context(), db.Submission{Tenant: "default", Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		r.t.Fatal(err)
	}
	return job.ID
}

func (r *rig) state(id berth.JobID) berth.State {
	r.t.Helper()
	return value[berth.State](r, `SELECT state FROM jobs WHERE id = $1`, id)
}

func (r *rig) awaitState(id berth.JobID, want berth.State) {
	r.t.Helper()
	r.await(fmt.Sprintf("job %s is %s", id, want), func() bool { return r.state(id) == want })
}

// waitLimit bounds each wait for a condition. It is far above the needs of a slow machine:
// only a test that fails waits so long.
const waitLimit = 10 * time.Minute

// await polls a condition that nothing announces.
func (r *rig) await(what string, holds func() bool) {
	r.t.Helper()
	if !poll.Until(waitLimit, 50*time.Millisecond, holds) {
		r.t.Fatalf("waited in vain until %s\n%s", what, r.log)
	}
}

// sound fails unless the counters add up and every attempt is whole.
func (r *rig) sound() {
	r.t.Helper()
	list, err := r.db.Cluster.Miscounts(r.t.Context())
	if err != nil || len(list) > 0 {
		r.t.Errorf("counters: %v, %v", list, err)
	}
	if n := value[int](r, `SELECT count(*) FROM (SELECT job, rank FROM allocations WHERE state IN ('reserved', 'active') GROUP BY job, rank HAVING count(*) > 1) x`); n > 0 {
		r.t.Errorf("%d ranks live twice", n)
	}
	if n := value[int](r, `SELECT count(*) FROM jobs j WHERE state = 'scheduled' AND NOT EXISTS (SELECT 1 FROM allocations a WHERE a.job = j.id AND a.attempt = j.attempt)`); n > 0 {
		r.t.Errorf("%d scheduled jobs have no ranks", n)
	}
}

// pokes records who was poked.
type pokes struct {
	mu    sync.Mutex
	count map[berth.JobID]int
	down  bool
}

func (p *pokes) Poke(ids ...berth.JobID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		p.count[id]++
	}
}

func (p *pokes) Healthy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.down
}

func (p *pokes) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *pokes) of(id berth.JobID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count[id]
}

// passes returns how many passes the reconciler has made.
func (r *rig) passes() int { return strings.Count(r.log.String(), "reconciler passed") }

// logs keeps the logged lines.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// temporal is a Temporal that remembers and does nothing else.
type temporal struct {
	mu         sync.Mutex
	open       map[berth.JobID]bool
	unlisted   map[berth.JobID]bool // open, and visibility does not know it yet
	completed  map[berth.JobID]bool
	started    []berth.JobID
	again      []berth.JobID
	terminated []berth.JobID
	described  []berth.JobID
	rewaited   []berth.JobID
	unaware    map[berth.JobID]bool          // of their grant
	silent     bool                          // Describe answers nothing
	undying    map[berth.JobID]bool          // Terminate fails
	failing    map[berth.JobID]bool          // Start fails
	deaf       map[berth.JobID]time.Duration // for how long the first task has waited
}

func newTemporal() *temporal {
	return &temporal{open: map[berth.JobID]bool{}, unlisted: map[berth.JobID]bool{}, completed: map[berth.JobID]bool{},
		deaf: map[berth.JobID]time.Duration{}}
}

func (x *temporal) Open(_ context.Context, each func(berth.JobID)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.open {
		if !x.unlisted[id] {
			each(id)
		}
	}
	return nil
}

func (x *temporal) Describe(ctx context.Context, id berth.JobID) (open, completed bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.described = append(x.described, id)
	if x.silent {
		<-ctx.Done()
		return false, false, ctx.Err()
	}
	return x.open[id], x.completed[id], nil
}

func (x *temporal) Start(_ context.Context, id berth.JobID, again bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failing[id] {
		return errors.New("no start")
	}
	if x.completed[id] && !again {
		return nil // started already, as far as the policy goes
	}
	if !x.open[id] {
		x.started = append(x.started, id)
		if again {
			x.again = append(x.again, id)
		}
	}
	x.open[id] = true
	return nil
}

func (x *temporal) Terminate(_ context.Context, id berth.JobID, _ string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.undying[id] {
		return errors.New("no answer")
	}
	x.terminated = append(x.terminated, id)
	delete(x.deaf, id)
	delete(x.open, id)
	return nil
}

func (x *temporal) Pending(_ context.Context, id berth.JobID) (time.Duration, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.deaf[id], nil
}

func (x *temporal) Rewait(_ context.Context, id berth.JobID, _ time.Duration) (int, bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rewaited = append(x.rewaited, id)
	if x.unaware[id] {
		return 0, true, nil
	}
	return 1, false, nil
}

func (x *temporal) did(list *[]berth.JobID) []berth.JobID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(*list)
}

// wants edits a job's priority and its GPUs.
func wants(priority spec.Priority, gpus int) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Priority = &priority
		j.Resources.GPUs = spec.MilliGPU(1000 * gpus)
	}
}

// run lets a scheduled job run, with the reports of its machine.
func (r *rig) run(id berth.JobID) {
	r.t.Helper()
	r.exec(`UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now(), started_at = now() WHERE job = $1 AND state = 'reserved'`, id)
	r.exec(`UPDATE attempts SET started_at = now() WHERE job = $1`, id)
	r.exec(`UPDATE jobs SET state = 'running', version = version + 1 WHERE id = $1`, id)
	r.hint()
}

// stops ends a job's members as ordered, and settles it.
func (r *rig) stops(id berth.JobID) {
	r.t.Helper()
	if result := r.ends(id, failure.Exit{Cause: failure.CauseOrdered, Code: 143}); result.Next != berth.Retrying {
		r.t.Fatalf("settled as %+v", result)
	}
}

// ends ends a job's members, and settles its present attempt.
func (r *rig) ends(id berth.JobID, x failure.Exit) wire.SettleResult {
	r.t.Helper()
	r.exec(`UPDATE allocations SET state = 'exited', phase = 'sealed', exit = $2, exited_at = now(), sealed_at = now() WHERE job = $1 AND state = 'active'`,
		id, x)
	result, err := r.db.Attempts.Settle(r.t.Context(), id, value[int](r, `SELECT attempt FROM jobs WHERE id = $1`, id))
	if err != nil {
		r.t.Fatal(err)
	}
	return result
}

func (r *rig) hint() { r.db.Hub().Publish(db.TopicQueue, "") }
