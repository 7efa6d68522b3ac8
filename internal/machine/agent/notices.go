package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"berth/internal/machine/notice"
	"berth/wire"
)

// noticeBoard holds the notices of the cloud about this machine. The members are woken first and signal
// their containers, each once for each notice (see stopPlan.heed). The server is informed once the engine has
// the signals of all running containers, or NoticeHold after the look that showed the notice, whichever
// comes first: signals never wait for the server, and a slow engine delays the drain by no more than that. The
// server is informed with each sync until it confirms.
//
//	present notice   confirmed   waits for signals   each sync has the header   the sender sends at once
//	---------------  ----------  ------------------  -------------------------  ------------------------
//	none             -           -                   no                         no
//	yes              no          yes                 no                         at the end of the wait
//	yes              no          no                  yes                        yes; then each NoticeRepeat
//	yes              yes         -                   no                         no
//
// The wait also ends when a container ends that has its signal, since its exit must not reach the server before
// the notice: it would not count as caused by a drain.
//
// A notice that the cloud continues to show is one notice, even if its time changes: the earliest time counts.
// A new session starts unconfirmed, since its server may have lost the notice in a restore. A notice
// that the cloud no longer shows is forgotten here; the server is not informed of that, and an admin
// opens the machine again. All methods may be called concurrently, and on nil, a board without a source.
type noticeBoard struct {
	source  notice.Reader
	path    string // of the state file
	repeat  time.Duration
	hold    time.Duration // Timing.NoticeHold
	log     *slog.Logger
	signal  func() // wakes the members
	deliver func() // wakes the sender

	mu        sync.Mutex
	seen      seenNotices
	confirmed bool      // the server has the present notice, by an answer of this session
	next      time.Time // the sender sends the notice no earlier
	fault     string    // of the last look, as logged

	signaled map[*stopPlan]bool // running containers with checkpoint.signal; false: not yet for the present notice
	held     time.Time          // end of the wait for their signals
}

// seenNotices is the content of the state file. A later process knows by it which containers are older
// than a notice, and has the notice even if the source does not answer.
type seenNotices struct {
	End         *wire.CloudNotice `json:"end,omitempty"`
	EndID       string            `json:"end_id,omitempty"` // of End as it was first shown
	EndSeen     time.Time         `json:"end_seen,omitzero"`
	Advice      time.Time         `json:"advice,omitzero"` // of a rebalance recommendation
	AdviceHeard time.Time         `json:"advice_heard,omitzero"`
}

// staleNotice is the time after the announced end of the machine at which the notice counts as not fulfilled.
const staleNotice = 10 * time.Minute

// stale reports whether a notice was not fulfilled.
func stale(n wire.CloudNotice) bool { return time.Since(n.Deadline) > staleNotice }

// openNotices returns the board with the notices of an earlier process. It is nil without a source.
func openNotices(cfg Config, log *slog.Logger) *noticeBoard {
	if cfg.Notices == nil {
		return nil
	}
	b := &noticeBoard{source: cfg.Notices, path: filepath.Join(cfg.StateDir, "notice.json"),
		repeat: cfg.Timing.NoticeRepeat, hold: cfg.Timing.NoticeHold, log: log,
		signal: func() {}, deliver: func() {}, signaled: map[*stopPlan]bool{}}
	text, err := os.ReadFile(b.path)
	if err == nil {
		err = json.Unmarshal(text, &b.seen)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cannot read the stored notice of the cloud", "err", err)
	}
	if end := b.seen.End; end != nil && stale(*end) {
		b.seen.End, b.seen.EndSeen = nil, time.Time{}
	}
	return b
}

// watch looks for notices until ctx ends.
func (b *noticeBoard) watch(ctx context.Context, every time.Duration) {
	if b == nil {
		return
	}
	for ctx.Err() == nil {
		now, err := b.source.Look(ctx)
		if ctx.Err() != nil {
			return
		}
		b.take(now, err)
		_ = sleep(ctx, every) // the loop sees ctx's end
	}
}

