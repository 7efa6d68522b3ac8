package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"berth"
	"berth/internal/machine/fetch"
	"berth/wire"
)

// stageBoard holds the stage of each member that is being prepared, and sends the changes to
// the server: one call for all members of the machine, at most one in Timing.StageEvery.
//
// Only the last stage of each interval is sent, so a preparation that is over sooner costs no
// call, and a percentage that changes all the time costs one call in each interval. Stages are
// for display: a call that fails is not repeated by itself, the next one carries the present
// state. All methods may be called concurrently.
type stageBoard struct {
	log  *slog.Logger
	wake chan struct{} // holds one token: a member has entered the board

	mu      sync.Mutex
	members map[berth.AllocationID]*stageEntry
}

// stageEntry is one member on the board.
type stageEntry struct {
	stage   wire.Stage
	percent func() (percent int, known bool) // nil: no percentage
	sent    wire.Stage                       // as the server has it; zero: nothing
}

func newStageBoard(log *slog.Logger) *stageBoard {
	return &stageBoard{log: log, wake: make(chan struct{}, 1), members: map[berth.AllocationID]*stageEntry{}}
}

// edit changes the stage of a member, which enters the board with its first stage.
func (b *stageBoard) edit(id berth.AllocationID, change func(*stageEntry)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.members[id]
	if e == nil {
		e = &stageEntry{}
		b.members[id] = e
		notify(b.wake)
	}
	change(e)
}

// leave takes a member off the board: its preparation is over.
func (b *stageBoard) leave(id berth.AllocationID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.members, id)
}

// changes returns the stages that differ from the sent ones. empty reports that no member is
// being prepared.
func (b *stageBoard) changes() (list []wire.MemberStage, empty bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, e := range b.members {
		now := e.present()
		if now.Name != "" && !sameStage(now, e.sent) {
			list = append(list, wire.MemberStage{Alloc: id, Stage: now})
		}
	}
	return list, len(b.members) == 0
}

// present returns the stage with its present percentage.
func (e *stageEntry) present() wire.Stage {
	s := e.stage
	if e.percent != nil {
		if n, known := e.percent(); known {
			n = min(max(n, 0), 100)
			s.Percent = &n
		}
	}
	return s
}

// sameStage reports whether the server has an equal stage already.
func sameStage(a, b wire.Stage) bool {
	return a.Alike(b) && a.Try == b.Try && (a.Percent == nil) == (b.Percent == nil) &&
		(a.Percent == nil || *a.Percent == *b.Percent)
}

// sent notes the stages that the server has taken, or refused for good.
func (b *stageBoard) sent(list []wire.MemberStage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range list {
		if e := b.members[m.Alloc]; e != nil {
			e.sent = m.Stage
		}
	}
}

// run sends changes until ctx ends. A server of a version without stages answers that there is
// no such call; it is asked again after Timing.CacheRefused, since it may be upgraded by then.
func (b *stageBoard) run(ctx context.Context, beat beat, timing Timing, c *control) {
	for seq := int64(1); ; {
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
		for empty := false; !empty; {
			if beat.sleep(ctx, timing.StageEvery) != nil {
				return
			}
			var list []wire.MemberStage
			if list, empty = b.changes(); len(list) == 0 {
				continue
			}
			err := c.reportStages(ctx, seq, list)
			seq++
			switch {
			case err == nil:
				b.sent(list)
			case ctx.Err() != nil:
				return
			case berth.CodeOf(err) == berth.CodeNotFound:
				b.log.Info("server does not support stages, pausing them", "err", err)
				if sleep(ctx, timing.CacheRefused) != nil {
					return
				}
			case refused(err):
				b.log.Warn("stage report refused", "err", err)
				b.sent(list)
			default:
				b.log.Debug("stage report failed, will retry", "err", err)
			}
		}
	}
}

// reportStages sends stages under the terms of the present session.
func (c *control) reportStages(ctx context.Context, seq int64, list []wire.MemberStage) error {
	return c.withTerms(ctx, func(epoch int64) error {
		return c.call(ctx, callTimeout, "stages",
			wire.StageReport{AgentBoot: c.boot, Epoch: epoch, Seq: seq, Stages: list}, nil)
	})
}

// stager is one member's place on the board. A nil stager shows nothing.
type stager struct {
	board *stageBoard
	alloc berth.AllocationID
}

// enter shows the stage of a phase; "" ends the display.
func (s *stager) enter(name wire.StageName) {
	switch {
	case s == nil:
	case name == "":
		s.board.leave(s.alloc)
	default:
		s.board.edit(s.alloc, func(e *stageEntry) { e.stage, e.percent = wire.Stage{Name: name}, nil })
	}
}

// input shows which input is being fetched.
func (s *stager) input(i int) {
	if s != nil {
		s.board.edit(s.alloc, func(e *stageEntry) {
			e.stage, e.percent = wire.Stage{Name: wire.StageFetching, Input: &i}, nil
		})
	}
}

// measure sets the source of the percentage, which is asked once for each call to the server.
func (s *stager) measure(percent func() (int, bool)) {
	if s != nil {
		s.board.edit(s.alloc, func(e *stageEntry) { e.percent = percent })
	}
}

// failed shows the error of a try that will be repeated, and the number of failed tries in a row.
func (s *stager) failed(try int, err error) {
	if s != nil {
		s.board.edit(s.alloc, func(e *stageEntry) { e.stage.Try, e.stage.Problem = try, problemText(err) })
	}
}

// recovered removes the error of the last try, after a try that succeeded.
func (s *stager) recovered() {
	if s != nil {
		s.board.edit(s.alloc, func(e *stageEntry) { e.stage.Try, e.stage.Problem = 0, "" })
	}
}

// problemText returns the text of an error for display.
func problemText(err error) string {
	if u, ok := errors.AsType[fetch.Unresolved](err); ok {
		return u.Brief()
	}
	return err.Error()
}

// tries counts the failed tries of one call and shows them.
type tries struct {
	stage *stager
	count int
}

// note takes the outcome of a try that will be repeated if it failed.
func (t *tries) note(err error) {
	switch {
	case err != nil:
		t.count++
		t.stage.failed(t.count, err)
	case t.count > 0:
		t.stage.recovered()
	}
}

// stageEvery is the default of Timing.StageEvery.
const stageEvery = 2 * time.Second
