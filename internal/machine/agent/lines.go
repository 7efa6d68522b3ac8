package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/wire"
)

// lineBoard shows the unfinished lines of members that clients follow, such as progress bars: it runs a reader for each
// of these members, and sends the changed lines to the server, in one call for the machine and at most one in
// Timing.LineEvery. The stored log does not depend on it.
//
// The server names the followed members in the answers of sync calls. Without an answer for lineTrust the board stops
// all readers: the followers may be gone. After a call that fails, the next one sends the present lines. A line that
// does not change is sent again every Timing.LineRepeat, since the server forgets lines. All methods may be called
// concurrently.
type lineBoard struct {
	sup    *Supervisor
	reader node.LineReader // nil: the engine has none, and the board does nothing
	log    *slog.Logger
	timing Timing
	wake   chan struct{} // holds one token: the set of followed members has changed
	all    sync.WaitGroup

	mu       sync.Mutex
	followed []berth.AllocationID
	heard    time.Time // when the server last answered
	readers  map[berth.AllocationID]*lineReader
}

// lineReader is the reader of one member, over all its processes. lineBoard.mu guards it.
type lineReader struct {
	state    lineState
	cancel   context.CancelFunc // of the process that runs
	run      int                // number of the process, from 1
	kills    int                // processes that were killed, or failed while they were attached
	until    time.Time          // end of the pause
	line     node.UnfinishedLine
	changed  bool      // the server does not have line
	reported time.Time // when line was last sent
}

// due reports whether the line must be sent. The server may have forgotten a line that has not changed: with the lease
// of followers that left and came back before this agent noticed, or in a crash of its database. An empty line needs no
// repetition.
func (r *lineReader) due(repeat time.Duration) bool {
	return r.changed || r.state == lineReading && r.line.Text != "" && time.Since(r.reported) >= repeat
}

// lineTrust is how long an answer of the server counts: well above the time between two answers.
const lineTrust = 30 * time.Second

// errUnfollowed ends the reader of a member without followers.
var errUnfollowed = errors.New("the member has no followers")

func newLineBoard(sup *Supervisor, log *slog.Logger) *lineBoard {
	reader, _ := unmetered(sup.cfg.Runtime).(node.LineReader)
	return &lineBoard{
		sup: sup, reader: reader, log: log, timing: sup.cfg.Timing, wake: make(chan struct{}, 1),
		readers: map[berth.AllocationID]*lineReader{},
	}
}

// follow replaces the set of followed members.
func (b *lineBoard) follow(set []berth.AllocationID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reader == nil || slices.Equal(set, b.followed) {
		return
	}
	b.followed = set[:min(len(set), wire.MaxFollowedMembers)]
	notify(b.wake)
}

// nudge makes the board look at once: a container has been started.
func (b *lineBoard) nudge() { notify(b.wake) }

// answered records that the server has answered, and thereby confirmed the set.
func (b *lineBoard) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard = time.Now()
}

// run starts and stops readers and sends lines until ctx ends. While no member has followers, run sleeps.
func (b *lineBoard) run(ctx context.Context, beat beat, c *control) {
	defer b.all.Wait()
	defer b.stop()
	for ctx.Err() == nil {
		var tick <-chan time.Time
		if busy := b.settle(ctx); busy {
			tick = time.After(beat.next(b.timing.LineEvery))
		}
		select {
		case <-b.wake:
		case <-tick:
		case <-ctx.Done():
			return
		}
		if lines := b.changes(); len(lines) > 0 {
			b.sent(lines, c.reportLines(ctx, lines))
		}
	}
}

// linePatience bounds a report of lines, which the next one replaces.
const linePatience = 5 * time.Second

// reportLines sends unfinished lines under the terms of the present session.
func (c *control) reportLines(ctx context.Context, lines []wire.UnfinishedLine) error {
	ctx, cancel := context.WithTimeout(ctx, linePatience)
	defer cancel()
	return c.withTerms(ctx, func(epoch int64) error {
		return c.call(ctx, callTimeout, "unfinished",
			wire.UnfinishedReport{AgentBoot: c.boot, Epoch: epoch, Lines: lines}, nil)
	})
}

