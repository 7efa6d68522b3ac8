package scaler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/placement"
	"berth/spec"
)

// SpotRule decides whether machines may be of the spot market.
type SpotRule string

// The rules on spot machines.
const (
	SpotNever  SpotRule = "never"
	SpotPrefer SpotRule = "prefer" // by price, which favors spot machines
	SpotOnly   SpotRule = "only"
)

// Policy bounds the machines of one pool. The zero value allows none.
type Policy struct {
	Allow    []string // "provider/region", such as "aws/eu-west-1"; empty: no cloud
	Spot     SpotRule // "": never
	MaxPrice float64  // of one machine an hour, in US dollars; 0: no bound
	Max      int      // machines
	// Min is the least number of machines, which are launched without a job. Only machines of MinTypes count;
	// nil: machines of any type.
	Min      int
	MinTypes []string
	// Growth is the number of machines that may be launched within GrowthPer; 0: no bound.
	Growth    int
	GrowthPer time.Duration
	// Budget is the most that launches may reserve and cost in the present period, in US dollars; 0: no bound.
	Budget float64
	// Idle is the time for which an empty machine is kept. IdleCost keeps it for longer, until it has cost
	// this many US dollars since it became empty, so a cheap machine is kept for longer.
	Idle     time.Duration
	IdleCost float64
}

// Offer is an offering of a provider that a launch may use.
type Offer struct {
	cloud.Offer
	Provider string
	Breaker  Breaker
	Won      time.Time // when the last machine of it was had; zero: not lately
	// Known is the row of a machine of this type that has joined. Its capacity is planned with, rather than the
	// nominal one. nil: none is known.
	Known *placement.Machine
}

// Job is a waiting job that may go to the cloud.
type Job struct {
	placement.Job
	Request spec.Request
	Run     time.Duration // expected; less than leastReserved counts as that
	Spot    bool          // it may run on a spot machine
}

// MachineState is the state of a machine of the pool.
type MachineState string

// The states of machines.
const (
	Launching MachineState = "launching" // requested, of unknown outcome, or booting
	Ready     MachineState = "ready"
	// Silent is a machine whose agent or container engine does not answer at the moment. It has no room for jobs,
	// and it is not replaced before it is lost or its end is requested.
	Silent  MachineState = "silent"
	Idling  MachineState = "idling" // it drains because it was empty
	Leaving MachineState = "leaving"
)

// Machine is a machine of the pool that exists or may exist.
type Machine struct {
	Row        placement.Machine // with the capacity that it has or will have
	State      MachineState
	Type       string    // of the offer
	Price      float64   // US dollars an hour
	Launched   time.Time // when it was requested
	EmptySince time.Time // zero: jobs run on it
}

// Input holds all facts that a decision depends on.
type Input struct {
	Now      time.Time
	Jobs     []Job // in queue order; none fits on a ready machine now
	Machines []Machine
	Offers   []Offer
	Policy   Policy
	Pool     string   // that launched machines join
	Taints   []string // of launched machines, from their pool
	// Untrusted keeps the jobs off machines that do not meet the security floors: their tenant is untrusted.
	Untrusted bool
	Launched  []time.Time // times of earlier launches, for Policy.Growth
	Spent     float64     // costs of the period and reservations, in US dollars
	Planner   placement.Planner
}

// Launch is a machine to launch.
type Launch struct {
	Offer Offer
	Jobs  []berth.JobID // that it is launched for
	Cost  float64       // to reserve, in US dollars
}

// Decision is the outcome of Decide.
type Decision struct {
	Launches []Launch
	Drain    []berth.MachineID // empty machines to drain
	Undrain  []berth.MachineID // idling machines that return to ready
	Notes    []Note            // a note for each job, in their order
	// Missing is the number of machines below Policy.Min that are not launched now, and MissingWhy the reason.
	Missing    int
	MissingWhy NoteCode
}

// leastReserved is the least time for which money is reserved for a launch.
const leastReserved = time.Hour

