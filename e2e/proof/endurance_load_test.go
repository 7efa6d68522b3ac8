package proof_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/api/client"
	"berth/internal/check"
	"berth/spec"
	"berth/wire"
)

// Kinds of calls whose time is taken.
const (
	callSubmit = "submit"
	callList   = "list"  // newest jobs of a team or of all, live ones, failed ones
	callName   = "name"  // jobs of a name, of which there are few
	callLabel  = "label" // jobs of a label, of which there are few
	callShow   = "show"  // a job, its history, its log
)

// reads is the number of calls by people a second, in addition to the load.
const reads = 8

// call is one call that was made.
type call struct {
	kind string
	at   time.Duration // when it was due, since the beginning
	took time.Duration // from then to its answer
}

// errand is one job of the load.
type errand struct {
	spec   spec.Job
	tenant int
	key    string
	due    time.Duration // since the beginning
	cancel time.Duration // after the submit; 0: never
	follow bool          // somebody waits for its end
	twice  bool          // is submitted again with the same key
	want   []berth.State

	id    berth.JobID
	ended berth.State
}

// load is an open loop: jobs arrive when they do, however long the calls before
// have taken, and the time of a call counts from then.
type load struct {
	s       *stack
	random  *rand.Rand
	rate    float64
	admin   []*client.Client
	tenants []tenant
	began   time.Time

	mu     sync.Mutex
	jobs   []*errand // accepted
	calls  []call
	faults map[string]int // by their text
}

// tenant is a team, with a client at each replica.
type tenant struct {
	name berth.TenantID
	apis []*client.Client
}

func (s *stack) newLoad(r *replicas, random *rand.Rand, rate float64) *load {
	s.t.Helper()
	l := &load{s: s, random: random, rate: rate, faults: map[string]int{}}
	for _, p := range r.all {
		l.admin = append(l.admin, p.api)
	}
	for _, name := range []berth.TenantID{"red", "green", "blue", "black", "white"} {
		token, err := s.api.CreateToken(s.t.Context(), spec.NewToken{Name: string(name), Tenant: name})
		if err != nil {
			s.t.Fatal(err)
		}
		t := tenant{name: name}
		for _, p := range r.all {
			api := client.New("http://"+p.listen, token.Secret)
			s.t.Cleanup(api.Close)
			t.apis = append(t.apis, api)
		}
		l.tenants = append(l.tenants, t)
	}
	return l
}

// start begins to submit and to read. The returned channel is closed once ctx has ended and every
// call was answered.
func (l *load) start(ctx context.Context, began time.Time) chan struct{} {
	l.began = began
	stopped := make(chan struct{})
	var all, calls sync.WaitGroup
	readers := rand.New(rand.NewPCG(l.random.Uint64(), 1))
	all.Go(func() {
		due := time.Duration(0)
		for i := 0; ; i++ {
			due += time.Duration(l.random.ExpFloat64() / l.rate * float64(time.Second))
			e := l.errand(i, due)
			if !sleepUntil(ctx, began.Add(due)) {
				return
			}
			calls.Go(func() { l.run(e, i) })
		}
	})
	all.Go(func() {
		for i := 0; ; i++ {
			due := time.Duration(i) * time.Second / reads
			choice := readers.Uint64()
			if !sleepUntil(ctx, began.Add(due)) {
				return
			}
			calls.Go(func() { l.look(i, due, choice) })
		}
	})
	go func() {
		all.Wait()
		calls.Wait()
		close(stopped)
	}()
	return stopped
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// errand draws a job: most take a few hundred milliseconds and succeed; some
// fail, some fail twice, some are canceled, some train and save.
func (l *load) errand(i int, due time.Duration) *errand {
	r := l.random
	length := time.Duration(min(1500, max(50, 300*math.Exp(0.6*r.NormFloat64())))) * time.Millisecond
	e := &errand{tenant: r.IntN(len(l.tenants)), key: fmt.Sprintf("endurance-%d", i), due: due, want: []berth.State{berth.Succeeded}}
	lines := fmt.Sprintf("lines %d 0s", 1+r.IntN(20))
	command := []string{"do", lines, fmt.Sprintf("sleep %s", length)}
	e.spec = l.s.job(fmt.Sprintf("job-%d", r.IntN(2000)), command...)
	cpus, memory := spec.MilliCPU(100*(1+r.IntN(8))), spec.MiB(64*(1+r.IntN(8)))
	e.spec.Resources = spec.Resources{CPUs: &cpus, Memory: &memory}
	e.spec.Labels = map[string]string{"project": fmt.Sprintf("p%d", r.IntN(500))}
	switch kind := r.Float64(); {
	case kind < 0.86:
	case kind < 0.91: // fails
		e.spec.Command, e.want = []string{"do", lines, fmt.Sprintf("sleep %s 3", length)}, []berth.State{berth.Failed}
	case kind < 0.93: // fails twice
		e.spec.Command, e.want = []string{"sleep", length.String(), "3"}, []berth.State{berth.Failed}
		e.spec.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(time.Second)}}
	case kind < 0.97:
		e.cancel, e.want = time.Duration(1+r.IntN(1000))*time.Millisecond, []berth.State{berth.Canceled, berth.Succeeded}
	default:
		e.spec.Command = []string{"train", "/checkpoint", "4", "60ms", "2"}
		e.spec.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	}
	if r.IntN(10) == 0 {
		e.spec.Resources.GPUs = 250
	}
	e.follow, e.twice = r.IntN(20) == 0, r.IntN(50) == 0
	return e
}

