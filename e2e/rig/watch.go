package rig

import (
	"context"
	"fmt"
	"sync"
	"time"

	"berth"
)

// LongestRenewal is the age of a machine's lease from which a renewal counts as
// missed: agents renew at least every berth.SyncWait, and a lease lives for
// berth.MachineLeaseTTL.
const LongestRenewal = berth.MachineLeaseTTL / 2

// Seen holds the observations of a watch.
type Seen struct {
	OldestLease  time.Duration // largest age of a machine's last renewal
	Silent       int           // most machines at once that were not ready, or whose lease had expired
	ShownRunning time.Duration // longest time that a job was shown as running after its process had ended
	Looks        int
	Errors       []error // of looks that failed; the first few
}

// Watch reads the rows of a stack until Stop is called.
type Watch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	seen Seen
}

// Short names the jobs whose end a watch looks at: their name, and how long
// their process runs.
type Short struct {
	Name string
	Runs time.Duration
}

// StartWatch starts a watch that looks every so often. The zero Short watches
// machines only.
func (s *Stack) StartWatch(every time.Duration, short Short) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			w.look(ctx, s, short)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

// lookLimit bounds one look; a database that takes longer is reported.
const lookLimit = 2 * time.Minute

// look reads the rows once. A failed look is counted and does not end the watch.
func (w *Watch) look(ctx context.Context, s *Stack, short Short) {
	limited, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var age, shown float64
	var silent int
	err := s.DB.QueryRow(limited, `
		SELECT coalesce(max(extract(epoch FROM clock_timestamp() - l.seen_at)), 0)::float8,
		       count(*) FILTER (WHERE m.state <> 'ready' OR l.until < clock_timestamp())
		FROM machines m
		JOIN machine_leases l ON l.machine_id = m.id
		WHERE m.state <> 'retired'`).Scan(&age, &silent)
	if err == nil && short.Name != "" {
		shown, err = s.shownRunning(limited, short)
	}
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Looks++
	w.seen.OldestLease = max(w.seen.OldestLease, seconds(age))
	w.seen.Silent = max(w.seen.Silent, silent)
	w.seen.ShownRunning = max(w.seen.ShownRunning, seconds(shown))
	if err != nil && len(w.seen.Errors) < 5 {
		w.seen.Errors = append(w.seen.Errors, fmt.Errorf("look at the rows: %w", err))
	}
}

// shownRunning returns for how many seconds the job that is shown as running
// and whose process ended first has been over. The end of a process is when the
// machine reported it or, before the report, its start and its length.
func (s *Stack) shownRunning(ctx context.Context, short Short) (age float64, err error) {
	err = s.DB.QueryRow(ctx, `
		SELECT coalesce(max(extract(epoch FROM clock_timestamp() - coalesce((a.exit ->> 'finished_at')::timestamptz,
			a.started_at + make_interval(secs => $2)))), 0)::float8
		FROM jobs j
		JOIN allocations a ON a.job = j.id AND a.attempt = j.attempt
		WHERE j.state = 'running' AND j.name LIKE $1 || '%' AND a.started_at IS NOT NULL`, short.Name,
		short.Runs.Seconds()).Scan(&age)
	return max(age, 0), err
}

// Seen returns the observations so far.
func (w *Watch) Seen() Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// Stop stops the watch and returns its observations.
func (w *Watch) Stop() Seen {
	w.cancel()
	w.done.Wait()
	return w.seen
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
