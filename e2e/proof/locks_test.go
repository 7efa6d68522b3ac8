package proof_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Flags of make proof-locks.
var (
	lockEach = flag.Bool("lock-each", false, "lock each table by itself, instead of all but machine_leases at once")
	lockOnly = flag.String("lock-only", "", "lock only these tables, between commas, with -lock-each; empty: all")
	lockHold = flag.Duration("lock-hold", 12*time.Second, "how long a lock is held")
	lockLane = flag.Int("lock-lanes", 1, "control planes side by side, each with locks of its own")
)

// Longest times from one renewal of a lease to the next while tables are locked, by the wait of the machine's polls.
// A poll is answered half a second after its wait at the latest, and in two seconds if the wait is shorter. Half a
// second goes to the confirmation of the token, and the rest to the pause before a renewal that several calls share,
// and to processes that wait for a core. A machine becomes suspect after berth.MachineLeaseTTL.
const (
	renewSteady = 7 * time.Second // polls of berth.SyncWait
	renewBrisk  = 5 * time.Second // polls of briskWait
	briskWait   = 1100 * time.Millisecond
)

// recoverLimit is how long after a lock a new job may take to start, and each machine to be in service with a renewed
// lease. On a crowded machine the limit is a multiple of the time that a start took before the lock.
const (
	recoverLimit = 5 * time.Second
	recoverOver  = 5
)

const leaseTable = "public.machine_leases"

// TestALockOnAnyTableMissesNoRenewal locks tables of a working cluster with ACCESS EXCLUSIVE, as ALTER TABLE does. No
// lock but one on machine_leases delays the renewals of leases, no lock makes a machine lost or costs an attempt, and
// after each lock a new job starts within recoverLimit.
func TestALockOnAnyTableMissesNoRenewal(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.flags = []string{"--only", "postgres,temporal"}
	s.startDev()
	lanes := make([]*lane, max(1, *lockLane))
	for i := range lanes {
		lanes[i] = s.newLane(i)
	}
	lanes[0].start(t)
	rounds := lanes[0].rounds()
	var mu sync.Mutex
	var done []*lockRound
	t.Run("lanes", func(t *testing.T) {
		for i, l := range lanes {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for r := range rounds {
					l.start(t) // here, since another lane may have taken the last round
					l.run(r)
					mu.Lock()
					done = append(done, r)
					mu.Unlock()
				}
			})
		}
	})
	slices.SortFunc(done, func(a, b *lockRound) int { return strings.Compare(a.name(), b.name()) })
	worst := &lockRound{gaps: map[berth.MachineID]time.Duration{}}
	for _, r := range done {
		t.Log(r)
		if r.locks(leaseTable) {
			continue
		}
		for m, gap := range r.gaps {
			worst.gaps[m] = max(worst.gaps[m], gap)
		}
		worst.ready, worst.started = max(worst.ready, r.ready), max(worst.started, r.started)
	}
	t.Logf("%d locks of %s; the worst but for machine_leases: %s", len(done), *lockHold, worst)
}

// lockRound is one lock and its observed effects.
type lockRound struct {
	tables []string

	gaps    map[berth.MachineID]time.Duration // longest time between two renewals, during the lock
	ready   time.Duration                     // from the lock's end until all machines were ready with a renewed lease
	started time.Duration                     // from the lock's end until a new job ran
	usual   time.Duration                     // in which a job started before the lock
}

// name returns the locked tables for logs.
func (r *lockRound) name() string {
	if len(r.tables) > 1 {
		return fmt.Sprintf("%d tables", len(r.tables))
	}
	return strings.Join(r.tables, "")
}

func (r *lockRound) locks(table string) bool { return slices.Contains(r.tables, table) }

func (r *lockRound) String() string {
	text := ""
	for _, m := range slices.Sorted(maps.Keys(r.gaps)) {
		text += fmt.Sprintf("%s %.1f s, ", m, r.gaps[m].Seconds())
	}
	return fmt.Sprintf("%-40s renewals apart: %safter the lock: ready %.2f s, new job %.2f s (before it %.2f s)",
		r.name(), text, r.ready.Seconds(), r.started.Seconds(), r.usual.Seconds())
}

// rounds lists the tables of the schema from the catalog, so that a table that is added later is locked too.
func (l *lane) rounds() <-chan *lockRound {
	rows := l.query(`
		SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
		FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
		  AND n.nspname NOT LIKE 'pg_toast%'
		ORDER BY 1`)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		l.t.Fatal(err)
	}
	if !slices.Contains(tables, leaseTable) || len(tables) < 20 {
		l.t.Fatalf("the catalog lists the tables %v", tables)
	}
	rounds := make(chan *lockRound, len(tables))
	defer close(rounds)
	if !*lockEach {
		rounds <- &lockRound{tables: slices.DeleteFunc(tables, func(t string) bool { return t == leaseTable })}
		return rounds
	}
	only := strings.Split(*lockOnly, ",")
	for _, table := range tables {
		if *lockOnly == "" || slices.Contains(only, strings.TrimPrefix(table, "public.")) {
			rounds <- &lockRound{tables: []string{table}}
		}
	}
	return rounds
}

