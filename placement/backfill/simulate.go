package backfill

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// simulation estimates starts by a replay of the queue after the plan: each running job ends at its limit, and then the
// accounts compete for the free capacity as in plans, by the capacity that they hold at that time. No job is
// preempted and no job is submitted meanwhile.
//
// A moment is a time at which capacity returns or a reserved start is due. At each moment
//
//   - the reserved starts are taken back and decided again, as in plans, since the order of the accounts changes;
//   - the walk visits the jobs in queue order, starts the ones with room, and reserves starts for the first jobs
//     without, as many as in plans, which later jobs may not delay.
//
// Once the work exceeds its pace, most moments keep the reserved starts and start the jobs that are due, and some are
// passed over. See paced and grown.
type simulation struct {
	grounds
	moment   int // number of the present moment, from 1
	race     *queue.Race
	active   []*reach // of the waiting jobs, in queue order
	entrants []*entrant
	field    field     // entrants with a candidate, by order
	endings  endings   // to come
	heads    []*head   // reserved starts, in order of decision
	reserved int32     // number of the latest reservation
	second   time.Time // the moment after the first one; zero: nothing is to come
	renewed  time.Time // when the reserved starts were last decided again
	decided  time.Time // the latest moment that was decided
	anew     bool      // the reserved starts are decided again at the present moment
	total    int       // number of jobs
	before   int       // visits before the first moment
	touched  []int32   // sites that have gained capacity at the present moment
	found    map[berth.JobID]time.Time
}

// Simulated is the result of a simulation.
type Simulated struct {
	Starts   map[berth.JobID]time.Time
	Visits   int                       // work: reads of machines and waiting jobs, in proportion to its time
	Complete bool                      // it reached the last end of a job: jobs without a start never have room
	Until    time.Time                 // jobs that the bound on the work leaves out start no earlier; zero: none
	Barred   map[berth.JobID]queue.Bar // quotas that still bar jobs after the last end of a job
}

// Bounds of a simulation.
const (
	// fullVisits is the work up to which each moment is decided as plans would. A longer queue gets as much again in
	// proportion to the jobs that have started, see paced; beyond that, moments are decided by growth.
	fullVisits = 300_000
	// maxVisits bounds the work. Jobs that have not started by then keep the estimate of the Flow.
	maxVisits = 8_000_000
	// growth is the part of the distance from now by which the time grows between two decisions beyond the paced work.
	growth = 1.0 / 32
	// maxExact bounds the classes, the first of the queue, whose earliest start is searched device by device.
	maxExact = 512
	// maxSearch bounds the work of these searches and of the lists of sites, so that most of the work is left for the
	// moments.
	maxSearch = maxVisits / 4
	// classesPerVisit is the number of classes that take as long as a site in a loop over all classes.
	classesPerVisit = 8
	// maxPassed bounds the jobs of one account and class that the walk passes over in search for a shorter one.
	maxPassed = 64
)

// paced reports whether the work so far is in proportion to the jobs that have started.
func (s *simulation) paced() bool {
	return float64(s.visits-s.before) <= fullVisits*(1+float64(len(s.found))/float64(s.total))
}

// grown reports whether the distance from now has grown by its part since a time.
func (s *simulation) grown(since time.Time) bool {
	return float64(s.now.Sub(since)) >= growth*float64(s.now.Sub(s.Now))
}

// waiter is a waiting job in a simulation.
type waiter struct {
	*queue.Entry
	run time.Duration // forever: unknown
}

// course is the waiting jobs of one class of one account, in their order, without those with a reserved start.
type course struct {
	*reach
	jobs   []waiter // the end of all
	all    []waiter // buffer for the jobs, with room in front for jobs that return
	next   int      // index of the candidate
	moment int      // at which next is valid
	barred int      // the latest moment at which a quota barred the jobs
}

// entrant is an account with waiting jobs.
type entrant struct {
	runner  *queue.Runner
	courses []*course
	best    *course // with the entrant's next job
	quit    int     // the latest moment from which younger jobs wait for an overdue one
}

// head is a job with a reserved start.
type head struct {
	waiter
	*entrant
	*course
	number int32
	at     time.Time
	places []spot
}

// ending is a time at which a job returns its part of an account, or a site gains capacity.
type ending struct {
	at          time.Time
	site        int32
	runner      *queue.Runner // nil: a site gains capacity
	job         berth.JobID   // of the runner
	capacity    berth.Capacity
	preemptible bool
}

// endings is a heap by time.
type endings []ending

func (x endings) Len() int           { return len(x) }
func (x endings) Less(i, j int) bool { return x[i].at.Before(x[j].at) }
func (x endings) Swap(i, j int)      { x[i], x[j] = x[j], x[i] }
func (x *endings) Push(e any)        { *x = append(*x, e.(ending)) }
func (x *endings) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	*x = (*x)[:last]
	return e
}