// run submits a job and makes the follow-up calls of its kind.
func (l *load) run(e *errand, i int) {
	ctx, api := context.Background(), l.tenants[e.tenant].apis[i%len(l.admin)]
	job, created, err := api.Submit(ctx, e.spec, e.key)
	took := time.Since(l.began) - e.due
	if err != nil || !created {
		l.fault("submit", err)
		return
	}
	e.id = job.ID
	l.mu.Lock()
	l.jobs = append(l.jobs, e)
	l.calls = append(l.calls, call{callSubmit, e.due, took})
	l.mu.Unlock()
	if e.twice {
		other := l.tenants[e.tenant].apis[(i+1)%len(l.admin)]
		if again, created, err := other.Submit(ctx, e.spec, e.key); err != nil || created || again.ID != job.ID {
			l.fault("submit again", err)
		}
	}
	if e.cancel > 0 {
		sleepUntil(ctx, time.Now().Add(e.cancel))
		if _, err := api.Cancel(ctx, job.ID); err != nil && berth.CodeOf(err) != berth.CodeConflict {
			l.fault("cancel", err)
		}
	}
	if e.follow {
		if ended, err := api.Wait(ctx, job.ID); err != nil || !slices.Contains(e.want, ended.Status) {
			l.fault("wait", err)
		}
	}
}

// look makes one of the calls that people make.
func (l *load) look(i int, due time.Duration, choice uint64) {
	ctx := context.Background()
	t := l.tenants[choice%uint64(len(l.tenants))]
	api, admin := t.apis[i%len(t.apis)], l.admin[i%len(l.admin)]
	var err error
	kind := callList
	switch i % 16 {
	case 0, 4:
		_, err = admin.Jobs(ctx, client.JobsQuery{Limit: 100})
	case 1, 9:
		_, err = api.Jobs(ctx, client.JobsQuery{Limit: 50, Status: []berth.State{berth.Running}})
	case 2:
		_, err = api.Jobs(ctx, client.JobsQuery{Limit: 50, Status: []berth.State{berth.Failed}})
	case 3, 8, 12:
		_, err = api.Jobs(ctx, client.JobsQuery{Limit: 50})
	case 5:
		_, err = admin.Jobs(ctx, client.JobsQuery{Limit: 50, Status: []berth.State{berth.Queued, berth.Scheduled, berth.Running, berth.Retrying}})
	case 6:
		kind = callName
		_, err = api.Jobs(ctx, client.JobsQuery{Limit: 50, Name: fmt.Sprintf("job-%d", choice>>8%2000)})
	case 7:
		kind = callLabel
		_, err = api.Jobs(ctx, client.JobsQuery{Limit: 50, Labels: map[string]string{"project": fmt.Sprintf("p%d", choice>>8%500)}})
	default:
		id, ok := l.some(choice >> 8)
		if !ok {
			return
		}
		kind = callShow
		switch i % 16 {
		case 10:
			_, err = admin.Events(ctx, id, 0)
		case 11:
			err = admin.Logs(ctx, id, client.LogsQuery{}, func(wire.LogLine) error { return nil })
		default:
			_, err = admin.Job(ctx, id)
		}
	}
	took := time.Since(l.began) - due
	if err != nil {
		l.fault(kind, err)
		return
	}
	l.mu.Lock()
	l.calls = append(l.calls, call{kind, due, took})
	l.mu.Unlock()
}

// some is any job accepted so far.
func (l *load) some(choice uint64) (berth.JobID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.jobs) == 0 {
		return "", false
	}
	return l.jobs[choice%uint64(len(l.jobs))].id, true
}

func (l *load) fault(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[fmt.Sprintf("%s: %v", what, err)]++
}

// settle waits until no job is live, and reads how each has ended.
func (l *load) settle(d *pgxpool.Pool) {
	l.s.t.Helper()
	until(l.s.t, "every job has ended", func(ctx context.Context) error {
		var live int
		err := d.QueryRow(ctx, `SELECT count(*) FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'canceled')`).Scan(&live)
		if err == nil && live > 0 {
			err = fmt.Errorf("%d are live", live)
		}
		return err
	})
	by := map[berth.JobID]*errand{}
	for _, e := range l.jobs {
		by[e.id] = e
	}
	rows, err := d.Query(l.s.t.Context(), `SELECT id::text, state FROM jobs`)
	if err != nil {
		l.s.t.Fatal(err)
	}
	var id berth.JobID
	var state berth.State
	if _, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error {
		if e := by[id]; e != nil {
			e.ended = state
		} else {
			l.fault("a job that nobody was told of", nil)
		}
		return nil
	}); err != nil {
		l.s.t.Fatal(err)
	}
}

// unexpected counts jobs that did not end as they should.
func (l *load) unexpected() int {
	n := 0
	for _, e := range l.jobs {
		if !slices.Contains(e.want, e.ended) {
			n++
		}
	}
	return n
}

// accepted is the list for berth-check.
func (l *load) accepted() []check.Accepted {
	var list []check.Accepted
	for _, e := range l.jobs {
		list = append(list, check.Accepted{Tenant: l.tenants[e.tenant].name, Key: e.key, Job: e.id})
	}
	return list
}

// between are the times of the calls of a kind that were due then.
func (l *load) between(kind string, from, to time.Duration) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []time.Duration
	for _, c := range l.calls {
		if c.kind == kind && c.at >= from && c.at < to {
			list = append(list, c.took)
		}
	}
	return list
}