// run locks the tables of a round while the lane works, and judges what follows.
func (l *lane) run(r *lockRound) {
	l.t.Helper()
	stood := l.stalls.total()
	var fresh berth.JobID
	fresh, r.usual = l.startTime(time.Now())
	l.dismiss(fresh)
	ends := l.submit(l.job("ends-under-the-lock", "sleep", (*lockHold / 2).String()))
	l.becomes(ends, berth.Running)
	first := l.ledger()
	l.leases.take()

	unlock := l.lock(r.tables)
	var arrives berth.JobID
	var arriving sync.WaitGroup
	arriving.Go(func() { arrives = l.arrives() })
	l.t.Cleanup(arriving.Wait)
	<-time.After(*lockHold)
	r.gaps = l.leases.take()
	freed := unlock()

	fresh, r.started = l.startTime(freed)
	r.ready = l.recovered(freed)
	stood = l.stalls.total() - stood
	limit := max(recoverLimit, recoverOver*r.usual)
	wantWithin(l.t, "with "+r.name()+" locked before, a new job ran", r.started, limit, stood)
	wantWithin(l.t, "with "+r.name()+" locked before, all machines were ready", r.ready, limit, stood)
	bad := "lost"
	if !r.locks(leaseTable) {
		bad = "suspect"
		renewed := "with " + r.name() + " locked, the next renewal of "
		wantWithin(l.t, renewed+"steady came", r.gaps["steady"], renewSteady, stood)
		wantWithin(l.t, renewed+"brisk came", r.gaps["brisk"], renewBrisk, stood)
	}
	l.wantNever(first, bad, r)
	l.dismiss(fresh)
	arriving.Wait()
	for _, id := range []berth.JobID{ends, arrives} {
		l.wantOneAttempt(l.becomes(id, berth.Succeeded), r)
	}
	for _, id := range l.lasting {
		l.wantOneAttempt(l.becomes(id, berth.Running), r)
	}
}

// lock locks the tables in a transaction. It returns once it has the locks, and unlock ends them.
func (l *lane) lock(tables []string) (unlock func() time.Time) {
	l.t.Helper()
	conn, err := pgx.Connect(l.t.Context(), l.at.DatabaseURL)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	until(l.t, "the lock on "+strings.Join(tables, ", "), func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "BEGIN; LOCK TABLE "+strings.Join(tables, ", ")+" IN ACCESS EXCLUSIVE MODE")
		if err == nil {
			return nil
		}
		// A transaction of the control plane may hold one of the tables and wait for another one.
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "40P01" {
			l.t.Fatal(err)
		}
		_, rolled := conn.Exec(ctx, "ROLLBACK")
		return errors.Join(err, rolled)
	})
	return func() time.Time {
		l.t.Helper()
		if _, err := conn.Exec(l.t.Context(), "ROLLBACK"); err != nil {
			l.t.Fatal(err)
		}
		return time.Now()
	}
}

// arrives submits a job while tables are locked, again until the server takes it.
func (l *lane) arrives() (id berth.JobID) {
	key := berth.NewSecret()
	err := await(l.t.Context(), func(ctx context.Context) error {
		job, _, err := l.api.Submit(ctx, l.job("arrives-under-the-lock", "echo", "here"), key)
		id = job.ID
		return err
	})
	if err != nil {
		l.t.Errorf("submit a job while tables are locked: %v", err)
	}
	return id
}

// startTime submits a job and returns the time from then until it runs.
func (l *lane) startTime(then time.Time) (berth.JobID, time.Duration) {
	l.t.Helper()
	id := l.submit(l.endless("new", patience, nil))
	l.becomes(id, berth.Running)
	return id, time.Since(then)
}

// recovered returns the time from freed until all machines are ready and have renewed their leases since.
func (l *lane) recovered(freed time.Time) time.Duration {
	l.t.Helper()
	until(l.t, "all machines are ready", func(ctx context.Context) error {
		var late int
		err := l.beside.QueryRow(ctx, `
			SELECT count(*)
			FROM machines m
			LEFT JOIN machine_leases l ON l.machine_id = m.id
			WHERE m.state <> 'ready' OR l.seen_at IS NULL OR l.seen_at < $1`, freed).Scan(&late)
		if err == nil && late > 0 {
			err = fmt.Errorf("%d are not", late)
		}
		return err
	})
	return time.Since(freed)
}

// ledger returns the number of the latest change of a machine.
func (l *lane) ledger() (seq int64) {
	l.t.Helper()
	err := l.beside.QueryRow(l.t.Context(), `SELECT coalesce(max(seq), 0) FROM machine_events`).Scan(&seq)
	if err != nil {
		l.t.Fatal(err)
	}
	return seq
}

// wantNever checks that no machine was lost, nor in the state bad, since the change with the number first.
func (l *lane) wantNever(first int64, bad string, r *lockRound) {
	l.t.Helper()
	rows := l.query(`
		SELECT machine_id || ': ' || state || ', ' || reason
		FROM machine_events
		WHERE seq > $1 AND gpu IS NULL AND state IN ('lost', $2)`, first, bad)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(list) > 0 {
		l.t.Errorf("with %s locked, machines became %q: %v", r.name(), list, err)
	}
}

// wantOneAttempt checks that a lock has cost the job no attempt.
func (l *lane) wantOneAttempt(job wire.Job, r *lockRound) {
	l.t.Helper()
	if len(job.Attempts) != 1 || job.Losses != 0 || job.Failures != 0 {
		l.t.Errorf("with %s locked, job %s needed %d attempts: %+v", r.name(), job.Name, len(job.Attempts),
			job.Attempts)
	}
}

// startLasting starts the jobs that run through all locks: one that saves checkpoints, and one that prints.
func (l *lane) startLasting() {
	l.t.Helper()
	trains := l.job("trains", "train", "/checkpoint", "100000", "250ms", "20")
	trains.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	prints := l.job("prints", "lines", "100000", "200ms")
	trains.Placement.Constraint, prints.Placement.Constraint = `machine.id == "steady"`, `machine.id == "brisk"`
	l.lasting = []berth.JobID{l.submit(trains), l.submit(prints)}
	for _, id := range l.lasting {
		l.becomes(id, berth.Running)
	}
}
