package explain

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/placement"
)

// Timing of boards.
const (
	// A board is used again for boardRest times the time that it took to make, within
	// these limits, so that boards cost at most a tenth of a core.
	boardRest     = 10
	shortestBoard = 100 * time.Millisecond
	longestBoard  = 5 * time.Second

	// boardAge is the greatest age of a board that callers get while the next one is made, the
	// time that it took to make not counted. An older one is left from a time without callers:
	// they wait for the next one.
	boardAge = 10 * time.Second

	// scrapeAge, and twice the time that it took to make, is the greatest age of a board that Latest
	// returns. It outlives the making of the next one with a scrape in each minute, and ends while the
	// rows cannot be read.
	scrapeAge = 5 * time.Minute

	// boardWait bounds the wait for a board. Callers are answered without reasons after it.
	// The first reading of a large queue on a busy host takes seconds.
	boardWait = 5 * time.Second

	// A caller that misses a job waits for the next board, up to missingWait, if boards
	// are made within quickBoard: in a small cluster a job that was submitted a moment ago
	// has its reason.
	quickBoard  = 20 * time.Millisecond
	missingWait = 150 * time.Millisecond

	boardClasses = 1000 // classes of jobs that are compared with all machines
)

// Board has the reason and the position of every waiting job, from one reading of the rows
// and one plan. All callers of a process share the present board. It is immutable.
type Board struct {
	At   time.Time           // the database's clock at the reading
	Jobs []placement.Waiting // the queue in its order, then jobs outside of it, such as held ones

	byJob    map[berth.JobID]int32 // index in Jobs
	byParent map[berth.JobID]int32 // index of the first child in Jobs
	beganAt  time.Time             // our clock
	changed  int64                 // Explainer.changes then
	took     time.Duration         // to make the board
}

// Of returns a waiting job; ok is false if the reading had no such job.
func (b *Board) Of(id berth.JobID) (w placement.Waiting, ok bool) {
	i, ok := b.byJob[id]
	if ok {
		w = b.Jobs[i]
	}
	return w, ok
}

// FirstOf returns the first waiting child of a parent, in the order of the board; ok is
// false without one.
func (b *Board) FirstOf(parent berth.JobID) (w placement.Waiting, ok bool) {
	i, ok := b.byParent[parent]
	if ok {
		w = b.Jobs[i]
	}
	return w, ok
}

// Index returns the place of a job in Jobs, from 0; ok is false if the reading had no such
// job.
func (b *Board) Index(id berth.JobID) (i int, ok bool) {
	at, ok := b.byJob[id]
	return int(at), ok
}

// newBoard indexes an overview.
func newBoard(list []placement.Waiting, at time.Time) *Board {
	b := &Board{At: at, Jobs: list, byJob: make(map[berth.JobID]int32, len(list)), byParent: map[berth.JobID]int32{}}
	for i, w := range list {
		b.byJob[w.Job] = int32(i)
		if _, seen := b.byParent[w.Parent]; w.Parent != "" && !seen {
			b.byParent[w.Parent] = int32(i)
		}
	}
	return b
}

// boards holds the present board, and the making of the next one, of which there is at most
// one at a time. The zero value has no board.
//
//	state        callers get                        leaves it
//	none         wait, up to boardWait              a board is made
//	fresh        the board                          after rest, or a change made here
//	due          the board; the first starts one    the next board is made
//	old          wait, up to boardWait              the next board is made
//
// A failure to make a board keeps the present one; the next caller tries again.
type boards struct {
	mu      sync.Mutex
	present *Board
	making  chan struct{} // closed when the board under way is made or failed; nil: none under way
}

// Board returns the reasons of all waiting jobs, at most boardAge old, or nil if none could
// be made in time. It costs nothing while a board is fresh, however many callers ask.
// missing reports whether a board lacks a job that the caller needs; nil: it needs none.
func (x *Explainer) Board(ctx context.Context, missing func(*Board) bool) *Board {
	asked := time.Now()
	b, made := x.boards.get(asked, x.changes.Load(), x.makeBoard(ctx))
	if b == nil || b.old(asked) {
		return x.boards.next(ctx, made, asked)
	}
	if missing == nil || b.took > quickBoard || !missing(b) {
		return b
	}
	// The next board, or the one after it if the next began before the question.
	ctx, cancel := context.WithTimeout(ctx, missingWait)
	defer cancel()
	for ctx.Err() == nil && missing(b) && !b.beganAt.After(asked) {
		rest := missingWait
		if made == nil { // none is under way before b has rested
			rest = time.Until(b.beganAt.Add(b.rest()))
		}
		await(ctx, made, rest)
		if b, made = x.boards.get(time.Now(), x.changes.Load(), x.makeBoard(ctx)); b == nil {
			return nil
		}
	}
	return b
}

