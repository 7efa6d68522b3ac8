package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth"
	"berth/wire"
)

// outbox collects the machine's reports to the server: the due reports of members, allocations
// with nothing left on this machine, changes of GPUs, and the machine's holdings. One goroutine
// sends one call at a time, so changes during a call travel together in the next one. All methods
// may be called concurrently.
type outbox struct {
	timing  Timing
	holds   *holdings
	gpus    *gpuHealth
	log     *slog.Logger
	notices *noticeBoard  // nil without a source
	wake    chan struct{} // holds one token: something is, or will be, due

	mu      sync.Mutex
	members map[berth.AllocationID]*reporter
	gone    map[berth.AllocationID]int64 // nothing of them is left here, by number of the note; to be reported
	noted   int64                        // number of the latest note in gone
	sync    holdingsSync
}

// newOutbox returns an outbox without members.
func newOutbox(timing Timing, holds *holdings, gpus *gpuHealth, log *slog.Logger) *outbox {
	return &outbox{
		timing: timing, holds: holds, gpus: gpus, log: log, wake: make(chan struct{}, 1),
		members: map[berth.AllocationID]*reporter{}, gone: map[berth.AllocationID]int64{},
	}
}

// poke wakes the sender to collect again.
func (o *outbox) poke() { notify(o.wake) }

// add starts to send a member's reports.
func (o *outbox) add(id berth.AllocationID, r *reporter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.members[id] = r
}

// drop ends the reports of a member. It changes nothing if the allocation has another
// member by now.
func (o *outbox) drop(id berth.AllocationID, r *reporter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.members[id] == r {
		delete(o.members, id)
	}
}

// addGone reports to the server that nothing of an allocation is left here. A report that is under
// way does not count: the server may have read it before the event that caused this call.
func (o *outbox) addGone(id berth.AllocationID) {
	o.mu.Lock()
	o.noted++
	o.gone[id] = o.noted
	o.mu.Unlock()
	o.poke()
}

// isGone reports whether the report that the allocation is gone has yet to be delivered.
func (o *outbox) isGone(id berth.AllocationID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone[id] > 0
}

// batch is the content of one call.
type batch struct {
	reports  []wire.RankReport
	versions []int64
	gone     []berth.AllocationID
	notes    []int64 // of gone
	gpus     []berth.GPU
	cache    *holding // nil: as in the last report
	notice   string   // the call is also for this notice of the cloud, in its header; "": it is not
}

// request returns the call that reports the batch.
func (b batch) request() wire.SyncRequest {
	r := wire.SyncRequest{Reports: b.reports, Gone: b.gone, GPUs: b.gpus, Brief: true}
	if b.cache != nil {
		r.Cache = &wire.CacheReport{Holds: b.cache.list}
	}
	return r
}

// maxReports bounds one call.
const maxReports = 256

// next waits until a report is due and returns all due reports.
func (o *outbox) next(ctx context.Context) (batch, error) {
	for {
		b, due := o.collect(time.Now())
		if len(b.reports)+len(b.gone)+len(b.gpus) > 0 || b.cache != nil || b.notice != "" {
			return b, nil
		}
		wait := time.Minute
		if !due.IsZero() {
			wait = time.Until(due)
		}
		timer := time.NewTimer(wait)
		select {
		case <-o.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return batch{}, ctx.Err()
		}
		timer.Stop()
	}
}

// together is how much sooner than due a report travels with a report already due: the reports of
// one beat differ by the time that members take to write their files.
const together = 50 * time.Millisecond

// collect takes all due reports, and returns the time at which the next one will be due.
func (o *outbox) collect(now time.Time) (b batch, due time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	due = o.earliest()
	if !due.IsZero() && !due.After(now) {
		due = time.Time{}
		for _, r := range o.members {
			report, version, at := r.present()
			if !at.IsZero() && !at.After(now.Add(together)) && len(b.reports) < maxReports {
				b.reports = append(b.reports, report)
				b.versions = append(b.versions, version)
			}
		}
	}
	for id, note := range o.gone {
		b.gone, b.notes = append(b.gone, id), append(b.notes, note)
	}
	b.gpus = o.gpus.takeChanges()
	h := o.holds.now()
	switch {
	case h.version == o.sync.reported:
	case !now.Before(o.sync.next):
		b.cache = &h
	case due.IsZero() || o.sync.next.Before(due):
		due = o.sync.next
	}
	noticeDue := time.Time{}
	if b.notice, noticeDue = o.notices.due(now); !noticeDue.IsZero() && (due.IsZero() || noticeDue.Before(due)) {
		due = noticeDue
	}
	return b, due
}

// earliest returns the time of the first due report, zero for none. o.mu is held.
func (o *outbox) earliest() (due time.Time) {
	for _, r := range o.members {
		if at := r.dueAt(); !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due
}

// delivered notes that the server has taken a batch. A report that its database
// refuses is sent again after a while, or together with the member's next one: it
// delays no other member.
func (o *outbox) delivered(b batch, refused []wire.Refused) {
	o.mu.Lock()
	defer o.mu.Unlock()
	no := map[berth.AllocationID]bool{}
	for _, f := range refused {
		no[f.Alloc] = true
		o.log.Error("server refused a member report", "alloc", f.Alloc, "why", f.Detail)
	}
	for i, p := range b.reports {
		switch r := o.members[p.Alloc]; {
		case r == nil:
		case no[p.Alloc]:
			r.postpone(o.timing.RefusedPause)
		default:
			r.delivered(p, b.versions[i])
		}
	}
	for i, id := range b.gone {
		if o.gone[id] == b.notes[i] { // a later note needs a report of its own
			delete(o.gone, id)
		}
	}
	if b.cache != nil { // the next list waits a while: there may be one for each job
		o.sync = holdingsSync{reported: b.cache.version, next: time.Now().Add(o.timing.CachePause)}
	}
}

// undelivered keeps the changes of GPUs, which have no version. All else is still
// due.
func (o *outbox) undelivered(b batch) {
	if len(b.gpus) > 0 {
		o.gpus.putBack()
	}
}

// refusedHoldings stops the reports of holdings for Timing.CacheRefused, after a server that does
// not know holdings has refused one. The server may be upgraded by then.
func (o *outbox) refusedHoldings() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sync.next = time.Now().Add(o.timing.CacheRefused)
}

// reportAgain makes every member's report due, and the holdings: a new session may
// know less than the one before.
func (o *outbox) reportAgain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sync = holdingsSync{}
	for _, r := range o.members {
		r.again()
	}
	o.poke()
}
