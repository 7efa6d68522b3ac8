package api

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/db"
)

// streamPoll is the time between two reads of a followed job without a hint.
const streamPoll = 4 * time.Second

// watches are the followed jobs of one process. Each job has one goroutine that listens
// for hints and polls the database, however many clients follow the job.
type watches struct {
	db *db.DB

	mu   sync.Mutex
	jobs map[berth.JobID]*watch
}

// watch is one followed job.
type watch struct {
	job       berth.JobID
	followers map[*follower]struct{} // guarded by watches.mu
	stop      context.CancelFunc
	done      chan struct{}
}

// follower is one client that follows a job. C receives when the job, its history or its
// logs may have changed.
type follower struct {
	C  chan struct{}
	of *watches
	at *watch
}

func newWatches(d *db.DB) *watches { return &watches{db: d, jobs: map[berth.JobID]*watch{}} }

// follow starts to listen for changes of a job. The caller must call leave, and must read
// the job once by itself: only later changes are notified.
func (x *watches) follow(ctx context.Context, job berth.JobID) *follower {
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.jobs[job]
	if w == nil {
		w = &watch{job: job, followers: map[*follower]struct{}{}, done: make(chan struct{})}
		ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
		x.jobs[job] = w
		hints := x.db.Hub().Subscribe(db.TopicJob, string(job))
		go x.run(ctx, w, hints) // leave waits for it
	}
	f := &follower{C: make(chan struct{}, 1), of: x, at: w}
	w.followers[f] = struct{}{}
	return f
}

// leave stops listening. The last follower also ends the job's goroutine, and waits for
// its end without the lock, which the goroutine needs to wake followers.
func (f *follower) leave() {
	f.of.mu.Lock()
	delete(f.at.followers, f)
	last := len(f.at.followers) == 0
	if last {
		delete(f.of.jobs, f.at.job)
	}
	f.of.mu.Unlock()
	if last {
		f.at.stop()
		<-f.at.done
	}
}

// run wakes the followers of one job on hints. Hints may be lost, so run also polls the
// job's mark, which changes with the job, its history and its logs.
func (x *watches) run(ctx context.Context, w *watch, hints *db.Subscription) {
	defer close(w.done)
	defer hints.Close()
	poll := time.NewTicker(streamPoll)
	defer poll.Stop()
	var seen db.JobMark // the zero mark differs from every other: the first poll wakes all
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints.C:
			x.wake(w)
		case <-poll.C:
			mark, err := x.db.Jobs.Mark(ctx, w.job)
			if err != nil || mark == seen {
				continue
			}
			seen = mark
			x.wake(w)
		}
	}
}

// wake notifies every follower. A follower with an unread notification needs no second
// one.
func (x *watches) wake(w *watch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for f := range w.followers {
		select {
		case f.C <- struct{}{}:
		default:
		}
	}
}
