package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// cluster is the rows of a saturated cluster and what becomes of them from plan
// to plan: jobs end, others come, and what a plan says is made true.
type cluster struct {
	size    size
	s       *placement.Snapshot
	planner placement.Planner
	now     time.Time
	random  *rand.Rand

	classes     []spec.Request
	machines    map[berth.MachineID]placement.Machine
	tenants     []placement.Tenant
	waiting     bag[placement.Job]
	running     bag[placement.Running]
	stopping    []placement.Running // by the time at which they end
	nominations []placement.Nomination
	mix         *placement.Mix                        // nil: learned
	caches      map[berth.MachineID][]spec.CachedData // nil: jobs need no data
	jobs        int                                   // there ever were
	apart       bool                                  // no device is shared by two tenants
	pools       []placement.Pool                      // that take the jobs of some tenants only
}

// bag is rows by job, any of which can be drawn.
type bag[T any] struct {
	list []T
	at   map[berth.JobID]int
	id   func(T) berth.JobID
}

func (b *bag[T]) put(x T) {
	if i, ok := b.at[b.id(x)]; ok {
		b.list[i] = x
		return
	}
	b.at[b.id(x)] = len(b.list)
	b.list = append(b.list, x)
}

func (b *bag[T]) take(id berth.JobID) (x T, ok bool) {
	i, ok := b.at[id]
	if !ok {
		return x, false
	}
	x = b.list[i]
	last := len(b.list) - 1
	b.list[i] = b.list[last]
	b.at[b.id(b.list[i])] = i
	b.list = b.list[:last]
	delete(b.at, id)
	return x, true
}

// Of time in a cluster.
const (
	benchGrace = 30 * time.Second // that victims take to stop
	benchCycle = 10 * time.Second // from plan to plan
)

// size is how much there is of everything.
type size struct {
	machines, waiting, classes, tenants int
	churn                               int // jobs that end, and that come, from plan to plan
	seed                                uint64
}

func benchSize(machines, waiting int) size {
	return size{machines: machines, waiting: waiting, classes: 2_000, tenants: 200, churn: 100, seed: 1}
}

// saturated is a cluster of machines with 8 GPUs and machines with none that run
// jobs of every band, age and tenant, so that nothing fits that waits, and many
// who wait may displace some who run.
func saturated(x size, request func(class int) spec.Request) *cluster {
	c := &cluster{
		size:     x,
		planner:  placement.Planner{MaxStarts: 1000, Pack: placement.LeastFragmentation, Policy: busyPolicy},
		now:      epoch.Add(48 * time.Hour),
		random:   rand.New(rand.NewPCG(x.seed, uint64(x.machines))),
		machines: map[berth.MachineID]placement.Machine{},
		waiting:  bag[placement.Job]{at: map[berth.JobID]int{}, id: func(j placement.Job) berth.JobID { return j.ID }},
		running:  bag[placement.Running]{at: map[berth.JobID]int{}, id: func(r placement.Running) berth.JobID { return r.Job }},
	}
	for i := range x.classes {
		c.classes = append(c.classes, request(i))
	}
	for t := range x.tenants {
		c.tenants = append(c.tenants, placement.Tenant{ID: berth.TenantID(fmt.Sprintf("t%03d", t)), Weight: float64(1 + t%3)})
	}
	c.fill()
	for range x.waiting {
		c.submit(c.now.Add(-time.Duration(c.random.IntN(36*3600)) * time.Second))
	}
	return c
}

// fill lets jobs in, by best fit and without regard to who they are, until none
// fits.
func (c *cluster) fill() {
	s := fleet(c.size.machines, 0, 0)
	s.EachMachine(func(m placement.Machine) { c.machines[m.ID] = m })
	c.s = s
	for i, r := range c.classes {
		s.DefineClass(benchClass(i), r)
	}
	for range 40 * c.size.machines {
		c.submit(c.now)
	}
	for _, start := range (placement.Planner{Policy: placement.Policy{Order: placement.FIFO}}).Plan(s, c.now).Start {
		c.start(start)
	}
	for i, r := range c.running.list {
		ran := time.Duration(c.random.Int64N(int64(24 * time.Hour)))
		if r.TimeLimit > 0 {
			ran = time.Duration(c.random.Int64N(int64(r.TimeLimit)))
		}
		c.running.list[i].StartedAt = c.now.Add(-ran)
	}
	c.waiting.list, c.waiting.at, c.s = nil, map[berth.JobID]int{}, nil
}

func benchClass(i int) string { return fmt.Sprintf("c%d", i) }

// needData has all jobs need data, which machines keep that have run one.
func (c *cluster) needData() {
	c.caches = map[berth.MachineID][]spec.CachedData{}
	for i := range c.waiting.list {
		c.waiting.list[i].Data = []spec.DataKey{spec.DataKey(1 + i%40)}
	}
	for i, r := range c.running.list { // all that runs has needed some
		for _, g := range r.Ranks {
			key := spec.DataKey(1 + i%40)
			if !slices.ContainsFunc(c.caches[g.Machine], func(d spec.CachedData) bool { return d.Key == key }) {
				c.caches[g.Machine] = append(c.caches[g.Machine], spec.CachedData{Key: key, MiB: 4096})
			}
		}
	}
}

