package main

import (
	"context"
	"errors"
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
// One goroutine owns the fields; each followed log has a goroutine of its own, which
// reports its end on ended.
type logFollower struct {
	tree    *logTree
	printer *logPrinter
	query   client.LogsQuery

	known map[logSource]bool // queued, open or printed
	queue []logSource
	open  int
	most  int // logs that are followed at a time
	ended chan logEnd
	noted bool // a message about the queue was printed
}

// logEnd is the end of one followed log.
type logEnd struct {
	source logSource
	err    error
}

// followLogs follows the logs below a job until the job has ended and all lines are
// printed.
func followLogs(ctx context.Context, t *logTree, p *logPrinter, job wire.Job, q client.LogsQuery) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &logFollower{tree: t, printer: p, query: q, known: map[logSource]bool{}, most: maxFollowed,
		ended: make(chan logEnd)}
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
// log is left.
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
		if over && f.open == 0 {
			return nil
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
	for f.open < f.most && len(f.queue) > 0 {
		s := f.queue[0]
		f.queue = f.queue[1:]
		f.open++
		q := f.query
		q.Member = s.member
		if f.printer.shows() {
			q.Unfinished = func(l wire.LogLine) error { return f.printer.unfinished(s, l) }
			q.Silence = func(silent bool) { f.printer.silence(s, silent) }
		}
		streams.Go(func() {
			defer f.printer.ended(s)
			err := f.tree.client.Logs(ctx, s.job, q, func(l wire.LogLine) error { return f.printer.print(s, l) })
			f.ended <- logEnd{s, err}
		})
	}
	if len(f.queue) > 0 && !f.noted {
		f.noted = true
		f.tree.say("%d logs are followed at a time; %d more begin once others have ended", f.most, len(f.queue))
	}
}

// settle handles the end of one log. A log that the server refused for its limit on streams
// goes back to the queue, and fewer logs are followed from then on.
func (f *logFollower) settle(ctx context.Context, e logEnd) error {
	switch {
	case e.err == nil, ctx.Err() != nil:
		return nil
	// The server refuses a stream before the first line, so no line is printed twice.
	case berth.CodeOf(e.err) == berth.CodeCapacity && f.open > 0:
		f.most = f.open
		f.queue = slices.Insert(f.queue, 0, e.source)
		return nil
	// An element that was archived meanwhile, or without the attempt of --attempt.
	case berth.CodeOf(e.err) == berth.CodeNotFound && len(f.known) > 1:
		return nil
	}
	if _, refused := errors.AsType[*berth.Error](e.err); refused && len(f.known) > 1 {
		f.tree.say("berth: log of %s: %v", e.source.label, e.err)
		return nil
	}
	return e.err
}
