package placement

import (
	"cmp"
	"container/heap"
	"time"

	"berth"
)

// Job is a job that waits for a place.
type Job struct {
	ID            berth.JobID
	Tenant        berth.TenantID
	Class         string // see Snapshot.DefineClass
	Version       int64
	Attempt       int // the last one; 0 before the first
	Priority      int
	Preemptible   bool
	SubmittedAt   time.Time
	EligibleAt    time.Time // not before
	QueueDeadline time.Time // fails then; zero: never
	Held          bool
	Avoid         []berth.MachineID // not there, while another machine fits
	Parent        berth.JobID       // it is an element of; "": of none
	Parallel      int               // elements of the parent that may hold room at once; 0: no limit
	Data          []berth.DataKey   // content that it needs, each once; see Snapshot.SetCache

	TimeLimit    time.Duration // it runs no longer; 0: none
	Remaining    time.Duration // of work, known or declared; 0: not known
	Done         time.Duration // it has run in earlier attempts
	Expected     time.Duration // it runs in all, going by jobs like it that have ended; 0: not known. It orders, and promises nothing
	ExpectedBy   string        // what Expected goes by, as words after a comma. It is only told
	RestartCost  time.Duration // work that a start adds
	PreemptedFor []berth.JobID // whom it gave way to before

	// Unaged is how long since it was submitted the job was held or not ready;
	// Stalled is Tenant.Stalled as it was when the job was submitted. Neither
	// time makes it older.
	Unaged  time.Duration
	Stalled time.Duration
}

// entry is a job in the snapshot. It is in a line of its account, or waits in
// the heap of later ones, or neither: held, or a decision about it is under way.
// What plans look at of many jobs stands first, close together.
type entry struct {
	leaf     leaf[*entry]
	class    *class
	line     *line
	rank     float64 // within the band, the least first
	band     int
	overdue  bool // those come first in their band
	ready    bool
	assumed  bool
	limited  position // in class.limits
	blocked  int      // the plan in which it had no room
	later    position
	deadline position
	Job
}

// rate works out the job's place among the others, which depends on no clock but
// the edge of what is overdue: jobs of one account age alike.
func (e *entry) rate(p *Policy, edge time.Time) {
	e.overdue = p.Overdue > 0 && !e.overdueAt(p).After(edge)
	e.band, e.rank = p.bandOf(&e.Job), p.rankOf(e)
}

// compareEntries is the order of the queue within an account: band, who is
// overdue, rank, submission, id.
func compareEntries(a, b *entry) int {
	switch {
	case a.band != b.band:
		return b.band - a.band
	case a.overdue != b.overdue:
		if a.overdue {
			return -1
		}
		return 1
	case a.rank != b.rank && !a.overdue:
		return cmp.Compare(a.rank, b.rank)
	case !a.SubmittedAt.Equal(b.SubmittedAt):
		return a.SubmittedAt.Compare(b.SubmittedAt)
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// limit is the time limit, told as a time.
func (e *entry) limit() time.Time { return origin.Add(e.TimeLimit) }

func (e *entry) limitAt() *position { return &e.limited }

// position is an entry's place in an alarms heap, counted from 1; 0 is nowhere.
type position int

// alarms is a heap of entries by some time of theirs.
type alarms struct {
	entries []*entry
	at      func(*entry) time.Time
	place   func(*entry) *position
}

func (a *alarms) Len() int { return len(a.entries) }

func (a *alarms) Less(i, j int) bool {
	x, y := a.entries[i], a.entries[j]
	if c := a.at(x).Compare(a.at(y)); c != 0 {
		return c < 0
	}
	return x.ID < y.ID
}

func (a *alarms) Swap(i, j int) {
	a.entries[i], a.entries[j] = a.entries[j], a.entries[i]
	*a.place(a.entries[i]), *a.place(a.entries[j]) = position(i+1), position(j+1)
}

func (a *alarms) Push(x any) { a.append(x.(*entry)) }

// append adds an entry where it does not belong; heap.Init has to follow.
func (a *alarms) append(e *entry) {
	a.entries = append(a.entries, e)
	*a.place(e) = position(len(a.entries))
}

func (a *alarms) Pop() any {
	last := len(a.entries) - 1
	e := a.entries[last]
	a.entries[last] = nil
	a.entries = a.entries[:last]
	*a.place(e) = 0
	return e
}

func (a *alarms) set(e *entry) { heap.Push(a, e) }

func (a *alarms) clear(e *entry) {
	if p := *a.place(e); p > 0 {
		heap.Remove(a, int(p-1))
	}
}

// empty takes out all entries.
func (a *alarms) empty() {
	for _, e := range a.entries {
		*a.place(e) = 0
	}
	a.entries = a.entries[:0]
}

// drain takes out the entries whose time has come and calls f with each, in no
// order.
func (a *alarms) drain(now time.Time, f func(*entry)) {
	left := a.entries[:0]
	for _, e := range a.entries {
		if a.at(e).After(now) {
			left = append(left, e)
			*a.place(e) = position(len(left))
			continue
		}
		*a.place(e) = 0
		f(e)
	}
	clear(a.entries[len(left):])
	a.entries = left
	heap.Init(a)
}

// due returns the earliest entry if its time has come.
func (a *alarms) due(now time.Time) *entry {
	if len(a.entries) == 0 || a.at(a.entries[0]).After(now) {
		return nil
	}
	return a.entries[0]
}
