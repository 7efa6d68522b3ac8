package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"berth"
	"berth/db/history"
	"berth/spec"
)

// tenantRecord is a tenant of a snapshot.
type tenantRecord = history.RecordedTenant

// recording is a snapshot in memory. All names are replaced by numbers in the order of the file, because the engine
// breaks ties by name: pseudonyms would change its decisions.
type recording struct {
	head     *snapshotHead
	tenants  []history.RecordedTenant
	pools    []history.RecordedPool
	bursts   []history.RecordedBurst
	offers   []history.RecordedOffer
	classes  map[string]spec.Request
	machines []snapshotMachine
	launches []history.RecordedLaunch
	jobs     []history.RecordedJob
	unplaced int // attempts without their members, see loader.members

	names map[berth.TenantID]string // of tenants, as in the file
}

// period returns the length of the recorded time.
func (r *recording) period() time.Duration { return r.head.TakenAt.Sub(r.head.Since) }

// at returns a time of the file as virtual time. Clocks of rows may be ahead of the snapshot by moments.
func (r *recording) at(t time.Time) time.Time {
	if t.After(r.head.TakenAt) {
		t = r.head.TakenAt
	}
	return origin.Add(t.Sub(r.head.Since))
}

// maxFileGPUs bounds the devices of a machine in a file: rows keep vanished devices, and have one for each slice of a
// device.
const maxFileGPUs = 1024

// loader reads a recording, checks it, and numbers the names.
type loader struct {
	*recording
	tenantIDs map[berth.TenantID]berth.TenantID
	machineID map[berth.MachineID]int // index
	jobIDs    map[berth.JobID]berth.JobID
	numbers   map[string]string // of labels, values, pools, networks and constraints, by kind and name
	last      time.Time         // submission of the latest job
}

// loadSnapshot reads a file of berth-sim snapshot.
func loadSnapshot(path string) (*recording, error) {
	l := &loader{recording: &recording{classes: map[string]spec.Request{}, names: map[berth.TenantID]string{}},
		tenantIDs: map[berth.TenantID]berth.TenantID{"": ""}, machineID: map[berth.MachineID]int{},
		jobIDs: map[berth.JobID]berth.JobID{"": ""}, numbers: map[string]string{}}
	head, err := readSnapshot(path, l.add)
	if err != nil {
		return nil, err
	}
	l.head = head
	if err := l.finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l.recording, nil
}

func (l *loader) add(line snapshotLine) error {
	switch {
	case line.Tenant != nil:
		return l.tenant(*line.Tenant)
	case line.Pool != nil:
		return l.pool(*line.Pool)
	case line.Burst != nil:
		return l.burst(*line.Burst)
	case line.Offer != nil:
		return l.offer(*line.Offer)
	case line.Class != nil:
		return l.class(*line.Class)
	case line.Machine != nil:
		return l.machine(*line.Machine)
	case line.Launch != nil:
		return l.launch(*line.Launch)
	default:
		return l.job(*line.Job)
	}
}

// number returns the number of a name within its kind, as text; the empty name stays empty.
func (l *loader) number(kind, name string) string {
	if name == "" {
		return ""
	}
	key := kind + "\x00" + name
	n, ok := l.numbers[key]
	if !ok {
		n = fmt.Sprintf("%s-%06d", kind, len(l.numbers))
		l.numbers[key] = n
	}
	return n
}

func (l *loader) tenant(t history.RecordedTenant) error {
	if _, ok := l.tenantIDs[t.ID]; ok {
		return fmt.Errorf("tenant.id %q is empty or appears twice: allowed are names, each once", t.ID)
	}
	if !(t.Weight > 0) {
		return fmt.Errorf("tenant.weight %g: allowed are numbers above 0", t.Weight)
	}
	switch t.Borrow {
	case spec.BorrowAny, spec.BorrowPreemptible, spec.BorrowNone, "":
	default:
		return fmt.Errorf("tenant.borrow %q: allowed are any, preemptible, none", t.Borrow)
	}
	for _, a := range []history.RecordedAmounts{t.Guarantee, t.Limit} {
		for _, n := range []*int64{a.CPUMilli, a.MemoryMiB, a.GPUMilli} {
			if n != nil && (*n < 0 || *n > maxMilli) {
				return fmt.Errorf("tenant %q has an amount %d: allowed are 0 to %d", t.ID, *n, int64(maxMilli))
			}
		}
	}
	id := berth.TenantID(fmt.Sprintf("tenant-%06d", len(l.tenants)))
	l.tenantIDs[t.ID], l.names[id] = id, string(t.ID)
	t.ID = id
	l.tenants = append(l.tenants, t)
	return nil
}

