package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

const (
	// maxFollowed bounds the logs that one command follows at a time, well below the
	// server's limit for one token (docs/operate/limits.md).
	maxFollowed = 64
	// scanEvery is the time between two looks at the job, and between two searches for logs
	// that have begun. The search of a large array takes a call for each logPage elements;
	// searches are as much rarer then.
	scanEvery = 2 * time.Second
)

// logFollower follows all logs below a job. Each log is printed whole: a log that must wait
// for its turn is stored meanwhile, and is read from its beginning then.
//
// One goroutine owns the fields; each followed log has a goroutine of its own, which owns its
// position and reports its end on ended.
type logFollower struct {
	tree    *logTree
	printer *logPrinter
	query   client.LogsQuery

	known   map[logSource]bool // queued, open or printed
	queue   []logSource
	failed  map[logSource]logFailure // of logs whose first connection failed
	reached map[logSource]*client.LogPosition
	open    int
	most    int       // logs that are followed at a time
	refused time.Time // when the server's limit was last met
	ended   chan logEnd
	missing error    // of the first log that was given up; the other ones are followed to their ends
	noted   bool     // a message about the queue was printed
	said    bool     // a message about a failed connection was printed
	faults  sync.Map // texts of messages about logs that the server could not read
}

// logEnd is the end of one followed log.
type logEnd struct {
	source logSource
	begun  bool // lines were printed, or the stream has had its own patience
	err    error
}

// logFailure is a log that could not be opened, by the real clock.
type logFailure struct {
	since time.Time // of the first failure
	due   time.Time // of the next try
	wait  time.Duration
}

// Pauses before a log that could not be opened is opened again. growEvery is the time after which a follower that met
// the server's limit tries one log more.
const (
	reopenFirst = time.Second
	reopenLast  = 5 * time.Second
	growEvery   = 30 * time.Second
)

// followLogs follows the logs below a job until the job has ended and all lines are
// printed.
func followLogs(ctx context.Context, t *logTree, p *logPrinter, job wire.Job, q client.LogsQuery) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &logFollower{tree: t, printer: p, query: q, known: map[logSource]bool{}, most: maxFollowed,
		failed: map[logSource]logFailure{}, reached: map[logSource]*client.LogPosition{}, ended: make(chan logEnd)}
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	err := f.follow(ctx, job, &streams)
	cancel()
	// The goroutines of open logs report their ends without a buffer.
	for ; f.open > 0; f.open-- {
		<-f.ended
	}
	return err
}

// follow looks for new logs, and opens as many as allowed, until the job has ended and no
// log is left. The error may be that of a log that was given up.
func (f *logFollower) follow(ctx context.Context, job wire.Job, streams *sync.WaitGroup) error {
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	now := f.tree.app.now
	var next time.Time // of the next search
	answered := now()
	for over := false; ; {
		if !over && (job.Status.Terminal() || !now().Before(next)) {
			n, err := f.scan(ctx, job)
			if err == nil {
				// A job that had ended before the search gets no further logs, and a job
				// without children has the same from the beginning.
				over = job.Status.Terminal() || job.Kind == ""
				answered = now()
			} else if err := f.tolerate(ctx, err, answered); err != nil {
				return err
			}
			next = now().Add(scanEvery * time.Duration(1+n/logPage))
		}
		f.start(ctx, streams)
		if over && f.open == 0 && len(f.queue) == 0 {
			return f.missing
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-f.ended:
			f.open--
			if err := f.settle(ctx, e); err != nil {
				return err
			}
			if over || f.open > 0 || len(f.queue) > 0 {
				continue
			}
		case <-tick.C:
			if over {
				continue
			}
		}
		fresh, err := f.tree.client.Job(ctx, job.ID)
		if err == nil {
			job, answered = fresh, now()
		} else if err := f.tolerate(ctx, err, answered); err != nil {
			return err
		}
	}
}

// tolerate returns nil for an error of a call that may pass, until no call has been
// answered for patience.
func (f *logFollower) tolerate(ctx context.Context, err error, answered time.Time) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !passing(f.tree.app.failed(ctx, err)) || f.tree.app.now().Sub(answered) > patience:
		return err
	default:
		return nil
	}
}

// scan queues the logs of jobs that have started since the last search, and returns the
// number of jobs that it has seen.
func (f *logFollower) scan(ctx context.Context, job wire.Job) (int, error) {
	list, err := f.tree.leaves(ctx, job)
	if err != nil {
		return 0, err
	}
	// The only log of a job is followed from before its start; logs of children are opened
	// once they may have lines, so that waiting ones take no stream.
	alone := job.Kind == ""
	var found []logSource
	for _, l := range list {
		if alone || l.status.Terminal() || !l.status.Waiting() {
			found = append(found, f.tree.sources(l)...)
		}
	}
	f.printer.expect(found)
	for _, s := range found {
		if !f.known[s] {
			f.known[s] = true
			f.queue = append(f.queue, s)
		}
	}
	return len(list), nil
}