// submit brings in another job, whose class, tenant and priority have nothing to
// do with each other.
func (c *cluster) submit(at time.Time) {
	c.jobs++
	j := job(c.jobs, benchClass(c.random.IntN(len(c.classes))), 100*c.random.IntN(10))
	j.Tenant = c.tenants[c.random.IntN(len(c.tenants))].ID
	j.Preemptible = c.random.IntN(3) > 0
	j.SubmittedAt, j.EligibleAt = at, at
	if c.random.IntN(2) == 0 {
		j.TimeLimit = time.Duration(1+c.random.IntN(48)) * time.Hour
	}
	if c.caches != nil {
		j.Data = []spec.DataKey{spec.DataKey(1 + c.random.IntN(40)), spec.DataKey(1 + c.random.IntN(4000))}
	}
	c.waiting.put(j)
	if c.s != nil {
		c.s.UpsertJob(j)
	}
}

// keep has a machine hold what a job needs, and forget what it held first.
func (c *cluster) keep(id berth.MachineID, j placement.Job) {
	list := slices.Clone(c.caches[id])
	for _, key := range j.Data {
		if !slices.ContainsFunc(list, func(d spec.CachedData) bool { return d.Key == key }) {
			list = append(list, spec.CachedData{Key: key, MiB: 1 << (4 + int64(key)%13)})
		}
	}
	c.caches[id] = list[max(0, len(list)-8):]
	c.s.SetCache(id, c.caches[id])
}

// load builds a snapshot of the rows from nothing.
func (c *cluster) load() {
	s := placement.NewSnapshot()
	if c.apart {
		s.KeepTenantsApart()
	}
	for i, r := range c.classes {
		s.DefineClass(benchClass(i), r)
	}
	for _, t := range c.tenants {
		s.UpsertTenant(t)
	}
	for _, id := range sorted(c.machines) {
		s.UpsertMachine(c.machines[id])
	}
	for _, r := range c.running.list {
		s.UpsertRunning(r)
	}
	for _, r := range c.stopping {
		s.UpsertRunning(r)
	}
	for _, j := range c.waiting.list {
		s.UpsertJob(j)
	}
	for id, holds := range c.caches {
		s.SetCache(id, holds)
	}
	s.SetNominations(c.nominations)
	placement.SetPools(s, c.pools)
	if c.mix != nil {
		s.UseMix(c.mix)
	}
	c.s = s
}

// pass lets time go by: some jobs end, victims have stopped, others come.
func (c *cluster) pass() {
	c.now = c.now.Add(benchCycle)
	for range min(c.size.churn, len(c.running.list)) {
		r := c.running.list[c.random.IntN(len(c.running.list))]
		c.running.take(r.Job)
		c.end(r)
		c.submit(c.now)
	}
	for len(c.stopping) > 0 && !c.stopping[0].StopBy.After(c.now) {
		r := c.stopping[0]
		c.stopping = c.stopping[1:]
		c.end(r)
		j := placement.Job{
			ID: r.Job, Tenant: r.Tenant, Class: r.Class, Version: r.Version, Attempt: r.Attempt, Priority: r.Priority, Preemptible: r.Preemptible,
			SubmittedAt: r.SubmittedAt, EligibleAt: r.SubmittedAt, TimeLimit: r.TimeLimit, PreemptedFor: r.PreemptedFor,
		}
		c.waiting.put(j)
		c.s.UpsertJob(j)
	}
}

func (c *cluster) end(r placement.Running) {
	for _, g := range r.Ranks {
		c.machines[g.Machine] = vacate(c.machines[g.Machine], g)
		c.s.UpsertMachine(c.machines[g.Machine])
	}
	c.s.RemoveRunning(r.Job)
}

// enact makes a plan true.
func (c *cluster) enact(p placement.Plan) {
	for _, x := range p.Preempt {
		r, _ := c.running.take(x.Job)
		r.Stopping, r.StopBy, r.PreemptedFor = true, c.now.Add(benchGrace), append(r.PreemptedFor, x.For)
		c.stopping = append(c.stopping, r)
		c.s.UpsertRunning(r)
	}
	for _, start := range p.Start {
		c.start(start)
	}
	gone := map[string]bool{}
	for _, m := range p.Release {
		gone[fmt.Sprint(m)] = true
	}
	var left []placement.Nomination
	for _, m := range c.nominations {
		if !gone[fmt.Sprint(m)] {
			left = append(left, m)
		}
	}
	c.nominations = append(left, p.Nominate...)
	c.s.SetNominations(c.nominations)
}

func (c *cluster) start(start berth.Start) {
	j, _ := c.waiting.take(start.Job)
	c.s.RemoveJob(start.Job)
	r := placement.Running{
		Job: j.ID, Tenant: j.Tenant, Class: j.Class, Version: j.Version, Attempt: start.Attempt, Priority: j.Priority, Preemptible: j.Preemptible,
		SubmittedAt: j.SubmittedAt, Ranks: start.Ranks, StartedAt: c.now, TimeLimit: j.TimeLimit, PreemptedFor: j.PreemptedFor,
	}
	c.running.put(r)
	c.s.UpsertRunning(r)
	for _, g := range start.Ranks {
		c.machines[g.Machine] = occupy(c.machines[g.Machine], g)
		c.s.UpsertMachine(c.machines[g.Machine])
		if c.caches != nil {
			c.keep(g.Machine, j)
		}
	}
}

// bind gives all tenants quotas: a quarter of them stand at their limits.
func (c *cluster) bind() {
	for i := range c.tenants {
		t := &c.tenants[i]
		t.Limit.GPUMilli = 1_000_000
		if i%4 == 0 {
			t.Limit.GPUMilli = 50_000
		}
		if i%10 == 1 {
			t.Guarantee = berth.Capacity{GPUMilli: 20_000}
		}
	}
	c.s = nil
}