// tenantOf returns the number of a tenant of the file.
func (l *loader) tenantOf(field string, id berth.TenantID) (berth.TenantID, error) {
	n, ok := l.tenantIDs[id]
	if !ok || id == "" {
		return "", fmt.Errorf("%s %q: the file has no such tenant", field, id)
	}
	return n, nil
}

func (l *loader) pool(p history.RecordedPool) error {
	for i, t := range p.Tenants {
		id, err := l.tenantOf("pool.tenants", t)
		if err != nil {
			return err
		}
		p.Tenants[i] = id
	}
	p.Name = l.number("pool", p.Name)
	l.pools = append(l.pools, p)
	return nil
}

func (l *loader) burst(b history.RecordedBurst) error {
	id, err := l.tenantOf("burst.tenant", b.Tenant)
	if err != nil {
		return err
	}
	if faults := b.Policy.Validate(); len(faults) > 0 {
		return fmt.Errorf("burst.policy.%s %s: allowed is %s", faults[0].Field, faults[0].Detail, faults[0].Allowed)
	}
	b.Tenant = id
	l.bursts = append(l.bursts, b)
	return nil
}

func (l *loader) offer(o history.RecordedOffer) error {
	if o.CPUs < 0 || o.CPUs > maxMilli || o.MemoryMiB < 0 || o.MemoryMiB > maxMilli || o.GPUs < 0 ||
		o.GPUs > maxFileGPUs || !(o.Price >= 0) {
		return fmt.Errorf("offer %s/%s/%s has an amount or a price that is negative or too large", o.Provider, o.Region,
			o.Type)
	}
	l.offers = append(l.offers, o)
	return nil
}

// checkAmounts returns an error for resources that no member could have.
func checkAmounts(r spec.Request) error {
	if r.Members < 1 || r.GPUs < 0 || r.GPUs > maxFileGPUs || r.GPUMilli < 0 || r.GPUMilli > 1000 {
		return fmt.Errorf("class.request asks for %d GPUs of %d milli: allowed are 0 to %d of 0 to 1000", r.GPUs,
			r.GPUMilli, maxFileGPUs)
	}
	for _, n := range []int64{r.CPUMilli, r.MemoryMiB, r.DiskMiB, r.GPUMemoryMiB} {
		if n < 0 || n > maxMilli {
			return fmt.Errorf("class.request has an amount %d: allowed are 0 to %d", n, int64(maxMilli))
		}
	}
	return nil
}

func (l *loader) class(c snapshotClass) error {
	r := c.Request.Request
	switch {
	case c.Class == "":
		return errors.New("class.class is empty")
	case r.Members < 1 || r.Members > maxSimMachines:
		return fmt.Errorf("class.request.members %d: allowed are 1 to %d", r.Members, maxSimMachines)
	}
	members := 0
	for _, one := range r.Split() {
		if err := checkAmounts(one); err != nil {
			return err
		}
		members += one.Members
	}
	if members != r.Members {
		return fmt.Errorf("class.request.members %d: its groups have %d", r.Members, members)
	}
	r.Constraint = "" // only its number counts
	r.Labels = l.labels(c.Request.Labels)
	if n := c.Request.Constraint; n > 0 {
		r.Labels[l.constraint(n)] = "yes"
	}
	r.SameLabel = l.number("label", r.SameLabel)
	if _, ok := l.classes[c.Class]; ok {
		return fmt.Errorf("class.class %q appears twice: allowed are names, each once", c.Class)
	}
	l.classes[c.Class] = r
	return nil
}