// field is a heap of entrants by the order of their candidates.
type field struct {
	list []*entrant
	of   *simulation
}

func (f *field) Len() int { return len(f.list) }
func (f *field) Less(i, j int) bool {
	x, y := f.list[i], f.list[j]
	f.of.visits += 2 // a comparison takes as long as two sites
	return f.of.race.Before(x.runner, x.job().Entry, y.runner, y.job().Entry)
}
func (f *field) Swap(i, j int) { f.list[i], f.list[j] = f.list[j], f.list[i] }
func (f *field) Push(any)      { panic("placement: entrants are not pushed") }
func (f *field) Pop() any {
	last := len(f.list) - 1
	x := f.list[last]
	f.list = f.list[:last]
	return x
}

// job returns the entrant's next job.
func (x *entrant) job() waiter { return x.best.jobs[x.best.next] }

// Simulate returns the starts of the jobs of a list: all waiting jobs in queue order, without the ones that the plan
// starts. With only set, it stops after the start of that job. Jobs that never find room, and jobs that the bound on
// the work leaves out, have no start.
//
// If the history predicts the run time of a job without a limit, Simulate returns nothing: one number for each job
// would be too exact.
func (f *Flow) Simulate(list []*queue.Entry, only berth.JobID) Simulated {
	if f.Guesses() {
		return Simulated{}
	}
	s := &simulation{
		grounds: grounds{Flow: f, now: f.Now, byNode: map[*cluster.Node]int32{},
			reaches: map[*cluster.Class]*reach{}, territories: map[territory][]ground{}},
		race:  f.shares.Race(),
		found: make(map[berth.JobID]time.Time, len(list)), total: len(list),
	}
	s.field.of = s
	s.openSites()
	s.collectEndings()
	s.lineUp(list)
	if f.Guesses() {
		return Simulated{}
	}
	s.race.Divide()
	s.before = s.visits
	if i := slices.IndexFunc(s.endings, func(e ending) bool { return e.at.After(s.now) }); i >= 0 {
		s.second = s.endings[i].at
	}
	s.moment, s.anew = 1, true
	s.renew()
	for ok := true; ok && len(s.found) < len(list) && s.visits < maxVisits; ok = s.advance() {
		if s.anew || s.paced() || s.grown(s.decided) {
			s.decide()
		}
		if !s.found[only].IsZero() {
			return Simulated{Starts: s.found, Visits: s.visits}
		}
	}
	for _, h := range s.heads {
		s.note(h.Entry, h.at)
	}
	if len(s.found) < len(list) && s.visits >= maxVisits {
		return Simulated{Starts: s.found, Visits: s.visits, Until: s.now}
	}
	out := Simulated{Starts: s.found, Visits: s.visits, Complete: true, Barred: map[berth.JobID]queue.Bar{}}
	for _, e := range list {
		if !s.found[e.ID].IsZero() {
			continue
		}
		if bar, barred := s.race.Barred(s.race.Of(e.Tenant), e); barred {
			out.Barred[e.ID] = bar
		}
	}
	return out
}

// openSites creates the sites of all machines, by id, with the moments at which they gain capacity.
func (s *simulation) openSites() {
	var list []*cluster.Node
	for _, k := range s.cluster.Kinds {
		list = append(list, k.All(s.Number)...)
	}
	slices.SortFunc(list, func(a, b *cluster.Node) int { return cmp.Compare(a.ID, b.ID) })
	for i, n := range list {
		x := s.siteOf(n)
		s.byNode[n], s.sites = int32(i), append(s.sites, x)
		for _, c := range x.next {
			s.endings = append(s.endings, ending{at: c.at, site: int32(i)})
		}
		if x.window != nil && x.window.Ends.After(s.now) {
			s.endings = append(s.endings, ending{at: x.window.Ends, site: int32(i)})
		}
	}
}

// collectEndings lists the ends of running jobs and of the jobs that the plan starts. The accounts hold all of
// them from the start; jobs with a reserved start leave their accounts, since they compete again.
func (s *simulation) collectEndings() {
	for _, h := range s.cluster.Running {
		if h.Stopped == s.Number || cluster.GivesWay(h.Priority) {
			continue // it is not in the shares of the plan
		}
		if at, ok := h.Ends(s.policy.AssumeRun); ok {
			s.endings = append(s.endings,
				ending{s.From(at), none, s.race.Of(h.Tenant), h.Job, h.Capacity, h.Preemptible})
		}
	}
	// The order decides how the sums of past use are rounded, and so which of two equal accounts comes first.
	for _, id := range slices.Sorted(maps.Keys(s.starts)) {
		x := s.starts[id]
		e, runner := x.Entry, s.race.Of(x.Entry.Tenant)
		if _, reserved := s.reservations.Starts[id]; reserved {
			s.race.Charge(runner, e.Class.All, e.Preemptible, -1)
			s.race.Penalize(runner, e.Class.All, -1)
			continue // it competes again
		}
		if run := s.runOf(e); run < forever {
			s.endings = append(s.endings, ending{x.At.Add(run), none, runner, id, e.Class.All, e.Preemptible})
		}
	}
	// The map of running jobs has no order, and the order of equal times decides in which order sites are read. A
	// sorted list is a heap.
	slices.SortFunc(s.endings, compareEndings)
}