// start opens logs of the queue, as many as allowed.
func (f *logFollower) start(ctx context.Context, streams *sync.WaitGroup) {
	if len(f.queue) > 0 && f.open >= f.most && f.most < maxFollowed && time.Since(f.refused) >= growEvery {
		f.most, f.refused = f.most+1, time.Now()
	}
	for f.open < f.most {
		now := time.Now()
		i := slices.IndexFunc(f.queue, func(s logSource) bool { return !now.Before(f.failed[s].due) })
		if i < 0 {
			return
		}
		s := f.queue[i]
		f.queue = slices.Delete(f.queue, i, i+1)
		f.open++
		if f.reached[s] == nil {
			f.reached[s] = new(client.LogPosition)
		}
		at := f.reached[s]
		streams.Go(func() { f.ended <- f.print(ctx, s, at) })
	}
	if len(f.queue) > 0 && !f.noted {
		f.noted = true
		f.tree.say("%d logs are followed at a time; %d more begin once others have ended", f.most, len(f.queue))
	}
}

// print prints one log from a position to its end, in a goroutine of its own.
func (f *logFollower) print(ctx context.Context, s logSource, at *client.LogPosition) logEnd {
	defer f.printer.ended(s)
	q := f.query
	q.Member, q.Position = s.member, at
	q.Silence = func(silent bool) { f.printer.silence(s, silent) }
	q.Fault = func(err error) { f.fault(s, err) }
	begun, opened := false, time.Now()
	if f.printer.shows() {
		q.Unfinished = func(l wire.LogLine) error { return f.printer.unfinished(s, l) }
	}
	err := f.tree.client.Logs(ctx, s.job, q, func(l wire.LogLine) error {
		begun = true
		return f.printer.print(s, l)
	})
	return logEnd{s, begun || time.Since(opened) >= patience, err}
}

// fault reports an error with which the server broke a log off, once: the client tries again.
func (f *logFollower) fault(s logSource, err error) {
	text := fmt.Sprintf("berth: %s breaks off: %v; trying again", s.text(), err)
	if _, said := f.faults.LoadOrStore(text, true); !said {
		f.tree.say("%s", text)
	}
}

// settle handles the end of one log. A log that the server refused for its limit on streams, also when it was
// reconnected, goes back to the queue, and fewer logs are followed from then on. So does a log whose first
// connection failed by a fault that may pass, after a pause.
func (f *logFollower) settle(ctx context.Context, e logEnd) error {
	if e.err == nil || ctx.Err() != nil {
		return nil
	}
	if berth.CodeOf(e.err) == berth.CodeCapacity {
		f.most, f.refused = max(f.open, 1), time.Now()
		// The log continues at its position: the server may refuse a stream also after lines were printed.
		if f.open > 0 {
			f.queue = slices.Insert(f.queue, 0, e.source)
			return nil
		}
	}
	if f.reopen(ctx, e) {
		return nil
	}
	// An element that was archived meanwhile, or without the attempt of --attempt.
	if berth.CodeOf(e.err) == berth.CodeNotFound && len(f.known) > 1 {
		return nil
	}
	if _, refused := errors.AsType[*berth.Error](e.err); refused && len(f.known) > 1 {
		f.tree.say("berth: log of %s: %v", e.source.label, e.err)
		if f.missing == nil {
			f.missing = fmt.Errorf("log of %s is incomplete: %w", e.source.label, e.err)
		}
		return nil
	}
	return e.err
}

// reopen puts a log that could not be opened back into the queue, for up to patience since its first failure. The first
// such failure of the command is reported.
func (f *logFollower) reopen(ctx context.Context, e logEnd) bool {
	err := f.tree.app.failed(ctx, e.err)
	now, failure := time.Now(), f.failed[e.source]
	if failure.since.IsZero() {
		failure = logFailure{since: now, wait: reopenFirst}
	}
	if e.begun || !passing(err) || now.Sub(failure.since) > patience {
		return false
	}
	if !f.said {
		f.said = true
		f.tree.say("berth: %s cannot be opened yet: %v; trying again", e.source.text(), err)
	}
	// Jitter: logs that failed together are not opened together.
	failure.due = now.Add(failure.wait + rand.N(failure.wait/4))
	failure.wait = min(2*failure.wait, reopenLast)
	f.failed[e.source] = failure
	f.queue = append(f.queue, e.source)
	return true
}
