package queue

import (
	"cmp"
	"container/heap"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// Job is the row of a waiting job. Durations of zero mean unknown or unlimited, as noted
// per field.
type Job struct {
	ID            berth.JobID
	Tenant        berth.TenantID
	Class         string // see Snapshot.DefineClass
	Version       int64
	Attempt       int // number of the latest attempt; 0 before the first
	Priority      int
	Preemptible   bool
	SubmittedAt   time.Time
	EligibleAt    time.Time // earliest start
	QueueDeadline time.Time // the job fails if it still waits then; zero: no deadline
	Held          bool
	Avoid         []berth.MachineID // machines used only if no other machine fits
	Parent        berth.JobID       // the array that the job is an element of; "": none
	Parallel      int               // the parent's elements that may run at once; 0: no limit
	LikeName      string            // jobs of one name tend to run equally long, see Like; "": no name counts
	LikeData      string            // content that the job reads, see Like
	Data          []spec.DataKey    // content that the job reads, each once; see Snapshot.SetCache

	// Alternatives lists the hardware that the job may take, in order; nil: only that of Class. InForce is
	// the index of the one that the job had last, 0 before its first start; Class is its class.
	Alternatives []Alternative
	InForce      int

	TimeLimit    time.Duration // longest run time of an attempt; 0: no limit
	Remaining    time.Duration // remaining run time, known or declared; 0: unknown
	Done         time.Duration // run time of earlier attempts
	Expected     time.Duration // total run time of similar ended jobs; 0: unknown. Order only
	ExpectedBy   string        // source of Expected as a phrase after a comma, for explain only
	RestartCost  time.Duration // extra work that a start causes
	PreemptedFor []berth.JobID // jobs that this job was preempted for before

	// Unaged is the time since submission that the job was held or not ready, with the time
	// of its earlier attempts. A caller that lets jobs age while they run leaves out the
	// attempts. Stalled is the value of Tenant.Stalled when the job was submitted. Neither
	// time ages the job.
	Unaged  time.Duration
	Stalled time.Duration
}

// Alternative is hardware that a job may take.
type Alternative struct {
	Class string    // of its request
	Opens time.Time // the job may take it from then on; zero: at any time
}

// Entry is a job in the queue. An eligible job is in a line of its account, and a job that
// is not eligible yet is in the heap Queue.later. A held job, and a job whose start is
// being committed, is in neither.
//
// The fields that plans read of many jobs come first, within two cache lines; some of them
// repeat fields of Job.
type Entry struct {
	leaf    cluster.Leaf[*Entry] // the entry's node in the tree Line.jobs
	Class   *cluster.Class
	Line    *Line   // nil: the job is not eligible
	Rank    float64 // order within the band; the least comes first
	Band    int32
	Overdue bool // overdue jobs come first in their band
	ready   bool // Advance has found the job eligible
	Assumed bool // a start is being committed; see Queue.Assume

	slot      int32         // index in Queue.Waiting
	limited   position      // in ClassQueue.limits
	later     position      // in Queue.later
	priority  int32         // Job.Priority, bounded to 32 bits
	Blocked   int           // number of the latest plan that had no room for the job
	tally     *Tally        // the work of the job's tenant
	submitted time.Duration // time from the origin of ages to SubmittedAt
	aging     float64       // start of aging, in seconds of the account's clock; see set
	worn      time.Duration // submitted plus all time that does not count as waiting
	Limit     time.Duration // Job.TimeLimit

	deadline position // in Queue.deadlines
	Job
}

// set stores the row of the job with its class, its tally and the derived values. A job
// ages by the clock of its account, which stops while the account is at its limits.
func (e *Entry) set(j Job, c *cluster.Class, t *Tally) {
	e.Job, e.Class, e.tally = j, c, t
	e.priority, e.Limit = cluster.Short(int64(j.Priority)), j.TimeLimit
	e.submitted = cluster.SinceOrigin(j.SubmittedAt)
	e.aging = (e.submitted + j.Unaged).Seconds() - j.Stalled.Seconds()
	e.worn = e.submitted + notWaited(j.Unaged, j.Done)
}

// rate computes the job's band, rank and overdue state. The result depends on the clock
// only through edge, the time of the latest overdue step, because all jobs of one account
// age at the same speed.
func (e *Entry) rate(p *Policy, edge time.Time) {
	e.Overdue = p.Overdue > 0 && cluster.SinceOrigin(edge)-e.worn >= p.Overdue
	e.Band, e.Rank = p.bandOf(e), p.rankOf(e)
}

// CompareEntries orders the jobs of one account: by band (highest first), overdue jobs
// first, then by rank, submission and id. Ranks do not count among overdue jobs: the
// earliest submission comes first.
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

// position is an entry's place in an alarms heap, counted from 1; 0 means that the entry is
// not in the heap.
type position int32

// alarms is a heap of entries by a time or duration, the least first. Each entry stores its
// position, so that the heap can remove it in O(log n).
type alarms struct {
	list  []alarm
	at    func(*Entry) time.Duration // key of an entry
	place func(*Entry) *position     // field in which an entry stores its position
}

// alarm is an entry with its key, so that comparisons rarely have to read the entry itself.
type alarm struct {
	at    time.Duration
	entry *Entry
}

// byLimit returns an empty heap of jobs by time limit.
func byLimit() alarms {
	return alarms{
		at:    func(e *Entry) time.Duration { return e.Limit },
		place: func(e *Entry) *position { return &e.limited },
	}
}

// byTime returns an empty heap of jobs by a time, stored as the duration since the origin
// of ages.
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

// append adds an entry at the end, which breaks the heap order; heap.Init must follow.
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

// set adds an entry, which must not be in the heap.
func (a *alarms) set(e *Entry) { heap.Push(a, e) }

// clear removes an entry. An entry outside of the heap is no error.
func (a *alarms) clear(e *Entry) {
	if p := *a.place(e); p > 0 {
		heap.Remove(a, int(p-1))
	}
}

// empty removes all entries.
func (a *alarms) empty() {
	for _, x := range a.list {
		*a.place(x.entry) = 0
	}
	clear(a.list)
	a.list = a.list[:0]
}

// drain removes all entries that are due by now and calls f with each, in no order. One
// pass and one heap.Init cost less than many single removals.
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

// due returns the entry with the earliest time if that time has come, and nil otherwise.
func (a *alarms) due(now time.Time) *Entry {
	if len(a.list) == 0 || a.list[0].at > cluster.SinceOrigin(now) {
		return nil
	}
	return a.list[0].entry
}
