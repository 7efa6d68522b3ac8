package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/blob"
	"berth/internal/control/floors"
	"berth/internal/control/runtimes"
	"berth/internal/control/watermark"
	"berth/internal/lib/overload"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// Poker wakes the workflows of jobs.
type Poker interface {
	Poke(ids ...berth.JobID)
	// Healthy is false once pokes have failed for a while: then nothing is
	// placed, so that nothing sits reserved with no workflow to run it.
	Healthy() bool
}

// Workflows gives the reconciler access to Temporal's workflows.
type Workflows interface {
	// Open calls each with the job of every open job workflow, as visibility
	// lists them: it may lag.
	Open(ctx context.Context, each func(berth.JobID)) error
	// Describe returns the state of the latest run of the job's workflow: open,
	// completed, or neither (none, or one that failed or was terminated).
	Describe(ctx context.Context, id berth.JobID) (open, completed bool, err error)
	// Start starts the job's workflow unless it is open. again allows it even
	// though a run has completed. AlreadyStarted is no error.
	Start(ctx context.Context, id berth.JobID, again bool) error
	Terminate(ctx context.Context, id berth.JobID, reason string) error
	// Pending returns the time for which the present task of the job's workflow has waited for a
	// worker, all its tries included; 0 without such a task.
	Pending(ctx context.Context, id berth.JobID) (time.Duration, error)
	// Rewait has Temporal start the activities again that wait for members of the job,
	// if they were started at least age ago. It returns their number. idle reports an open
	// workflow without any such activity: it does not know the job's present attempt.
	Rewait(ctx context.Context, id berth.JobID, age time.Duration) (n int, idle bool, err error)
}

// Settler closes an attempt from the rows.
type Settler interface {
	Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error)
}

// Archiver moves jobs that ended longer ago than retention to the archive.
type Archiver interface {
	ArchiveTerminal(ctx context.Context, term db.Term, retention time.Duration, limit int) (int, error)
}

// Scaler launches and ends machines of clouds in a term, until ctx ends or the term is over. mirror returns
// a copy of the leader's mirror. *autoscale.Loop implements it.
type Scaler interface {
	Run(ctx context.Context, term db.Term, mirror autoscale.CopyMirror) error
}

// Objects gives the leader access to the object store.
type Objects interface {
	blob.Identified
	Exists(ctx context.Context, key string) (bool, error)
	Holds(ctx context.Context, key string, bytes int64, sum [32]byte) (bool, error)
	Folders(ctx context.Context, key string) ([]string, error)
	Delete(ctx context.Context, key string) error
	DeleteFolder(ctx context.Context, key string) error
	Open(ctx context.Context, key string) (io.ReadCloser, int64, error)
	Names(ctx context.Context, folder string) ([]string, error)
	ReadAll(ctx context.Context, key string, limit int64) ([]byte, error)
	Uploads(ctx context.Context, folder string, each func(blob.Upload) error) error
	AbortUpload(ctx context.Context, u blob.Upload) error
	SweepProofs(ctx context.Context, age time.Duration) (int, error)
}

// Options are the dependencies and settings of a Scheduler. DB and Poker are required.
type Options struct {
	DB        *db.DB
	Poker     Poker
	Workflows Workflows      // nil: workflows are not compared with the rows
	Objects   Objects        // nil: objects are not compared with the rows
	Gate      *overload.Gate // nil: nothing holds back starts
	Clocks    Clocks         // nil: schedules have no clocks
	Fires     Fires          // required with Clocks
	Scaler    Scaler         // nil: no machines of clouds are launched
	Logger    *slog.Logger
	Metrics   *Metrics // nil: none are kept

	// Floors are the demands on machines that take jobs of untrusted tenants.
	Floors floors.Floors

	Watermarks *watermark.Keeper // nil: only machines notice that a backup was restored

	// Policy is how jobs are ordered and displace each other. The zero value is
	// fair order, without aging, backfill or preemption.
	Policy placement.Policy

	// Beacon makes this process record that API replicas can write; see
	// db.Leader.RenewBeacon. Set it in processes that serve the API.
	Beacon bool

	Silence   db.Silence    // zero: 20 s, 90 s and 60 s
	Grace     time.Duration // without verdicts after a gap; zero: 60 s
	Retention time.Duration // of terminal jobs before they are archived; zero: 30 days
	// MachineRetention is how long the history of machines and the failures counted
	// against them stay on record; zero: 90 days.
	MachineRetention time.Duration
	// OutputRetention is how long after a job's end its outputs are kept, and at
	// least until the job is archived; zero: no limit.
	OutputRetention time.Duration
	// LogRetention is the same for logs.
	LogRetention time.Duration
	// ActRetention is how long the records of sessions in containers are kept; zero: no limit.
	ActRetention time.Duration

	// ReconcileEvery is the pause between two passes; zero: 10 s. Ages are the
	// limits of the passes; zero fields have their defaults.
	ReconcileEvery time.Duration
	Ages           Ages
	Looks          float64       // at chunks in the object store, a second on average; 0: lookBatch in each pass
	TidyEvery      time.Duration // the pause between two comparisons with the object store; zero: 10 min

	Settler  Settler  // nil: DB.Attempts
	Archiver Archiver // nil: DB.Jobs
}

