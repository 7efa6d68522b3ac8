package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"berth/api/client"
	"berth/wire"
)

const (
	// tailLines is the number of last lines of the log that a failure shows.
	tailLines = 20
	// logDrain is how long a command waits for further lines after the end of the job.
	logDrain = 10 * time.Second
	// stopLook is how long a print may take before its reader counts as paused, at the end of a command.
	stopLook = 100 * time.Millisecond
)

// waitLogs prints the log of a job while a command waits for the end of the job.
type waitLogs struct {
	cancel   context.CancelFunc
	printing atomic.Int32  // prints under way; one stands while the reader of standard output pauses
	lines    chan struct{} // receives when a line was printed; holds one
	done     chan struct{}
	err      error // set before done is closed
}

// startLogs begins to print the logs below a job through the line of progress. The caller
// must call finish.
func startLogs(ctx context.Context, a *app, c *client.Client, job wire.Job, p *progress) *waitLogs {
	w := &waitLogs{lines: make(chan struct{}, 1), done: make(chan struct{})}
	ctx, w.cancel = context.WithCancel(ctx)
	printer := newLogPrinter(a)
	printer.around = func(write func() error) error {
		w.printing.Add(1)
		// In this order: finish sees a line, or the print.
		defer w.printing.Add(-1)
		defer func() {
			select {
			case w.lines <- struct{}{}:
			default:
			}
		}()
		return p.around(write)
	}
	printer.live(p)
	tree := newLogTree(a, c)
	tree.say = func(format string, args ...any) {
		_ = p.around(func() error {
			a.say(format, args...)
			return nil
		})
	}
	go func() {
		defer close(w.done)
		w.err = followLogs(ctx, tree, printer, job, client.LogsQuery{Follow: true})
	}()
	return w
}

// finish waits for the last lines of a job that has ended, at most logDrain after each
// line. The time of a print does not count: the reader of standard output, such as a pager, may
// pause. For a job that has not ended, it stops at once, and so it does after Ctrl-C: a print
// that is under way then ends with the process. It returns the error that kept a part of the
// log from being printed.
func (w *waitLogs) finish(ctx context.Context, ended bool) error {
	idle := time.NewTimer(logDrain)
	defer idle.Stop()
	for ended {
		select {
		case <-w.done:
			return w.err
		case <-ctx.Done():
			w.stop()
			return ctx.Err()
		case <-w.lines:
			idle.Reset(logDrain)
		case <-idle.C:
			if w.busy() {
				idle.Reset(logDrain)
				continue
			}
			w.stop()
			return fmt.Errorf("no further lines for %s", logDrain)
		}
	}
	w.stop()
	return nil
}

// stop ends the printing, and waits for its end unless the reader of standard output pauses.
func (w *waitLogs) stop() {
	w.cancel()
	for {
		select {
		case <-w.done:
			return
		case <-time.After(stopLook):
			if w.printing.Load() > 0 {
				return
			}
		}
	}
}

// busy reports whether a print is under way, or ended since the last look.
func (w *waitLogs) busy() bool {
	if w.printing.Load() > 0 {
		return true
	}
	select {
	case <-w.lines:
		return true
	default:
		return false
	}
}

// sayTail prints the last lines of the log that shows most likely why a job failed, on
// standard error: they explain the end, and are no result. It prints nothing if the log
// cannot be read, since the end of the job has been printed and counts more.
func sayTail(ctx context.Context, a *app, c *client.Client, job wire.Job) {
	tree := newLogTree(a, c)
	tree.say = func(string, ...any) {} // a step that was cached explains no failure
	s, ok, err := tree.culprit(ctx, job)
	if err != nil || !ok {
		return
	}
	var lines []wire.LogLine
	q := client.LogsQuery{Member: s.member, Tail: tailLines}
	err = c.Logs(ctx, s.job, q, func(l wire.LogLine) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil {
		return
	}
	if len(lines) == 0 {
		a.say("%s is empty", s.text())
		return
	}
	a.say("%s ends with:", s.text())
	for _, l := range lines {
		text := folded(l.Text)
		if a.errTerm.terminal {
			text = harmless(text)
		}
		a.say("  %s", text)
	}
}

// ranOnce reports whether a job, or a part of it, may have written a log.
func ranOnce(j wire.Job) bool { return j.Attempt > 0 || j.Tally != nil }

// streamed reports whether the output of a command is the job's log: for people, and unless
// they have asked to leave it out. Other formats have one document, or a name.
func (a *app) streamed(noLogs bool) bool {
	return !noLogs && (a.Output == "table" || a.Output == "wide")
}

// alone reports whether a job has one log only.
func alone(j wire.Job) bool { return j.Kind == "" && membersOf(j.Spec) == 1 }
