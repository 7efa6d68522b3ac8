package admission

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/convert"
	"berth/internal/lib/background"
	"berth/internal/lib/overload"
	"berth/placement"
	"berth/spec"
)

// readings shares readings of all machines among the checks of new work. Each reading costs some
// milliseconds of CPU, and 100 ms with 10,000 machines, so a tenant whose jobs all differ must not
// cause one for each job.
//
//	the present reading began   a call gets
//	at since or later           the present reading
//	earlier, or never           the next reading that begins at since or later
//
// At most one reading is under way. A reading begins readingPause after the one before, so that
// refusals, which need a reading that begins after the call, cost a few readings a second in all. A
// cluster without machines has no such pause: its readings cost nothing.
//
// A reading outlives the call that starts it, since other calls wait for it too. It ends at once when its
// owner closes, also during the pause, and calls then get errClosed.
type readings struct {
	read  func(ctx context.Context) (*placement.Snapshot, error)
	owner *background.Group // of the reading under way

	mu      sync.Mutex
	present *reading     // nil: none
	next    *nextReading // under way; nil: none
}

// reading is one reading of all machines.
type reading struct {
	began time.Time
	empty bool // there was no machine

	mu       sync.Mutex
	snapshot *placement.Snapshot // mu guards it, since an explanation changes its indexes
}

// nextReading is the reading under way. Its goroutine writes err before it closes done.
type nextReading struct {
	done chan struct{}
	err  error
}

const (
	readingPause   = 200 * time.Millisecond // between the starts of two readings
	readingTimeout = 5 * time.Second        // of a reading
)

// loadMachines reads all machines in a snapshot without jobs.
func loadMachines(d *db.DB) func(ctx context.Context) (*placement.Snapshot, error) {
	return func(ctx context.Context) (*placement.Snapshot, error) {
		changes, err := d.Queue.LoadMachines(ctx)
		if err != nil {
			return nil, err
		}
		s := placement.NewSnapshot()
		for _, m := range changes.Machines {
			s.UpsertMachine(convert.Machine(m, ""))
		}
		return s, nil
	}
}

// errClosed is the error of calls that need a reading after the owner of readings has closed.
var errClosed = berth.Errorf(berth.CodeUnavailable, "the server closes; try again")

// since returns a reading that began at that time or later.
func (x *readings) since(ctx context.Context, at time.Time) (*reading, error) {
	for {
		present, next := x.look(at)
		switch {
		case present != nil:
			return present, nil
		case next == nil:
			return nil, errClosed
		}
		select {
		case <-next.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if next.err != nil {
			return nil, next.err
		}
	}
}

// look returns the present reading if it began at that time or later, or else the next one. It returns
// neither once the owner has closed.
func (x *readings) look(at time.Time) (present *reading, next *nextReading) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.present != nil && !x.present.began.Before(at) {
		return x.present, nil
	}
	if x.next == nil {
		var rest time.Duration
		if x.present != nil && !x.present.empty {
			rest = time.Until(x.present.began.Add(readingPause))
		}
		next := &nextReading{done: make(chan struct{})}
		if !x.owner.Go(func(ctx context.Context) { x.run(ctx, next, rest) }) {
			return nil, nil
		}
		x.next = next
	}
	return nil, x.next
}

// run makes a reading after a rest and hands it to the callers that wait.
func (x *readings) run(ctx context.Context, next *nextReading, rest time.Duration) {
	made, err := x.after(ctx, rest)
	if err != nil && ctx.Err() != nil {
		err = errClosed
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if next.err = err; err == nil {
		x.present = made
	}
	x.next = nil
	close(next.done)
}

// after makes a reading after a rest, on the connections for users' changes: submits wait for it.
func (x *readings) after(ctx context.Context, rest time.Duration) (*reading, error) {
	if rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(overload.As(ctx, overload.Write), readingTimeout)
	defer cancel()
	began := time.Now()
	snapshot, err := x.read(ctx)
	if err != nil {
		return nil, err
	}
	return &reading{began: began, empty: snapshot.Machines() == 0, snapshot: snapshot}, nil
}

// lacks returns the error for a request that no machine of the reading could hold, or nil.
func (r *reading) lacks(request spec.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return unsatisfiable(placement.Explain(r.snapshot, request))
}