// Decide returns the launches and drains of a pool.
//
// Each job is planned by the engine on the machines of the pool, machines that boot included. If it has no
// place there, idling machines return, and otherwise the machines of the offer are launched that run the job
// for the least money. A gang gets all machines that it lacks or none. After a failure of the offer a gang gets
// one machine, which tries the offer; the others follow after its success. The free capacity of a launched
// machine serves the next jobs. If there are still fewer machines than Policy.Min, idling machines return and
// others are launched without a job. Machines that no job needs are drained once they have been empty for long
// enough; a machine with a job is never drained.
func Decide(in Input) Decision {
	in.Offers = slices.Clone(in.Offers) // their breakers change as launches are decided
	d := &decider{Input: in, used: map[berth.MachineID]bool{}}
	if len(in.Jobs) > 0 {
		d.load()
		for _, j := range in.Jobs {
			code, ranks := d.decide(j)
			d.Notes = append(d.Notes, Note{j.ID, code, machinesOf(ranks)})
		}
	}
	d.least()
	d.drain()
	return d.Decision
}

// decider is a decision in progress.
type decider struct {
	Input
	Decision
	world   *placement.Snapshot      // the pool with the machines that are not there yet
	used    map[berth.MachineID]bool // machines that jobs of this decision were planned on
	needs   map[string]int           // see machinesFor
	planned int                      // number of launched machines, for their ids
	full    map[string]bool          // classes without room in the world since it last gained room
}

// load builds the what-if world of machines that are or will be ready.
func (d *decider) load() {
	d.world, d.needs, d.full = d.newWorld(d.Jobs...), map[string]int{}, map[string]bool{}
	for _, m := range d.Machines {
		if m.State == Launching || m.State == Ready {
			d.add(m.Row)
		}
	}
}

// newWorld returns a snapshot without machines for plans of the jobs, which distrusts their tenant if it is untrusted.
func (d *decider) newWorld(jobs ...Job) *placement.Snapshot {
	world := placement.NewSnapshot()
	if d.Untrusted {
		for _, j := range jobs {
			world.UpsertTenant(placement.Tenant{ID: j.Tenant, Untrusted: true})
		}
		placement.SetPools(world, nil)
	}
	return world
}

// add puts a machine into the world as if it were ready.
func (d *decider) add(m placement.Machine) {
	m.State, m.Blocked = berth.MachineReady, ""
	m.GPUs = slices.Clone(m.GPUs)
	d.world.UpsertMachine(m)
	clear(d.full)
}

// place plans a job in the world, and holds its place there. ok is false if it has none.
func (d *decider) place(j Job) (ranks []berth.Grant, ok bool) {
	class := j.Request.Class()
	if d.full[class] {
		return nil, false
	}
	ranks, ok = planAlone(d.Planner, d.world, j, d.Now)
	if !ok && len(j.Avoid) == 0 {
		d.full[class] = true
	}
	return ranks, ok
}

// planAlone plans one job in a world without other waiting jobs, and holds its place.
func planAlone(p placement.Planner, world *placement.Snapshot, j Job, now time.Time) ([]berth.Grant, bool) {
	class := j.Request.Class()
	world.DefineClass(class, j.Request)
	row := j.Job
	row.Class, row.EligibleAt = class, now
	world.UpsertJob(row)
	defer world.RemoveJob(row.ID)
	for _, s := range p.Plan(world, now).Start {
		hold(world, s.Ranks, 1)
		return s.Ranks, true
	}
	return nil, false
}

// decide finds machines for one job. The grants are on machines that exist.
func (d *decider) decide(j Job) (NoteCode, []berth.Grant) {
	if ranks, ok := d.place(j); ok {
		d.mark(ranks)
		return NoteCovered, ranks
	}
	if ranks, ok := d.undrain(j); ok {
		return NoteCovered, ranks
	}
	return d.launch(j), nil
}

// machinesOf returns the machines of grants, each once.
func machinesOf(ranks []berth.Grant) (list []berth.MachineID) {
	for _, g := range ranks {
		if !slices.Contains(list, g.Machine) {
			list = append(list, g.Machine)
		}
	}
	return list
}