// compareEndings orders endings by time, site, account and job.
func compareEndings(a, b ending) int {
	if c := cmp.Or(a.at.Compare(b.at), cmp.Compare(a.site, b.site)); c != 0 || a.runner == nil {
		return c
	}
	return cmp.Or(cmp.Compare(a.runner.Number, b.runner.Number), cmp.Compare(a.job, b.job))
}

// none is the site of the ending of an account.
const none = -1

// lineUp groups the waiting jobs by account and class.
func (s *simulation) lineUp(list []*queue.Entry) {
	lines, byRunner := map[*queue.Line]*course{}, map[*queue.Runner]*entrant{}
	for _, e := range list {
		c := lines[e.Line]
		if c == nil {
			runner := s.race.Of(e.Tenant)
			x := byRunner[runner]
			if x == nil {
				x = &entrant{runner: runner}
				byRunner[runner], s.entrants = x, append(s.entrants, x)
			}
			if s.visits >= maxVisits {
				return // no moment is decided
			}
			if s.reaches[e.Class] == nil {
				s.active = append(s.active, s.reachOf(e.Class))
			}
			c = &course{reach: s.reaches[e.Class]}
			lines[e.Line], x.courses = c, append(x.courses, c)
		}
		c.jobs = append(c.jobs, waiter{e, s.runOf(e)})
		s.race.Enter(s.race.Of(e.Tenant))
	}
	for _, c := range lines { // of one class and account: the order of the line
		slices.SortStableFunc(c.jobs, func(a, b waiter) int { return queue.CompareEntries(a.Entry, b.Entry) })
		c.all = c.jobs
	}
}

// runOf returns the run time of a waiting job.
func (s *simulation) runOf(e *queue.Entry) time.Duration {
	if runs := s.runs(e); len(runs) > 0 {
		return runs[0]
	}
	return forever
}

// advance moves the simulation to its next moment; ok is false if nothing is to come.
func (s *simulation) advance() (ok bool) {
	if len(s.endings) > 0 {
		s.now, ok = s.endings[0].at, true
	}
	for i, h := range s.heads {
		if i == 0 && !ok || h.at.Before(s.now) {
			s.now, ok = h.at, true
		}
	}
	if !ok {
		return false
	}
	s.moment++
	s.race.Advance(s.now)
	if s.anew = s.paced() || s.grown(s.renewed); s.anew {
		s.renew()
	}
	for len(s.endings) > 0 && !s.endings[0].at.After(s.now) {
		e := heap.Pop(&s.endings).(ending)
		if e.runner == nil {
			s.touched = append(s.touched, e.site)
			s.pass(e.site)
			continue
		}
		s.race.Charge(e.runner, e.capacity, e.preemptible, -1)
	}
	s.heads = slices.DeleteFunc(s.heads, func(h *head) bool {
		if h.at.After(s.now) {
			return false
		}
		s.arrive(h)
		return true
	})
	return true
}

// arrive starts a job at its reserved start.
func (s *simulation) arrive(h *head) {
	for _, o := range h.places {
		p := &s.sites[o.site]
		for i := range p.next {
			if p.next[i].head == h.number {
				p.next[i].head = 0
			}
		}
		p.forward(s.now)
	}
	s.begin(h.entrant, h.waiter, h.places)
}

// begin records a start at the present moment.
func (s *simulation) begin(x *entrant, w waiter, places []spot) {
	s.race.Start(x.runner, w.Entry)
	s.note(w.Entry, s.now)
	if w.run >= forever {
		return
	}
	end := s.now.Add(w.run)
	for i, o := range places {
		if i == 0 || places[i-1].site != o.site {
			heap.Push(&s.endings, ending{at: end, site: o.site})
		}
	}
	heap.Push(&s.endings, ending{end, none, x.runner, w.ID, w.Class.All, w.Preemptible})
}

// note records the start of a job, unless no machine has room for it even if empty.
func (s *simulation) note(e *queue.Entry, at time.Time) {
	if s.placer.Possible(e.Class) {
		s.found[e.ID] = at
	}
}