// labels numbers keys and values.
func (l *loader) labels(list []labelPair) map[string]string {
	m := map[string]string{}
	for _, p := range list {
		m[l.number("label", p[0])] = l.number("value", p[1])
	}
	return m
}

// constraint returns the label of the machines that satisfy a constraint.
func (l *loader) constraint(n int) string { return l.number("constraint", fmt.Sprint(n)) }

func (l *loader) machine(m snapshotMachine) error {
	if _, ok := l.machineID[m.ID]; ok || m.ID == "" {
		return fmt.Errorf("machine.id %q is empty or appears twice: allowed are names, each once", m.ID)
	}
	if len(m.GPUs) > maxFileGPUs {
		return fmt.Errorf("machine %q has %d GPUs: allowed are up to %d", m.ID, len(m.GPUs), maxFileGPUs)
	}
	// The rows are by number. Two transactions may get their numbers and their times in different orders.
	slices.SortStableFunc(m.States, func(a, b history.RecordedState) int { return a.At.Compare(b.At) })
	slices.SortStableFunc(m.Health, func(a, b history.RecordedHealth) int { return a.At.Compare(b.At) })
	for _, s := range m.States {
		if !slices.Contains(knownStates, s.State) {
			return fmt.Errorf("machine.states.state %q: allowed are %v", s.State, knownStates)
		}
		if err := checkCapacity("machine.states", s.Capacity); err != nil {
			return err
		}
	}
	l.machineID[m.ID] = len(l.machines)
	m.ID = nodeName(len(l.machines))
	m.Pool, m.Network = l.number("pool", m.Pool), l.number("network", m.Network)
	m.RecordedMachine.Labels = l.labels(m.Labels)
	for _, n := range m.Constraints {
		m.RecordedMachine.Labels[l.constraint(n)] = "yes"
	}
	l.machines = append(l.machines, m)
	return nil
}

// knownStates are the states of machines in a file.
var knownStates = []berth.MachineState{"requested", "provisioning", berth.MachineJoining, berth.MachineReady,
	berth.MachineSuspect, berth.MachineDraining, berth.MachineLost, berth.MachineRetired}

func checkCapacity(field string, c berth.Capacity) error {
	for _, n := range []int64{c.CPUMilli, c.MemoryMiB, c.DiskMiB, c.GPUMilli} {
		if n < 0 || n > maxMilli {
			return fmt.Errorf("%s has an amount %d: allowed are 0 to %d", field, n, int64(maxMilli))
		}
	}
	return nil
}

func (l *loader) launch(x history.RecordedLaunch) error {
	if !(x.Price >= 0) || x.Settled < 0 {
		return fmt.Errorf("launch of machine %q: price_per_hour %g and settled %d must not be negative", x.Machine,
			x.Price, x.Settled)
	}
	// The machine may have left the rows, or has not joined.
	if i, ok := l.machineID[x.Machine]; ok {
		x.Machine = l.machines[i].ID
	} else {
		x.Machine = ""
	}
	if x.Tenant != "" {
		id, ok := l.tenantIDs[x.Tenant]
		if !ok { // a tenant that was deleted
			id = "deleted"
		}
		x.Tenant = id
	}
	l.launches = append(l.launches, x)
	return nil
}

func (l *loader) job(j history.RecordedJob) error {
	if _, ok := l.jobIDs[j.ID]; ok {
		return fmt.Errorf("job.id %q is empty or appears twice: allowed are ids, each once", j.ID)
	}
	if _, ok := l.classes[j.Class]; !ok {
		return fmt.Errorf("job.class %q: the file has no such class", j.Class)
	}
	id, err := l.tenantOf("job.tenant", j.Tenant)
	if err != nil {
		return err
	}
	if j.SubmittedAt.Before(l.last) {
		return errors.New("job.submitted_at is before that of the job above: allowed is the order of submission")
	}
	if j.RunLimitMS < 0 || j.GraceMS < 0 || j.CheckpointMS < 0 || j.Parallel < 0 || j.Priority < -1e6 ||
		j.Priority > 1e6 {
		return errors.New("job has a negative time or number, or a priority beyond 1000000")
	}
	if err := l.attempts(j); err != nil {
		return err
	}
	number := berth.JobID(fmt.Sprintf("job-%08d", len(l.jobs)))
	l.jobIDs[j.ID], l.last = number, j.SubmittedAt
	j.ID, j.Tenant, j.Like = number, id, l.number("name", j.Like)
	j.Parent = berth.JobID(l.number("parent", string(j.Parent)))
	l.jobs = append(l.jobs, j)
	return nil
}