func (d *decider) mark(ranks []berth.Grant) {
	for _, g := range ranks {
		d.used[g.Machine] = true
	}
}

// undrain places a job with the help of idling machines, which return to ready.
func (d *decider) undrain(j Job) ([]berth.Grant, bool) {
	var idling []Machine
	for _, m := range d.Machines {
		if m.State == Idling && !d.used[m.Row.ID] {
			idling = append(idling, m)
			d.add(m.Row)
		}
	}
	if len(idling) == 0 {
		return nil, false
	}
	ranks, ok := d.place(j)
	d.mark(ranks)
	for _, m := range idling {
		if d.used[m.Row.ID] {
			d.Undrain = append(d.Undrain, m.Row.ID)
		} else {
			d.world.RemoveMachine(m.Row.ID)
		}
	}
	return ranks, ok
}

// choice is an offer with the number of its machines that a job needs.
type choice struct {
	at       int // index of the offer
	machines int
	cost     float64 // an hour
}

// launch launches the machines of the cheapest offer that the limits allow, all or none.
func (d *decider) launch(j Job) NoteCode {
	list, why := d.choices(j)
	if len(list) == 0 {
		return why
	}
	why = ""
	for _, c := range list {
		o := &d.Offers[c.at]
		reserve := o.Price * max(j.Run, leastReserved).Hours()
		if refused := d.limit(1, reserve); refused != "" {
			why = cmp.Or(why, refused)
			continue
		}
		added, ranks := d.placeOn(j, *o, c.machines)
		refused := NoteFits
		if ranks != nil {
			refused = d.limit(len(added), reserve)
		}
		if refused != "" {
			d.withdraw(added, ranks)
			why = cmp.Or(why, refused)
			continue
		}
		if o.Breaker.Step > 0 && len(added) > 1 { // one machine tries the offer, and has no room for the gang
			d.withdraw(added[1:], ranks)
			added = added[:1]
		}
		d.mark(ranks)
		for range added {
			d.Launches = append(d.Launches, Launch{Offer: *o, Jobs: []berth.JobID{j.ID}, Cost: reserve})
			d.Spent += reserve
		}
		o.Breaker = o.Breaker.Tried()
		return NoteLaunched
	}
	return why
}

// placeOn adds machines of an offer to the world, one at a time and at most a number, until the job has a place
// there, and holds the place. ranks is nil if it has none.
func (d *decider) placeOn(j Job, o Offer, most int) (added []berth.MachineID, ranks []berth.Grant) {
	for range most {
		d.planned++
		id := berth.MachineID(fmt.Sprintf("~launch-%06d", d.planned))
		d.add(d.machine(o, id))
		added = append(added, id)
		if ranks, ok := d.place(j); ok {
			return added, ranks
		}
	}
	return added, nil
}

// withdraw releases the place of a job, and removes machines from the world.
func (d *decider) withdraw(added []berth.MachineID, ranks []berth.Grant) {
	hold(d.world, ranks, -1)
	clear(d.full)
	for _, id := range added {
		d.world.RemoveMachine(id)
	}
}

// limit returns the bound that forbids the launch of a number of machines, or "".
func (d *decider) limit(machines int, reserve float64) NoteCode {
	p := d.Policy
	if len(d.Machines)+len(d.Launches)+machines > p.Max {
		return NoteMax
	}
	if p.Growth > 0 {
		recent := len(d.Launches)
		for _, at := range d.Input.Launched {
			if d.Now.Sub(at) < p.GrowthPer {
				recent++
			}
		}
		if recent+machines > p.Growth {
			return NoteGrowth
		}
	}
	if p.Budget > 0 && d.Spent+reserve*float64(machines) > p.Budget {
		return NoteBudget
	}
	return ""
}

// choices returns the offers that may run a job, the cheapest first, or the reason why there are none.
func (d *decider) choices(j Job) (list []choice, why NoteCode) {
	why = NoteForbid
	for i, o := range d.Offers {
		n, refused := d.judge(o, j)
		if refused != "" {
			why = Later(why, refused)
			continue
		}
		list = append(list, choice{i, n, o.Price * float64(n)})
	}
	return d.sorted(list), why
}