// take compares the answer of a look with the present notices. After a change it stores them and wakes
// the members, then the sender.
func (b *noticeBoard) take(now notice.State, err error) {
	b.mu.Lock()
	b.logFault(err)
	changed := false
	switch {
	case err != nil && now.End == nil:
	case now.End == nil && b.seen.End != nil:
		b.log.Warn("cloud withdrew its notice, the machine stays drained until an admin opens it", "notice", b.seen.End)
		b.seen.End, b.seen.EndSeen, changed = nil, time.Time{}, true
	case now.End == nil:
	case b.seen.End == nil || b.seen.End.Deadline != now.End.Deadline && stale(*b.seen.End):
		b.log.Warn("cloud ends this machine", "notice", now.End)
		b.seen.End, b.seen.EndID, b.seen.EndSeen, changed = now.End, now.End.String(), time.Now(), true
		b.confirmed, b.next = false, time.Time{}
		b.await()
	case now.End.Deadline.Before(b.seen.End.Deadline):
		b.log.Warn("cloud ends this machine earlier than it said", "notice", now.End)
		b.seen.End, changed = now.End, true
		b.confirmed, b.next = false, time.Time{}
	}
	if !now.Rebalance.IsZero() && !now.Rebalance.Equal(b.seen.Advice) {
		b.log.Info("cloud advises to move work away, jobs with checkpoint.interval save", "since", now.Rebalance)
		b.seen.Advice, b.seen.AdviceHeard, changed = now.Rebalance, time.Now(), true
	}
	if changed {
		if err := writeJSON(b.path, b.seen); err != nil {
			b.log.Warn("cannot store the notice of the cloud", "err", err)
		}
	}
	b.mu.Unlock()
	if changed {
		b.signal()
		b.deliver()
	}
}

// logFault logs a failed look once, until its reason changes. The texts of errors of the network vary,
// so all of them count as one reason. b.mu is held.
func (b *noticeBoard) logFault(err error) {
	fault := ""
	switch {
	case errors.Is(err, notice.ErrMalformed):
		fault = err.Error()
	case err != nil:
		fault = "no answer"
	}
	if fault == b.fault {
		return
	}
	b.fault = fault
	if err != nil {
		b.log.Warn("cannot read notices of the cloud, will retry", "err", err)
	} else {
		b.log.Info("notices of the cloud are readable again")
	}
}

// present returns the present notices.
func (b *noticeBoard) present() seenNotices {
	if b == nil {
		return seenNotices{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
}

// header returns the value of wire.HeaderCloudNotice, or "" if no notice exists, if the server already has it, or if
// it waits for signals.
func (b *noticeBoard) header() string {
	if b == nil {
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen.End == nil || b.confirmed || b.waits(time.Now()) {
		return ""
	}
	return b.seen.End.String()
}

// due returns the notice for which a call must be sent now. Otherwise it returns the time of the next call, or
// the zero time if no call is needed.
func (b *noticeBoard) due(now time.Time) (string, time.Time) {
	if b == nil {
		return "", time.Time{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.seen.End == nil || b.confirmed:
		return "", time.Time{}
	case b.waits(now):
		return "", b.held
	case now.Before(b.next):
		return "", b.next
	default:
		return b.seen.End.String(), time.Time{}
	}
}

// confirm takes the confirmation of an answer, "" for none.
func (b *noticeBoard) confirm(value string) {
	if b == nil || value == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen.End != nil && value == b.seen.End.String() && !b.confirmed {
		b.confirmed = true
		b.log.Info("control plane has the cloud's notice", "notice", value)
	}
}

// pause delays the next call for a notice that was sent and answered. A server that does not confirm
// may be of a version that does not know notices.
func (b *noticeBoard) pause(value string) {
	if b == nil || value == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen.End != nil && value == b.seen.End.String() {
		b.next = time.Now().Add(b.repeat)
	}
}

// reportAgain makes the present notice due: a new session may know less than the one before.
func (b *noticeBoard) reportAgain() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.confirmed, b.next = false, time.Time{}
}
