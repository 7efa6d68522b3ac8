package agent

import (
	"log/slog"
	"sync"
	"time"

	"berth"
	"berth/wire"
)

// reporter holds the report of one member: its present state, and the time by which the control
// plane must have the report. Each edit makes a new version, so that the answer to an older
// version does not hide a newer one. All methods may be called concurrently.
type reporter struct {
	log  *slog.Logger
	poke func() // wakes the outbox

	recorded chan struct{} // closed once the server has the member's seal on record

	mu      sync.Mutex
	report  wire.RankReport
	version int64
	taken   int64     // the newest version that the server has
	due     time.Time // when the present version must be sent; zero: the server has it
}

// Delays of reports that need not be sent by themselves.
const (
	slow  = 500 * time.Millisecond // of a phase that is often over sooner
	later = time.Hour              // of facts that travel with the next report
)

// newReporter returns a reporter without a due report.
func newReporter(i *identity, log *slog.Logger, poke func()) *reporter {
	return &reporter{
		log: log, poke: poke, recorded: make(chan struct{}),
		report: wire.RankReport{Alloc: i.alloc, Job: i.job, Attempt: i.attempt, Rank: i.number},
	}
}

// edit changes the report and makes it due after the delay, or at its present due time if that is
// sooner.
func (r *reporter) edit(delay time.Duration, change func(*wire.RankReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.report)
	r.version++
	at := time.Now().Add(delay)
	if r.due.IsZero() || at.Before(r.due) {
		r.due = at
	}
	r.poke()
}

// enter reports that the member has reached a phase of the agents' protocol.
func (r *reporter) enter(delay time.Duration, p berth.Phase) {
	r.edit(delay, func(report *wire.RankReport) { report.Phase = p })
}

// warn adds a warning, which becomes an event of the job.
func (r *reporter) warn(text string) {
	r.log.Warn("member warning", "warning", text)
	r.edit(0, func(report *wire.RankReport) {
		if report.Warning != "" {
			text = report.Warning + "; " + text
		}
		report.Warning = text
	})
}

// setRank takes the rank from an assignment that precedes the claim.
func (r *reporter) setRank(number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Rank = number
}

// claimed notes the answer to the claim. It makes nothing due.
func (r *reporter) claimed(number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Rank = number
	if r.report.Phase == "" {
		r.report.Phase = berth.PhaseClaimed
	}
}

// present returns the report, its version and its due time, zero if the server has the report.
// Only the control plane knows whether a waiter exists for the member's end: a control plane of
// the previous version is therefore asked to notify the workflow.
func (r *reporter) present() (wire.RankReport, int64, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.report
	p.Unwaited = p.Phase == berth.PhaseSealed
	return p, r.version, r.due
}

// dueAt returns the time at which the report is due, zero if the server has the report.
func (r *reporter) dueAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.due
}

// delivered notes that the server has taken a report of this version.
func (r *reporter) delivered(p wire.RankReport, version int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = max(r.taken, version)
	if p.Warning == r.report.Warning {
		r.report.Warning = "" // it is an event now; a repetition costs the server a query
	}
	if r.taken == r.version {
		r.due = time.Time{}
	}
	if p.Phase == berth.PhaseSealed {
		r.closeRecorded()
	}
}

// postpone makes the present report due again after a while.
func (r *reporter) postpone(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = time.Now().Add(d)
}

// again makes the present report due now, if the member has reported before.
func (r *reporter) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version > 0 {
		r.due = time.Now()
	}
}

// record notes that the server has the member's seal, as its claim says.
func (r *reporter) record() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeRecorded()
}

// closeRecorded closes recorded once. r.mu is held.
func (r *reporter) closeRecorded() {
	select {
	case <-r.recorded:
	default:
		close(r.recorded)
	}
}

// phase returns the phase in the present report.
func (r *reporter) phase() berth.Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report.Phase
}

// progress returns the progress in the present report; nil: none yet.
func (r *reporter) progress() *berth.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report.Progress
}