// attempts checks the attempts of a job, and numbers the machines of their members.
func (l *loader) attempts(j history.RecordedJob) error {
	var last time.Time
	for i, a := range j.Attempts {
		if a.Attempt < 1 || a.PlacedAt.Before(last) || a.FreedAt != nil && a.FreedAt.Before(a.PlacedAt) ||
			a.FreedAt == nil && i < len(j.Attempts)-1 {
			return fmt.Errorf("job.attempts[%d] overlaps the attempt before, ends before it begins, or has no end: "+
				"allowed are attempts in order", i)
		}
		if a.FreedAt != nil {
			last = a.PlacedAt
		}
		known, err := l.members(i, a.Members)
		if err != nil {
			return err
		}
		if !known {
			l.unplaced++
			j.Attempts[i].Members = nil
		}
	}
	return nil
}

// members checks the members of an attempt, and numbers their machines. known is false if a machine has lost one of
// the devices since: a new machine took over the hardware, or it was taken out.
func (l *loader) members(attempt int, list []history.RecordedMember) (known bool, err error) {
	known = true
	for k, m := range list {
		at, ok := l.machineID[m.Machine]
		if !ok {
			return false, fmt.Errorf("job.attempts[%d].members[%d].machine %q: the file has no such machine", attempt,
				k, m.Machine)
		}
		if err := checkCapacity("job.attempts.members", m.Capacity); err != nil {
			return false, err
		}
		for s, share := range m.GPUs {
			if share.Index < 0 || share.Milli < 1 || share.Milli > 1000 {
				return false, fmt.Errorf("job.attempts[%d].members[%d].gpus[%d]: device %d with %d milli: "+
					"allowed are devices from 0 on with 1 to 1000", attempt, k, s, share.Index, share.Milli)
			}
			m.GPUs[s].Index = deviceAt(l.machines[at].GPUs, share.Index)
			known = known && m.GPUs[s].Index >= 0
		}
		list[k].Machine = l.machines[at].ID
	}
	return known, nil
}

// deviceAt returns the place of a device in a list by its index, or -1.
func deviceAt(list []history.RecordedGPU, index int) int {
	return slices.IndexFunc(list, func(g history.RecordedGPU) bool { return g.Index == index })
}

// finish resolves names that a line may use before the line that defines them.
func (l *loader) finish() error {
	parents := map[berth.TenantID]berth.TenantID{}
	for i, t := range l.tenants {
		parent, ok := l.tenantIDs[t.Parent]
		if !ok {
			return fmt.Errorf("tenant %q: parent %q is not in the file", l.names[t.ID], t.Parent)
		}
		l.tenants[i].Parent, parents[t.ID] = parent, parent
	}
	for _, t := range l.tenants {
		steps := 0
		for at := t.ID; at != ""; at = parents[at] {
			if steps++; steps > len(l.tenants) {
				return fmt.Errorf("tenant %q is above itself: allowed is a tree", l.names[t.ID])
			}
		}
	}
	for name, r := range l.classes {
		avoid := r.Avoid[:0:0]
		for _, m := range r.Avoid {
			// A machine that was not in service during the period need not be avoided.
			if i, ok := l.machineID[m]; ok {
				avoid = append(avoid, l.machines[i].ID)
			}
		}
		slices.Sort(avoid)
		r.Avoid = avoid
		l.classes[name] = r
	}
	return nil
}
