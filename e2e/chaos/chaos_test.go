package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
)

func TestNoCellBreaksAPromise(t *testing.T) {
	fmt.Printf("chaos: seed %d\n", *seed)
	s := startStack(t)
	random := rand.New(rand.NewPCG(uint64(*seed), 0))
	cells := fixedCells()
	if *budget > 0 {
		cells = append(cells, furtherCells()...)
	}
	random.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
	began := time.Now()
	results := s.runCells(chosen(cells))
	t.Logf("%d cells took %s", len(results), since(began))
	s.check(results)
	if *budget > 0 {
		s.runOn(began.Add(*budget), random)
	}
}

func chosen(cells []cell) []cell {
	var list []cell
	for _, c := range cells {
		if slices.ContainsFunc(strings.Split(*only, ","), func(part string) bool { return strings.Contains(c.String(), part) }) {
			list = append(list, c)
		}
	}
	return list
}

// runCells runs cells lane by lane, the lanes of a phase at the same time, and
// then those once more that were only slow.
func (s *stack) runCells(cells []cell) []result {
	queues := map[string]chan cell{}
	for _, c := range cells {
		if queues[c.lane()] == nil {
			queues[c.lane()] = make(chan cell, len(cells))
		}
		queues[c.lane()] <- c
	}
	r := &run{stack: s, began: time.Now()}
	for _, phase := range phases {
		var all sync.WaitGroup
		for _, c := range phase {
			all.Go(func() {
				for _, lane := range c.lanes {
					r.work(queues[lane], c.place)
				}
			})
		}
		all.Wait()
	}
	r.repeat()
	return r.results
}

// run is the cells under way, and the results of the cells before.
type run struct {
	*stack
	began   time.Time
	mu      sync.Mutex
	results []result
	slow    []turn // to be repeated

	dissected bool
}

// turn is a cell in its place.
type turn struct {
	cell
	place string
}

// Most cells get no line of their own: a long log is cut, and its end matters most.
const (
	progressEvery = 20
	slow          = time.Minute
)

// work runs the cells of a queue one after another, with their jobs in one place, until the queue
// is empty or one has failed: consequences of a breach would hide the breach. Slow cells are left
// for repeat.
func (r *run) work(queue chan cell, place string) {
	for !r.t.Failed() {
		select {
		case c := <-queue:
			began := time.Now()
			err := r.try(c, place)
			if onlySlow(err) {
				r.postpone(turn{c, place}, began, err)
				continue
			}
			r.done(turn{c, place}, began, err)
		default:
			return
		}
	}
}

// try runs one cell. If an engine hung meanwhile the cell counts as slow, with any error: a hang
// costs attempts and logs. The checks after all cells still find any damage.
func (r *run) try(c cell, place string) error {
	began := time.Now()
	undo, err := r.do(c, place)
	if err != nil && !r.t.Failed() && (r.shared.hungSince(began) || r.engine.hungSince(began)) {
		err = slowness{fmt.Errorf("an engine hung: %w", err)}
	}
	if onlySlow(err) {
		r.dissect()
		if undo != nil { // restores the things that other cells need, even if this cell fails
			err = errors.Join(err, undo())
		}
	}
	return err
}

// dissect logs the state of the jobs once, when a cell was slow.
func (r *run) dissect() {
	r.mu.Lock()
	first := !r.dissected
	r.dissected = true
	r.mu.Unlock()
	if first {
		r.t.Log(r.autopsy())
	}
}

// postpone leaves a slow cell to be repeated.
func (r *run) postpone(c turn, began time.Time, err error) {
	r.mu.Lock()
	r.slow = append(r.slow, c)
	r.mu.Unlock()
	r.t.Logf("%s (%s) was slow, and is repeated at the end; after %s: %v", c, c.place, since(began), err)
}

// done records the result of a cell.
func (r *run) done(c turn, began time.Time, err error) {
	if err != nil {
		r.fail(fmt.Errorf("%s (%s), after %s: %w", c, c.place, since(began), err))
	}
	r.mu.Lock()
	r.results = append(r.results, result{c.cell, time.Since(began), err})
	n := len(r.results)
	r.mu.Unlock()
	if n%progressEvery == 0 || time.Since(began) > slow {
		r.t.Logf("%5.1fs %d cells done; %s took %s", time.Since(r.began).Seconds(), n, c, since(began))
	}
}

// repeat runs each slow cell once more, and nothing else at the same time. Slowness
// fails it now. A job of the first try that is stuck is a breach, and is found
// before.
func (r *run) repeat() {
	if len(r.slow) == 0 || r.t.Failed() {
		return
	}
	if err := errors.Join(r.mend(), await("the jobs of slow cells end", r.wantTerminal)); err != nil {
		r.fail(err)
	}
	for _, c := range r.slow {
		if r.t.Failed() {
			return
		}
		began := time.Now()
		r.done(c, began, r.try(c.cell, c.place))
	}
}

// check looks at everything once all cells are done, and prints the matrix.
func (s *stack) check(results []result) {
	s.t.Helper()
	fmt.Print(matrix(results))
	if s.t.Failed() {
		return // jobs left by a breach may never end
	}
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"every job is terminal, and as it was meant to end", s.wantTerminal},
		{"nothing is reserved", s.wantNothingReserved},
		{"no session of a user is left", s.wantNoSession},
		{"no machine of a cloud is left", s.wantNoMachine},
		{"no container is left", func() error { return errors.Join(s.shared.wantEmpty(), s.engine.wantEmpty()) }},
		{"a further pass of the reconciler writes nothing", s.wantStill},
	} {
		if err := await(c.what, c.do); err != nil {
			s.fail(err)
		}
	}
	if err := errors.Join(s.shared.wantOnce(), s.engine.wantOnce(), s.wantHistories()); err != nil {
		s.fail(err)
	}
	s.wantNoBreach()
}