// Latest returns the present board and starts the next one if it is due. It waits up to wait for a board
// where there is none, or an old one that was made quicker than wait. A board that takes longer is ready
// for a later call, so rare callers always get one. Nil: none could be made for minutes.
func (x *Explainer) Latest(ctx context.Context, wait time.Duration) *Board {
	return x.boards.latest(ctx, wait, x.changes.Load(), x.makeBoard(ctx))
}

// latest is Latest, with the arguments of get.
func (x *boards) latest(ctx context.Context, wait time.Duration, changes int64,
	start func(done func(*Board)) bool) *Board {
	asked := time.Now()
	b, made := x.get(asked, changes, start)
	if made != nil && (b == nil || b.old(asked) && b.took < wait) {
		await(ctx, made, wait)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if b = x.present; b != nil && asked.Sub(b.beganAt) > scrapeAge+2*b.took {
		return nil
	}
	return b
}

// Age returns the age of the reading, by our clock.
func (b *Board) Age() time.Duration { return time.Since(b.beganAt) }

// next waits for the board under way, up to boardWait, and returns it, or nil if none could be
// made.
func (x *boards) next(ctx context.Context, made <-chan struct{}, asked time.Time) *Board {
	await(ctx, made, boardWait)
	return x.usable(asked)
}

// await waits until made is closed, the time has passed, or ctx ends.
func await(ctx context.Context, made <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-made:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// usable returns the present board, or nil if it is too old at that time.
func (x *boards) usable(asked time.Time) *Board {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.present == nil || x.present.old(asked) {
		return nil
	}
	return x.present
}

// get returns the present board and, if it is due, the making of the next one; start begins
// to make one and returns false if the owner has closed. made is nil if the board rests.
func (x *boards) get(now time.Time, changes int64, start func(done func(*Board)) bool) (b *Board, made chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	b = x.present
	if x.making != nil {
		return b, x.making
	}
	if b != nil && b.changed == changes && now.Before(b.beganAt.Add(b.rest())) {
		return b, nil
	}
	made = make(chan struct{})
	if !start(func(next *Board) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if next != nil {
			x.present = next
		}
		x.making = nil
		close(made)
	}) {
		close(made)
		return b, made
	}
	x.making = made
	return b, made
}

// old reports whether the board is too old for callers. A board that took long to make is used
// all the same: else callers of a slow database would wait each time, and in vain.
func (b *Board) old(at time.Time) bool { return at.Sub(b.beganAt) > boardAge+b.took }

// rest is the time after which the board is due.
func (b *Board) rest() time.Duration {
	return min(max(boardRest*b.took, shortestBoard), longestBoard)
}

// makeBoard returns a function that makes a board in the background and passes it to done,
// or nil after a failure. The caller's context lends its values only.
func (x *Explainer) makeBoard(ctx context.Context) func(done func(*Board)) bool {
	return func(done func(*Board)) bool {
		return x.owner.Go(func(context.Context) {
			var b *Board
			defer func() { done(b) }()
			defer func() {
				if p := recover(); p != nil { // in a handler it would be that call's alone
					slog.Error("queue overview panicked", "panic", p, "stack", string(debug.Stack()))
				}
			}()
			var err error
			if b, err = x.newBoard(context.WithoutCancel(ctx)); err != nil && x.owner.Context().Err() == nil {
				slog.Warn("queue overview failed, will retry", "error", err)
			}
		})
	}
}

// newBoard makes a board from a new reading, or from one that another question made since.
func (x *Explainer) newBoard(ctx context.Context) (b *Board, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	defer context.AfterFunc(x.owner.Context(), cancel)()
	began := time.Now()
	enough := func() bool { return x.within(began, 0) }
	err = x.answer(ctx, enough, db.Hinted{}, func() {
		b = newBoard(x.forecast().Overview(boardClasses), x.now)
		b.beganAt, b.changed = x.beganAt, x.changed
	})
	if err != nil {
		return nil, fmt.Errorf("reading the queue: %w", err)
	}
	b.took = time.Since(began)
	return b, nil
}
