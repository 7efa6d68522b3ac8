package queue

import (
	"cmp"
	"container/heap"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// Job is the row of a waiting job.
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
	Data          []spec.DataKey    // content that it needs, each once; see Snapshot.SetCache

	TimeLimit    time.Duration // it runs no longer; 0: none
	Remaining    time.Duration // of work, known or declared; 0: not known
	Done         time.Duration // it has run in earlier attempts
	Expected     time.Duration // total run time of similar jobs that ended; 0: unknown. It only orders
	ExpectedBy   string        // what Expected goes by, as words after a comma. It is only told
	RestartCost  time.Duration // work that a start adds
	PreemptedFor []berth.JobID // whom it gave way to before

	// Unaged is how long since it was submitted the job was held or not ready;
	// Stalled is Tenant.Stalled as it was when the job was submitted. Neither
	// time makes it older.
	Unaged  time.Duration
	Stalled time.Duration
}

// Entry is a job in the queue. It is in a line of its account, or in the heap of jobs
// that are not eligible yet, or in neither: on hold, or with a commit under way. The
// fields that plans read of many jobs come first, in two cache lines; some of them
// repeat fields of Job.
type Entry struct {
	leaf    cluster.Leaf[*Entry]
	Class   *cluster.Class
	Line    *Line
	Rank    float64 // within the band, the least first
	Band    int32
	Overdue bool // those come first in their band
	ready   bool
	Assumed bool

	slot      int32    // in Snapshot.waiting
	limited   position // in the limits of its class
	later     position
	priority  int32
	Blocked   int // the plan in which it had no room
	tally     *Tally
	submitted time.Duration // from the origin of ages
	aging     float64       // from when on it ages, in seconds of its account's clock; see set
	worn      time.Duration // submitted, later by all that was no waiting
	Limit     time.Duration // Job.TimeLimit

	deadline position
	Job
}

// set takes the row of the job. A job ages by the clock of its account, which
// stands still while the account is at its limits.
func (e *Entry) set(j Job, c *cluster.Class, t *Tally) {
	e.Job, e.Class, e.tally = j, c, t
	e.priority, e.Limit = cluster.Short(int64(j.Priority)), j.TimeLimit
	e.submitted = cluster.SinceOrigin(j.SubmittedAt)
	e.aging = (e.submitted + j.Unaged).Seconds() - j.Stalled.Seconds()
	e.worn = e.submitted + j.Unaged + j.Done
}

// rate works out the job's place among the others, which depends on no clock but
// the edge of what is overdue: jobs of one account age alike.
func (e *Entry) rate(p *Policy, edge time.Time) {
	e.Overdue = p.Overdue > 0 && cluster.SinceOrigin(edge)-e.worn >= p.Overdue
	e.Band, e.Rank = p.bandOf(e), p.rankOf(e)
}

// CompareEntries is the order of the queue within an account: by band, overdue jobs
// first, by rank, submission and id.
func CompareEntries(a, b *Entry) int {
	switch {
	case a.Band != b.Band:
		return int(b.Band) - int(a.Band)
	case a.Overdue != b.Overdue:
		if a.Overdue {
			return -1
		}
		return 1
	case a.Rank != b.Rank && !a.Overdue:
		return cmp.Compare(a.Rank, b.Rank)
	case a.submitted != b.submitted:
		return cmp.Compare(a.submitted, b.submitted)
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// position is an entry's place in an alarms heap, counted from 1; 0 is nowhere.
type position int32

// alarms is a heap of entries by some time of theirs.
type alarms struct {
	list  []alarm
	at    func(*Entry) time.Duration
	place func(*Entry) *position
}

// alarm is an entry with its time, so that most looks at the heap read nothing
// else.
type alarm struct {
	at    time.Duration
	entry *Entry
}

// byLimit orders jobs by their time limit.
func byLimit() alarms {
	return alarms{
		at:    func(e *Entry) time.Duration { return e.Limit },
		place: func(e *Entry) *position { return &e.limited },
	}
}

// byTime orders jobs by a time, told from the origin of ages.
func byTime(at func(*Entry) time.Time, place func(*Entry) *position) alarms {
	return alarms{at: func(e *Entry) time.Duration { return cluster.SinceOrigin(at(e)) }, place: place}
}

func (a *alarms) Len() int { return len(a.list) }

func (a *alarms) Less(i, j int) bool {
	x, y := &a.list[i], &a.list[j]
	if x.at != y.at {
		return x.at < y.at
	}
	return x.entry.ID < y.entry.ID
}

func (a *alarms) Swap(i, j int) {
	a.list[i], a.list[j] = a.list[j], a.list[i]
	*a.place(a.list[i].entry), *a.place(a.list[j].entry) = position(i+1), position(j+1)
}

func (a *alarms) Push(x any) { a.append(x.(*Entry)) }

// append adds an entry where it does not belong; heap.Init has to follow.
func (a *alarms) append(e *Entry) {
	a.list = append(a.list, alarm{a.at(e), e})
	*a.place(e) = position(len(a.list))
}

func (a *alarms) Pop() any {
	last := len(a.list) - 1
	e := a.list[last].entry
	a.list[last] = alarm{}
	a.list = a.list[:last]
	*a.place(e) = 0
	return e
}

func (a *alarms) set(e *Entry) { heap.Push(a, e) }

func (a *alarms) clear(e *Entry) {
	if p := *a.place(e); p > 0 {
		heap.Remove(a, int(p-1))
	}
}

// empty takes out all entries.
func (a *alarms) empty() {
	for _, x := range a.list {
		*a.place(x.entry) = 0
	}
	clear(a.list)
	a.list = a.list[:0]
}

// drain takes out the entries whose time has come and calls f with each, in no
// order.
func (a *alarms) drain(now time.Time, f func(*Entry)) {
	left, by := a.list[:0], cluster.SinceOrigin(now)
	for _, x := range a.list {
		if x.at > by {
			left = append(left, x)
			*a.place(x.entry) = position(len(left))
			continue
		}
		*a.place(x.entry) = 0
		f(x.entry)
	}
	clear(a.list[len(left):])
	a.list = left
	heap.Init(a)
}

// due returns the earliest entry if its time has come.
func (a *alarms) due(now time.Time) *Entry {
	if len(a.list) == 0 || a.list[0].at > cluster.SinceOrigin(now) {
		return nil
	}
	return a.list[0].entry
}