// sorted returns choices in the order in which they are tried, see Order.
func (d *decider) sorted(list []choice) []choice {
	of, zones := make(map[string]choice, len(list)), make([]Zone, len(list))
	for i, c := range list {
		o := d.Offers[c.at]
		name := o.String() + " of " + o.Provider
		of[name] = c
		zones[i] = Zone{Name: name, Price: c.cost, Machines: c.machines, Breaker: o.Breaker, Won: o.Won}
	}
	list = list[:0]
	for _, z := range Order(zones, d.Now) {
		list = append(list, of[z.Name])
	}
	return list
}

// judge returns the number of machines of an offer that a job needs, and the reason why the offer may not run the job
// now, or "". An offer that is only too expensive or closed has the number, too.
func (d *decider) judge(o Offer, j Job) (machines int, refused NoteCode) {
	if refused := d.allowed(o, j); refused != "" {
		return 0, refused
	}
	machines = d.machinesFor(j, o)
	switch {
	case machines == 0:
		return 0, NoteFits
	case !d.affords(o):
		return machines, NotePrice
	case j.Request.MaxPrice > 0 && o.Price > j.Request.MaxPrice:
		return machines, NoteJobPrice
	case !o.Breaker.Allows(d.Now):
		return machines, NoteClosed
	}
	return machines, ""
}

// allowed returns the reason why an offer is not allowed for a job at any price, or "". The policy comes before the
// job's own conditions.
func (d *decider) allowed(o Offer, j Job) NoteCode {
	spot := o.Market == cloud.Spot
	switch {
	case !d.permits(o):
		return NoteForbid
	case j.Request.Site == spec.SiteOnPrem:
		return NoteSite
	case !spec.Resident(j.Request.Residency, o.Region):
		return NoteResident
	case spot && !j.Spot, !spot && j.Request.Spot == spec.SpotOnly:
		return NoteSpot
	}
	return ""
}

// permits reports whether the policy permits the region and the market of an offer.
func (d *decider) permits(o Offer) bool {
	spot := o.Market == cloud.Spot
	return slices.Contains(d.Policy.Allow, o.Provider+"/"+o.Region) &&
		(!spot || d.Policy.Spot == SpotPrefer || d.Policy.Spot == SpotOnly) && (spot || d.Policy.Spot != SpotOnly)
}

// affords reports whether the price of an offer is known and within the policy.
func (d *decider) affords(o Offer) bool {
	return o.Price > 0 && (d.Policy.MaxPrice <= 0 || o.Price <= d.Policy.MaxPrice)
}

// machinesFor returns the number of empty machines of an offer that a job needs by the engine; 0: it fits on
// none.
func (d *decider) machinesFor(j Job, o Offer) int {
	j.Request.MaxPrice = 0 // judge compares the price
	key := fmt.Sprint(j.Request.Class(), o.Provider, o.Region, o.Type, o.CPUs, o.MemoryMiB, o.GPUs, o.GPUType)
	if j.Request.Constraint != "" {
		key += " in " + d.Pool
	}
	if d.Untrusted {
		key += " untrusted"
	}
	if n, ok := d.needs[key]; ok {
		return n
	}
	world := d.newWorld(j)
	for i := range max(1, j.Request.Members) {
		world.UpsertMachine(d.machine(o, berth.MachineID(fmt.Sprintf("~%06d", i))))
	}
	ranks, _ := planAlone(d.Planner, world, j, d.Now)
	seen := map[berth.MachineID]bool{}
	for _, g := range ranks {
		seen[g.Machine] = true
	}
	d.needs[key] = len(seen)
	return len(seen)
}

// machine returns the row that a launched machine of an offer will have.
func (d *decider) machine(o Offer, id berth.MachineID) placement.Machine {
	m := o.Machine(id)
	m.Pool, m.Taints = d.Pool, d.Taints
	return m
}