// Timing of the election and the loops.
const (
	leaseTTL    = 3 * time.Second
	renewEvery  = time.Second
	bidEvery    = 500 * time.Millisecond
	countEvery  = time.Second
	reapEvery   = time.Second
	beaconEvery = 2 * time.Second
	runsEvery   = time.Second // how long jobs ran, of names of which some have ended
)

// Scheduler is one process's part in leading. Its zero value is not usable; see
// New.
type Scheduler struct {
	Options
	writes writes
	holder string
	lease  *db.Lease
	warm   *mirror // the mirror that a standby keeps ready; nil before its first read
	life   int64   // incarnation of the database that warm and the pool have read; 0: unknown
}

// New returns a Scheduler that does nothing before Run.
func New(o Options) *Scheduler {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Silence.Suspect == 0 {
		o.Silence.Suspect = berth.MachineLeaseTTL
	}
	if o.Silence.Lost == 0 {
		o.Silence.Lost = spec.DefaultLostAfter
	}
	if o.Silence.Margin == 0 {
		o.Silence.Margin = berth.FenceMargin
	}
	if o.Grace == 0 {
		o.Grace = time.Minute
	}
	if o.Retention == 0 {
		o.Retention = 30 * 24 * time.Hour
	}
	if o.MachineRetention == 0 {
		o.MachineRetention = 90 * 24 * time.Hour
	}
	if o.ReconcileEvery == 0 {
		o.ReconcileEvery = 10 * time.Second
	}
	if o.TidyEvery == 0 {
		o.TidyEvery = 10 * time.Minute
	}
	if o.Settler == nil {
		o.Settler = o.DB.Attempts
	}
	if o.Archiver == nil {
		o.Archiver = o.DB.Jobs
	}
	o.Ages = o.Ages.withDefaults()
	holder := berth.NewSecret()
	w := withFailpoints(writes{
		starts: o.DB.Queue, verdicts: o.DB.Machines, clocks: o.Clocks, fires: o.Fires, hangs: o.DB.Attempts,
		lists: o.DB.Parents,
	})
	return &Scheduler{Options: o, writes: w, holder: holder, lease: o.DB.Leader.OpenLease(db.LeaseLeader, holder)}
}

// Run bids for the lead, leads while the lease lasts, and returns when ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	var g errgroup.Group
	if s.Beacon {
		g.Go(func() error { return s.beacon(ctx) })
	}
	g.Go(func() error { return s.bid(ctx) })
	return g.Wait()
}

// bid tries to acquire the lease, leads for a term after each success, and keeps a standby's
// mirror warm in between. It releases the lease at its end, so that a successor need not wait.
func (s *Scheduler) bid(ctx context.Context) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.lease.Close(ctx) // else it expires
	}()
	for {
		// The lease counts from before the call: the answer may come late.
		asked := time.Now()
		term, ok, err := s.acquire(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			s.Logger.Warn("leader election failed, will retry", "err", err)
		case ok:
			s.Logger.Info("acquired leadership", "epoch", term.Epoch)
			err := s.lead(ctx, term, asked)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.Logger.Warn("lost leadership", "epoch", term.Epoch, "err", err)
		default:
			s.keepWarm(ctx)
		}
		if !sleep(ctx, bidEvery) {
			return ctx.Err()
		}
	}
}