// settle starts the readers that are needed, and stops the others. busy reports whether there is anything to look at
// again.
func (b *lineBoard) settle(ctx context.Context) (busy bool) {
	running := b.sup.containers()
	b.mu.Lock()
	defer b.mu.Unlock()
	followed := b.followed
	if time.Since(b.heard) > lineTrust {
		followed = nil
	}
	for id, r := range b.readers {
		if _, ok := running[id]; !ok && !r.state.runs() && !r.changed {
			delete(b.readers, id)
		} else if !slices.Contains(followed, id) {
			b.move(id, r, lineUnwanted)
		}
	}
	for _, id := range followed {
		m := running[id]
		if m == nil {
			continue
		}
		r := b.readers[id]
		if r == nil {
			r = &lineReader{}
			b.readers[id] = r
		}
		if !r.state.runs() && time.Now().After(r.until) {
			b.move(id, r, lineStart)
			if r.state.runs() {
				b.start(ctx, id, m, r)
			}
		}
	}
	for _, r := range b.readers {
		busy = busy || r.state.runs() || r.changed
	}
	return busy || len(b.followed) > 0
}

// containers returns the members whose containers run.
func (s *Supervisor) containers() map[berth.AllocationID]*member {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[berth.AllocationID]*member{}
	for id, m := range s.members {
		if _, ok := m.door.enter(); ok {
			found[id] = m
		}
	}
	return found
}

// start starts the process of a reader. b.mu is held.
func (b *lineBoard) start(ctx context.Context, id berth.AllocationID, m *member, r *lineReader) {
	inside, ok := m.door.enter()
	if !ok {
		inside = m.ctx // the container has just ended: so will the reader
	}
	inside, cancel := context.WithCancelCause(inside)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	r.cancel = func() { cancel(errUnfollowed) }
	r.run++
	run := r.run
	b.all.Go(func() {
		defer stop()
		err := b.reader.UnfinishedLines(inside, m.name(), func(l node.UnfinishedLine) { b.take(id, r, run, l) })
		if inside.Err() != nil {
			err = nil // this process has ended the reader
		}
		cancel(nil)
		b.ended(id, r, run, err)
	})
}

// take records a picture. The first one of a process is sent even if it is empty: the server may still have the line
// of an agent process before this one.
func (b *lineBoard) take(id berth.AllocationID, r *lineReader, run int, l node.UnfinishedLine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.run != run || !r.state.runs() {
		return
	}
	first := r.state == lineStarted
	b.move(id, r, lineAttached)
	if first || l.Text != r.line.Text || l.Stderr != r.line.Stderr {
		if l.At.IsZero() {
			l.At = time.Now()
		}
		r.line, r.changed = l, true
	}
}

// ended records the end of a reader's process, and its reason. A failure counts if the reader may have held up the
// container: it was attached, or its timer ran out. An engine that is away for long costs no member its readers.
func (b *lineBoard) ended(id berth.AllocationID, r *lineReader, run int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.run != run || !r.state.runs() {
		return
	}
	if err != nil && !errors.Is(err, node.ErrOutputTooFast) {
		if r.state == lineReading || errors.Is(err, node.ErrReaderKilled) {
			r.kills++
		}
		b.log.Warn("reader of an unfinished line failed", "alloc", id, "failures", r.kills, "allowed", maxLineKills,
			"err", err)
	}
	b.move(id, r, lineEnd(err, r.kills))
}

// move moves a reader by an event. A reader that no longer runs clears its line. b.mu is held.
func (b *lineBoard) move(id berth.AllocationID, r *lineReader, e lineEvent) {
	was := r.state
	r.state = was.after(e)
	if was == r.state {
		return
	}
	b.log.Debug("reader of an unfinished line", "alloc", id, "was", string(was), "event", string(e),
		"now", string(r.state))
	if !was.runs() || r.state.runs() {
		return
	}
	r.cancel()
	if r.state != lineIdle {
		r.until = time.Now().Add(b.timing.LinePause)
	}
	if r.line.Text != "" {
		r.line, r.changed = node.UnfinishedLine{At: time.Now()}, true
	}
}

// changes returns the lines that have changed since the last call, and the lines that are due for a repetition.
func (b *lineBoard) changes() []wire.UnfinishedLine {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []wire.UnfinishedLine
	for id, r := range b.readers {
		if r.due(b.timing.LineRepeat) && len(list) < wire.MaxFollowedMembers {
			r.changed, r.reported = false, time.Now()
			list = append(list, wire.UnfinishedLine{Alloc: id, At: r.line.At, Stderr: r.line.Stderr, Text: r.line.Text})
		}
	}
	return list
}

// sent takes the result of a report. Lines that did not arrive are sent again, unless the server refuses them.
func (b *lineBoard) sent(lines []wire.UnfinishedLine, err error) {
	if err == nil {
		return
	}
	b.log.Debug("unfinished lines were not sent", "err", err)
	if refused(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range lines {
		if r := b.readers[l.Alloc]; r != nil {
			r.changed = true
		}
	}
}

// stop stops all readers.
func (b *lineBoard) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, r := range b.readers {
		b.move(id, r, lineUnwanted)
	}
}