func (s *stack) wantTerminal() error {
	var id, state string
	var n int
	err := s.database.QueryRow(context.Background(), `
		SELECT coalesce(min(id::text), ''), coalesce(min(state), ''), count(*)
		FROM jobs
		WHERE state NOT IN ('succeeded', 'canceled') AND (state <> 'failed' OR reason ->> 'code' <> $1)
		  AND (state <> 'failed' OR NOT labels ? '`+meansToFail+`')
		  AND NOT EXISTS (SELECT 1 FROM jobs c WHERE c.parent = jobs.id AND c.state = 'failed' AND c.reason ->> 'code' = $1)`, berth.ReasonPoison).Scan(&id, &state, &n)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d jobs are not, one is %s, %s", n, id, state)
	}
	return err
}

// meansToFail is the label of jobs that are to fail.
const meansToFail = "fails"

func (s *stack) wantNoSession() error {
	var n int
	err := s.database.QueryRow(context.Background(), `SELECT count(*) FROM job_sessions`).Scan(&n)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d sessions are left", n)
	}
	return err
}

func (s *stack) wantNothingReserved() error {
	page, err := s.api.Machines(context.Background())
	if err != nil {
		return err
	}
	for _, m := range page.Items {
		if m.Used != (berth.Capacity{}) {
			return fmt.Errorf("machine %s still uses %+v", m.ID, m.Used)
		}
	}
	var n int
	err = s.database.QueryRow(context.Background(), `
		SELECT count(*)
		FROM allocations
		WHERE forgotten_at IS NULL OR state <> 'released' AND state <> 'exited'`).Scan(&n)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d allocations are not over", n)
	}
	return err
}

// picture is the state of all rows that a reconciler might change. Leases and last-heard times
// are renewed all the time and left out.
const picture = `
	SELECT md5(concat_ws('|',
		(SELECT string_agg(t::text, ',' ORDER BY t.id) FROM jobs t),
		(SELECT string_agg(t::text, ',' ORDER BY t.job, t.attempt) FROM attempts t),
		(SELECT string_agg(t::text, ',' ORDER BY t.id) FROM allocations t),
		(SELECT string_agg(t::text, ',' ORDER BY t.job, t.step, t.attempt) FROM checkpoints t),
		(SELECT string_agg(t::text, ',' ORDER BY t.id) FROM machines t),
		(SELECT count(*)::text FROM job_events)))`

// wantStill compares the rows over more than two passes of the reconciler, one of
// which at least compares them with Temporal. A pass may be under way when the
// first picture is taken, and one in three compares.
func (s *stack) wantStill() error {
	const passes = 1 + 3 + 1
	began, err := s.passes()
	if err != nil {
		return err
	}
	var before, after string
	if err := s.database.QueryRow(context.Background(), picture).Scan(&before); err != nil {
		return err
	}
	err = await("the reconciler has passed some times more", func() error {
		now, err := s.passes()
		if err == nil && now < began+passes {
			err = fmt.Errorf("%d passes of %d", now-began, passes)
		}
		return err
	})
	if err != nil {
		return fatal{err}
	}
	if err := s.database.QueryRow(context.Background(), picture).Scan(&after); err != nil {
		return err
	}
	if before != after {
		return errors.New("rows still change")
	}
	return nil
}

// passes counts the passes of the reconciler in the leaders' logs.
func (s *stack) passes() (n int, err error) {
	for _, p := range s.plane[failpoint.Leader] {
		b, err := os.ReadFile(p.log())
		if err != nil {
			return 0, err
		}
		n += bytes.Count(b, []byte("reconciler passed"))
	}
	return n, nil
}

// wantNoBreach runs the history checker with the engines' records.
func (s *stack) wantNoBreach() {
	s.t.Helper()
	out, err := exec.Command(filepath.Join(s.bin, "berth-check"), "--database-url", s.postgres.URL(databaseURL), "--settled",
		"--docker-events", s.shared.record.Name(), "--docker-events", s.engine.record.Name()).CombinedOutput()
	fmt.Printf("berth-check: %s", out)
	if err != nil {
		s.fail(fmt.Errorf("berth-check: %w: %s", err, out))
	}
}

// wantHistories checks the events of all jobs: numbered without gaps, one
// terminal state, attempts that only grow.
func (s *stack) wantHistories() error {
	rows, err := s.database.Query(context.Background(), `
		SELECT job::text, format('events %s of %s, %s terminal', count(*), max(seq), count(*) FILTER (WHERE to_state IN ('succeeded', 'failed', 'canceled')))
		FROM job_events
		GROUP BY job
		HAVING count(*) <> max(seq) OR count(*) FILTER (WHERE to_state IN ('succeeded', 'failed', 'canceled')) <> 1
		UNION ALL
		SELECT job::text, format('rank %s of attempt %s has %s allocations', rank, attempt, count(*))
		FROM allocations
		GROUP BY job, attempt, rank
		HAVING count(*) > 1`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var faults []error
	for rows.Next() {
		var job, says string
		if err := rows.Scan(&job, &says); err != nil {
			return err
		}
		faults = append(faults, fmt.Errorf("job %s: %s", job, says))
	}
	return errors.Join(append(faults, rows.Err())...)
}