// keepWarm reads the queue as a leader does, so that a standby that takes the
// lead only has to catch up.
func (s *Scheduler) keepWarm(ctx context.Context) {
	m := s.warm
	s.warm = nil
	var err error
	switch {
	case m == nil:
		var n int64
		if n, err = s.DB.Leader.Incarnation(ctx); err != nil {
			break
		}
		s.lives(n)
		m = &mirror{db: s.DB, log: s.Logger, policy: s.Policy, runs: runtimes.New(s.DB, s.Policy, runsEvery),
			metrics: NewMetrics(), marks: &marks{}}
		err = m.load(ctx)
	case time.Since(m.loaded) > reloadEvery: // and forgets requests that no job has now
		err = m.reload(ctx)
	default:
		_, err = m.read(ctx, db.Hinted{})
	}
	if err == nil {
		s.warm = m
	} else if ctx.Err() == nil {
		s.Logger.Warn("standby cannot read changes", "err", err)
	}
}

// takeWarm passes the standby's mirror to a leader, or an empty mirror if none is ready.
func (s *Scheduler) takeWarm(marks *marks) *mirror {
	m := s.warm
	if m == nil {
		m = &mirror{db: s.DB, log: s.Logger, policy: s.Policy, runs: runtimes.New(s.DB, s.Policy, runsEvery)}
	}
	s.warm = nil
	m.metrics, m.marks = s.Metrics, marks
	return m
}

// acquire asks for the lease. ok is false while another process holds the lease.
func (s *Scheduler) acquire(ctx context.Context) (db.Term, bool, error) {
	return s.lease.Acquire(ctx, leaseTTL)
}

// lead runs all work of a leader until the term ends or a part fails. A failure is
// cheap: the first process that bids takes the lead, and reads all rows again.
func (s *Scheduler) lead(ctx context.Context, term db.Term, since time.Time) error {
	s.Metrics.leader.Set(1)
	defer s.Metrics.endLead()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.keep(ctx, term, since) }) // while the object store is waited for
	g.Go(func() error {
		tenure, err := s.recognise(ctx, term)
		if err != nil {
			return err
		}
		if tenure != nil {
			g.Go(func() error { return tenure.Run(ctx) })
			g.Go(func() error { return tenure.Watch(ctx) })
		}
		return s.work(ctx, g, term, since)
	})
	return g.Wait()
}

// recognise compares the database with two facts from outside the database, before this leader
// grants anything: the server's identity, and the watermark in the object store. A restored
// database leaps, and the term is over. The tenure is nil if no watermarks are kept.
func (s *Scheduler) recognise(ctx context.Context, term db.Term) (*watermark.Tenure, error) {
	n, leapt, err := s.DB.Leader.Incarnate(ctx)
	if err != nil {
		return nil, fmt.Errorf("look whether the database is the same: %w", err)
	}
	s.lives(n)
	if leapt {
		s.Logger.Error("database restored or failed over, ids and terms leap", "incarnation", n)
		return nil, errors.New("terms have leapt")
	}
	if s.Watermarks == nil {
		return nil, nil
	}
	tenure := s.Watermarks.Open(term)
	return tenure, tenure.Begin(ctx)
}

// lives records the database's incarnation. After a change the rows read ahead may be gone, and
// connections may hold ids that were already given: both are dropped.
func (s *Scheduler) lives(incarnation int64) {
	if s.life != 0 && s.life != incarnation {
		s.warm = nil
		s.DB.Pool().Reset()
	}
	s.life = incarnation
}

// work starts all loops of a leader in g.
func (s *Scheduler) work(ctx context.Context, g *errgroup.Group, term db.Term, since time.Time) error {
	marks := &marks{}
	r := &reconciler{Scheduler: s, term: term, marks: marks, since: since, stops: passLimit}
	if err := r.mark(ctx); err != nil { // before anything is placed
		return fmt.Errorf("check the counters: %w", err)
	}
	p := newPlacer(s, term, marks)
	g.Go(func() error { return p.run(ctx) })
	if s.Scaler != nil {
		g.Go(func() error { return s.Scaler.Run(overload.As(ctx, overload.Sweep), term, p.copy) })
	}
	counts := &counter{Scheduler: s, term: term}
	g.Go(func() error { return counts.run(ctx) })
	g.Go(func() error { return (&reaper{Scheduler: s, term: term, counts: counts, now: time.Now}).run(ctx) })
	g.Go(func() error { return r.run(overload.As(ctx, overload.Sweep)) })
	g.Go(func() error { return (&ends{Scheduler: s}).run(ctx) })
	if s.Workflows != nil {
		g.Go(func() error { return (&rewaiter{Scheduler: s}).run(overload.As(ctx, overload.Sweep)) })
	}
	g.Go(func() error { return s.keepHouse(overload.As(ctx, overload.Sweep), term) })
	g.Go(func() error { return s.keepAccounts(overload.As(ctx, overload.Sweep), term) })
	if s.Clocks != nil {
		g.Go(func() error { return (&clocks{Scheduler: s, term: term}).run(ctx) })
	}
	if s.Objects != nil {
		g.Go(func() error { return (&objectGC{Scheduler: s, term: term}).run(overload.As(ctx, overload.Sweep)) })
	}
	return nil
}

