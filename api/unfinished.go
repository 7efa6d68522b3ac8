package api

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

// unfinishedLines are the members of one process whose unfinished lines clients follow. Each member has one goroutine,
// which keeps the agent reading and holds the last line, however many clients follow the member.
type unfinishedLines struct {
	db    *db.DB
	store lineStore

	mu      sync.Mutex
	members map[memberOf]*unfinishedMember
}

// lineStore reads the unfinished lines of members, as db.Logs does.
type lineStore interface {
	FollowUnfinished(ctx context.Context, job berth.JobID, rank int) (l wire.LogLine, ok bool, err error)
	Unfinished(ctx context.Context, job berth.JobID, rank int) (l wire.LogLine, ok bool, err error)
}

// linePause is the least time between a read of a member's line and the next one that a hint causes.
const linePause = 500 * time.Millisecond

// memberOf is a member of the latest attempt of a job.
type memberOf struct {
	job  berth.JobID
	rank int
}

// unfinishedMember is one followed member.
type unfinishedMember struct {
	memberOf
	stop context.CancelFunc
	done chan struct{}

	// Guarded by unfinishedLines.mu.
	followers map[*unfinishedFollower]struct{}
	line      wire.LogLine // the last one; its text is empty while the member holds no machine
	known     bool         // line was read
}

// unfinishedFollower is one client. C receives when the line may have changed.
type unfinishedFollower struct {
	C  chan struct{}
	of *unfinishedLines
	at *unfinishedMember
}

func newUnfinishedLines(d *db.DB) *unfinishedLines {
	return &unfinishedLines{db: d, store: d.Logs, members: map[memberOf]*unfinishedMember{}}
}

// follow starts to follow the unfinished line of a member. The caller must call leave.
func (x *unfinishedLines) follow(ctx context.Context, job berth.JobID, rank int) *unfinishedFollower {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := memberOf{job, rank}
	m := x.members[key]
	if m == nil {
		m = &unfinishedMember{memberOf: key, done: make(chan struct{}), followers: map[*unfinishedFollower]struct{}{}}
		ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
		x.members[key] = m
		lines := x.db.Logs.UnfinishedHints(job, rank)
		changes := x.db.Hub().Subscribe(db.TopicJob, string(job))
		go x.run(ctx, m, lines, changes) // leave waits for it
	}
	f := &unfinishedFollower{C: make(chan struct{}, 1), of: x, at: m}
	m.followers[f] = struct{}{}
	f.C <- struct{}{} // the line of the followers before
	return f
}

// leave stops following. After the last follower the lease of the member ends by itself.
func (f *unfinishedFollower) leave() {
	f.of.mu.Lock()
	delete(f.at.followers, f)
	last := len(f.at.followers) == 0
	if last {
		delete(f.of.members, f.at.memberOf)
	}
	f.of.mu.Unlock()
	if last {
		f.at.stop()
		<-f.at.done
	}
}

// line returns the last line of the member. known is false until the first read.
func (f *unfinishedFollower) line() (l wire.LogLine, known bool) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	return f.at.line, f.at.known
}

// run renews the lease of one member, and reads its line after hints in lines, until ctx ends. A member that holds no
// machine yet gets its lease after the next change of its job. Hints of one member cause at most one read in each
// linePause. A failed call is repeated with the next renewal: the line is for display.
func (x *unfinishedLines) run(ctx context.Context, m *unfinishedMember, lines, changes *db.Subscription) {
	defer close(m.done)
	defer lines.Close()
	defer changes.Close()
	renew := time.NewTicker(db.FollowRenew)
	defer renew.Stop()
	l, ok, err := x.store.FollowUnfinished(ctx, m.job, m.rank)
	for {
		if err == nil {
			x.set(m, l, ok)
		}
		pause := time.After(linePause)
		var hints, early chan struct{}
		for waiting := true; waiting; {
			waiting = false
			select {
			case <-ctx.Done():
				return
			case <-pause: // a hint that came meanwhile still lies in its channel
				hints, waiting = lines.C, true
				if !ok {
					early = changes.C
				}
			case <-early:
				l, ok, err = x.store.FollowUnfinished(ctx, m.job, m.rank)
			case <-hints:
				l, ok, err = x.store.Unfinished(ctx, m.job, m.rank)
			case <-renew.C:
				l, ok, err = x.store.FollowUnfinished(ctx, m.job, m.rank)
			}
		}
	}
}

// set replaces the line of a member and wakes its followers after a change. A member without an active allocation has
// an empty line: its agent may be lost, and sends none.
func (x *unfinishedLines) set(m *unfinishedMember, l wire.LogLine, active bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !active {
		l = m.line
		l.Text, l.Member = "", m.rank
	}
	if m.known && sameLine(l, m.line) {
		return
	}
	m.line, m.known = l, true
	for f := range m.followers {
		select {
		case f.C <- struct{}{}:
		default:
		}
	}
}

// sameLine reports whether two unfinished lines look the same to a user.
func sameLine(a, b wire.LogLine) bool {
	return a.Text == b.Text && a.Stream == b.Stream && a.Attempt == b.Attempt && a.Member == b.Member
}

// unfinishedStream sends the unfinished line of a member to one client.
type unfinishedStream struct {
	read *logRead
	from *unfinishedFollower

	begun bool         // a line was sent
	sent  wire.LogLine // the last one
}

// stream returns the source of a stream's unfinished lines: none, unless the client has asked for them. The returned
// function ends it.
func (x *unfinishedLines) stream(ctx context.Context, r *logRead, s *stream) (aside, func()) {
	if !r.unfinished {
		return aside{}, func() {}
	}
	f := x.follow(ctx, r.job, r.ref.Rank)
	u := &unfinishedStream{read: r, from: f}
	return aside{C: f.C, send: func() error { return u.send(s) }}, f.leave
}

// send sends the line if it belongs to the attempt that is being sent and differs from the last one. The first one is
// always sent: the client may show a line of a connection before.
func (u *unfinishedStream) send(s *stream) error {
	l, known := u.from.line()
	if !known {
		return nil
	}
	if l.Attempt != u.read.ref.Attempt || u.read.grep != nil && !u.read.grep.MatchString(l.Text) {
		l = wire.LogLine{At: l.At, Stream: l.Stream, Attempt: u.read.ref.Attempt, Member: l.Member}
	}
	if u.begun && (l.Text == "" && u.sent.Text == "" || sameLine(l, u.sent)) {
		return nil
	}
	u.sent, u.begun = l, true
	return s.send("", streamUnfinished, l)
}