// keep renews the lease. It retries a failed renewal while the term may still last, counted from
// the sending of the last successful one.
func (s *Scheduler) keep(ctx context.Context, term db.Term, since time.Time) error {
	for sleep(ctx, renewEvery) {
		asked := time.Now()
		now, ok, err := s.acquire(ctx)
		switch {
		case err != nil && time.Since(since) < leaseTTL:
			s.Logger.Warn("cannot renew the lease", "err", err)
		case err != nil:
			return fmt.Errorf("renew the lease: %w", err)
		case !ok || now.Epoch != term.Epoch:
			return errors.New("another process leads")
		default:
			since = asked
		}
	}
	return ctx.Err()
}

// beacon records every few seconds that an API replica reaches the database.
func (s *Scheduler) beacon(ctx context.Context) error {
	for {
		if err := s.DB.Leader.RenewBeacon(ctx, s.holder, s.Silence.Beacon(), s.Grace); err != nil && ctx.Err() == nil {
			s.Logger.Warn("cannot renew the beacon", "err", err)
		}
		if !sleep(ctx, min(beaconEvery, s.Silence.Beacon()/4)) {
			return ctx.Err()
		}
	}
}

// keepHouse archives old jobs and prunes the history of machines and schedules
// each hour, and makes partitions each day.
func (s *Scheduler) keepHouse(ctx context.Context, term db.Term) error {
	const hours = 24
	for hour := 0; ; hour++ {
		if hour%hours == 0 {
			if err := s.DB.Cluster.EnsurePartitions(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Error("cannot create partitions", "err", err)
			}
		}
		if err := inBatches(func(limit int) (int, error) {
			return s.Archiver.ArchiveTerminal(ctx, term, s.Retention,
				limit)
		}); err != nil && ctx.Err() == nil {
			s.Logger.Error("cannot archive jobs", "err", err)
		}
		s.pruneMachines(ctx, term)
		if err := inBatches(func(limit int) (int, error) {
			return s.DB.Tokens.Prune(ctx, term, s.Retention,
				limit)
		}); err != nil && ctx.Err() == nil {
			s.Logger.Error("cannot prune tokens", "err", err)
		}
		if err := inBatches(func(limit int) (int, error) {
			return s.DB.Schedules.PruneFires(ctx, term, s.Retention,
				limit)
		}); err != nil && ctx.Err() == nil {
			s.Logger.Error("cannot prune schedule fires", "err", err)
		}
		if err := inBatches(func(limit int) (int, error) {
			return s.DB.Schedules.DeleteEnded(ctx, term, s.Retention,
				limit)
		}); err != nil && ctx.Err() == nil {
			s.Logger.Error("cannot delete ended schedules", "err", err)
		}
		if !sleep(ctx, time.Hour) {
			return ctx.Err()
		}
	}
}

// pruneMachines deletes the history of machines, maintenance windows and launches beyond their retention.
func (s *Scheduler) pruneMachines(ctx context.Context, term db.Term) {
	if err := inBatches(func(limit int) (int, error) {
		return s.DB.Machines.PruneHistory(ctx, term, s.MachineRetention, limit)
	}); err != nil && ctx.Err() == nil {
		s.Logger.Error("cannot prune machine history", "err", err)
	}
	if err := inBatches(func(limit int) (int, error) {
		return s.DB.Maintenance.Prune(ctx, term, s.MachineRetention, limit)
	}); err != nil && ctx.Err() == nil {
		s.Logger.Error("cannot prune maintenance windows", "err", err)
	}
	if err := inBatches(func(limit int) (int, error) {
		return s.DB.Launches.Prune(ctx, term, s.MachineRetention, limit)
	}); err != nil && ctx.Err() == nil {
		s.Logger.Error("cannot prune launches", "err", err)
	}
}

// inBatches repeats a bounded step until the step finds less than a batch.
func inBatches(do func(limit int) (int, error)) error {
	const batch = 1000
	for {
		if n, err := do(batch); err != nil || n < batch {
			return err
		}
	}
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
