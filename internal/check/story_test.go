package check_test

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"berth"
	"berth/db/history"
	"berth/failure"
	"berth/internal/check"
	"berth/wire"
)

// story writes histories as the product would: each step advances the clock and
// the ledger.
type story struct {
	at       time.Time
	seq      int64
	machines []*history.Machine
	jobs     []*teller
	events   []check.ContainerEvent
	families []*history.Family
	tenants  []history.TenantChange
}

func newStory() *story { return &story{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (s *story) tick() time.Time { s.at = s.at.Add(3 * time.Second); return s.at }
func (s *story) next() int64     { s.seq++; return s.seq }

// machine joins one with two GPUs.
func (s *story) machine(id berth.MachineID) *history.Machine {
	m := &history.Machine{ID: id}
	s.machines = append(s.machines, m)
	s.machineIs(m, "ready", 1, "boot-1")
	for i := range 2 {
		m.GPUs = append(m.GPUs, history.GPU{Index: i, UUID: fmt.Sprintf("%s-%d", id, i)})
		m.Events = append(m.Events, history.MachineEvent{Seq: s.next(), At: s.tick(), GPU: &i, State: "healthy"})
	}
	return m
}

func (s *story) machineIs(m *history.Machine, state string, epoch int64, boot string) {
	m.State, m.Epoch = berth.MachineState(state), epoch
	m.Events = append(m.Events, history.MachineEvent{
		Seq: s.next(), At: s.tick(), State: state, Epoch: epoch, HostBoot: boot,
		CPUMilli: 4000, MemoryMiB: 4096, DiskMiB: 1000, GPUMilli: 2000,
	})
}

// teller writes the history of one job.
type teller struct {
	s *story
	history.Job
	family *history.Family // of an element: its array, or its pipeline
	index  int
	step   string
	needs  []berth.JobID
}

// limits sets what a tenant may hold: GPUs and jobs.
func (s *story) limits(tenant, parent berth.TenantID, gpus, jobs int64) {
	gpus *= 1000
	s.tenants = append(s.tenants, history.TenantChange{
		Seq: s.next(), At: s.tick(), Tenant: tenant, Parent: parent, GPUMilli: &gpus, MaxRunning: &jobs,
	})
}

func (s *story) submit(members int, execution string) *teller {
	t := &teller{s: s, Job: history.Job{
		ID: berth.JobID(fmt.Sprintf("00000000-0000-7000-8000-%012d", len(s.jobs)+1)), Tenant: "default", Kind: "job",
		Execution: execution, GraceMS: 1000, LostAfterMS: 90_000, HasSpec: true, Members: members, SubmittedAt: s.at,
	}}
	s.jobs = append(s.jobs, t)
	t.state(berth.Submitted, "user:ada")
	t.state(berth.Queued, "workflow")
	return t
}

// array is one with so many elements, each of one rank.
func (s *story) array(total, parallel int) (*teller, []*teller) {
	p := s.submit(1, "at_least_once")
	p.Kind = string(berth.KindArray)
	f := &history.Family{ID: p.ID, Kind: p.Kind, Total: total, Parallel: parallel}
	s.families = append(s.families, f)
	elements := make([]*teller, total)
	for i := range elements {
		elements[i] = s.submit(1, "at_least_once")
		elements[i].family, elements[i].index = f, i
	}
	return p, elements
}

func (t *teller) tell(kind wire.EventKind, attempt int, actor, detail string) {
	t.EventSeq++
	t.Events = append(t.Events, history.Event{Seq: t.EventSeq, At: t.s.tick(), Kind: kind, Attempt: attempt, Actor: actor, Detail: detail})
}

func (t *teller) state(to berth.State, actor string) {
	t.tell(wire.EventState, t.Attempt, actor, "")
	e := &t.Events[len(t.Events)-1]
	e.From, e.To = t.State, to
	t.State, t.StateAt = to, e.At
	t.Version++
	if to.Terminal() {
		t.FinishedAt = &e.At
	}
}

// place gives each rank a machine and the GPU of that index.
func (t *teller) place(gpu int, on ...*history.Machine) {
	t.Attempt++
	at := t.s.tick()
	t.Attempts = append(t.Attempts, history.Attempt{Attempt: t.Attempt, LeaderEpoch: 1, PlacedAt: at})
	for rank, m := range on {
		id := berth.AllocationID(1)
		for _, j := range t.s.jobs {
			id += berth.AllocationID(len(j.Allocations))
		}
		t.Allocations = append(t.Allocations, history.Allocation{
			ID: id, Job: t.ID, Attempt: t.Attempt, Rank: rank, Machine: m.ID, MachineEpoch: m.Epoch,
			CPUMilli: 1000, MemoryMiB: 1024, GPUMilli: 1000, State: berth.AllocReserved, ReservedAt: at, TakenSeq: t.s.next(),
			GPUs: []history.DeviceAllocation{{Index: gpu, Milli: 1000}},
		})
		if len(on) > 1 {
			t.Allocations[len(t.Allocations)-1].Port = wire.DefaultPorts.First
		}
	}
	t.state(berth.Scheduled, "leader")
}

// keeps lets a machine keep a device for a job, as soon as a victim has freed it.
func (s *story) keeps(m *history.Machine, gpu int, beneficiary, victim *teller) *history.Nomination {
	m.Nominations = append(m.Nominations, history.Nomination{
		Beneficiary: beneficiary.ID, Index: gpu, Milli: 1000, Victim: victim.ID, VictimAttempt: victim.Attempt, FromSeq: s.next(),
	})
	return &m.Nominations[len(m.Nominations)-1]
}

// repairs keeps the room of a rank of the current attempt for the next one.
func (t *teller) repairs(rank int) *history.Repair {
	t.Repairs = append(t.Repairs, history.Repair{Machine: t.now()[rank].Machine, Attempt: t.Attempt, MadeAt: t.s.tick()})
	return &t.Repairs[len(t.Repairs)-1]
}

// now are the allocations of the current attempt.
func (t *teller) now() []*history.Allocation {
	var list []*history.Allocation
	for i := range t.Allocations {
		if t.Allocations[i].Attempt == t.Attempt {
			list = append(list, &t.Allocations[i])
		}
	}
	return list
}

func (t *teller) current() *history.Attempt { return &t.Attempts[t.Attempt-1] }

func (t *teller) container(a *history.Allocation, action string) {
	t.s.events = append(t.s.events, check.ContainerEvent{
		Cluster: "c", Machine: a.Machine, Job: t.ID, Attempt: a.Attempt, Rank: a.Rank, Alloc: a.ID,
		ID: fmt.Sprintf("container-%d", a.ID), Action: action, At: t.s.tick(),
	})
}

// ready prepares all ranks and orders them to start.
func (t *teller) ready() {
	for _, a := range t.now() {
		at := t.s.tick()
		a.State, a.ClaimedAt = berth.AllocActive, &at
		t.container(a, "create")
		a.PreparedAt = &at
	}
	t.tell(wire.EventOrdered, t.Attempt, "agent:m1", "start: member 0 on m1")
	for _, a := range t.now() {
		a.Orders.Start = true
	}
}

func (t *teller) run() {
	t.ready()
	for _, a := range t.now() {
		t.start(a)
	}
	t.state(berth.Running, "agent:m1")
	began := t.s.at
	t.current().StartedAt = &began
}

func (t *teller) start(a *history.Allocation) {
	t.container(a, "start")
	at := t.s.tick()
	a.StartedAt = &at
}

// exits ends every rank that lives.
func (t *teller) exits(code int, cause failure.ExitCause) {
	for _, a := range t.now() {
		if a.State != berth.AllocActive {
			continue
		}
		a.Exit = &failure.Exit{Cause: cause, Code: code}
		if a.StartedAt != nil {
			t.container(a, "die")
			a.Exit.StartedAt = *a.StartedAt
		}
		at := t.s.tick()
		a.State, a.ExitedAt, a.SealedAt, a.Exit.FinishedAt = berth.AllocExited, &at, &at, at
		t.free(a, berth.AllocActive, "agent")
	}
}

func (t *teller) free(a *history.Allocation, from berth.AllocationState, by string) {
	a.FreedSeq, a.FreedFrom, a.FreedBy = t.s.next(), from, by
}

func (t *teller) settle(to berth.State, code berth.ReasonCode, budget failure.Budget) {
	x := t.current()
	at := t.s.tick()
	x.EndedAt, x.NextState, x.Budget = &at, to, budget
	if code != "" {
		x.Outcome = &berth.Reason{Code: code}
	}
	switch budget {
	case failure.BudgetUser:
		t.Failures++
	case failure.BudgetInfra:
		t.Losses++
	case failure.BudgetNone:
	}
	for _, a := range t.now() {
		if a.State == berth.AllocExited {
			a.State, a.ReleasedAt = berth.AllocReleased, &at
		}
	}
	t.state(to, "workflow")
}

func (t *teller) checkpoint(step int64) {
	t.Checkpoints = append(t.Checkpoints, history.Checkpoint{Step: step, Attempt: t.Attempt, Ranks: t.Members, Shards: t.Members, State: berth.CheckpointVerified})
	t.tell(wire.EventCheckpoint, t.Attempt, "agent:m1", fmt.Sprintf("step %d, 100 bytes", step))
	t.Events[len(t.Events)-1].Facts = &wire.EventFacts{Step: &step}
}

func (t *teller) resume(step int64) {
	t.current().ResumeFrom = &step
	t.tell(wire.EventRestored, t.Attempt, "agent:m1", fmt.Sprintf("member 0 resumes from step %d", step))
	t.Events[len(t.Events)-1].Facts = &wire.EventFacts{Rank: new(0), Step: &step}
}

// loseMachine lets a machine fall silent, with this job's ranks on it.
func (t *teller) loseMachine(m *history.Machine) {
	for _, a := range t.now() {
		at := t.s.tick()
		a.State, a.OrphanedAt, a.OrphanedSeq, a.Orders.Kill = berth.AllocOrphaned, &at, t.s.next(), true
		t.tell(wire.EventOrphaned, a.Attempt, "leader", "")
	}
	t.s.machineIs(m, "lost", m.Epoch+1, "boot-1")
}

// release frees orphaned capacity on the confirmation of an actor.
func (t *teller) release(actor, by string) {
	for i := range t.Allocations {
		a := &t.Allocations[i]
		if a.State != berth.AllocOrphaned {
			continue
		}
		if by == "agent" {
			t.container(a, "die")
		}
		at := t.s.tick()
		a.State, a.ReleasedAt = berth.AllocReleased, &at
		if by == "operator" { // no machine reported the end, so the operator's word is recorded as one
			a.ExitedAt = &at
		}
		t.free(a, berth.AllocOrphaned, by)
		t.tell(wire.EventReleased, a.Attempt, actor, "")
	}
}

// history is the whole story, read an hour after its end by default.
func (s *story) history() check.History {
	h := check.History{Cluster: history.Cluster{ID: "c", ReadAt: s.at.Add(time.Second), Tenants: s.tenants}, Containers: s.events}
	for _, t := range s.jobs {
		h.Jobs = append(h.Jobs, t.Job)
		h.Accepted = append(h.Accepted, check.Accepted{Tenant: "default", Key: "key-" + string(t.ID), Job: t.ID})
		for _, m := range s.machines {
			for _, a := range t.Allocations {
				if a.Machine == m.ID {
					m.Allocations = append(m.Allocations, a)
				}
			}
		}
	}
	h.Holdings = s.holdings()
	for _, f := range s.families {
		h.Families = append(h.Families, s.family(*f))
	}
	for _, m := range s.machines {
		slices.SortFunc(m.Allocations, func(a, b history.Allocation) int { return cmp.Compare(a.TakenSeq, b.TakenSeq) })
		for _, a := range m.Allocations {
			if a.Counts() {
				m.CPUUsed, m.MemUsed, m.GPUUsed = m.CPUUsed+a.CPUMilli, m.MemUsed+a.MemoryMiB, m.GPUUsed+a.GPUMilli
				m.GPUs[a.GPUs[0].Index].MilliUsed += 1000
			}
		}
		h.Machines = append(h.Machines, *m)
	}
	return h
}

// holdings are the begins and ends of all allocations.
func (s *story) holdings() (list []history.Holding) {
	for _, t := range s.jobs {
		for _, a := range t.Allocations {
			x := history.Holding{
				Seq: a.TakenSeq, Begins: true, Tenant: t.Tenant, Alloc: a.ID, Job: a.Job, Attempt: a.Attempt, Machine: a.Machine,
				CPUMilli: a.CPUMilli, MemoryMiB: a.MemoryMiB, GPUMilli: a.GPUMilli, At: a.ReservedAt,
			}
			list = append(list, x)
			if x.Seq, x.Begins = cmp.Or(a.OrphanedSeq, a.FreedSeq), false; x.Seq != 0 {
				list = append(list, x)
			}
		}
	}
	slices.SortFunc(list, func(a, b history.Holding) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

// family is an array as its elements are now.
func (s *story) family(f history.Family) history.Family {
	for _, t := range s.jobs {
		if t.ID == f.ID {
			f.State, f.StateAt, f.FinishedAt = t.State, t.StateAt, t.FinishedAt
		}
		if t.family == nil || t.family.ID != f.ID {
			continue
		}
		c := history.Child{ID: t.ID, Index: t.index, Step: t.step, Needs: t.needs, State: t.State, Blocked: t.Blocked, FinishedAt: t.FinishedAt}
		for _, a := range t.Allocations {
			until := a.FreedSeq
			if a.OrphanedSeq != 0 {
				until = a.OrphanedSeq
			}
			c.Spans = append(c.Spans, history.Span{Taken: a.TakenSeq, Until: until})
		}
		f.Children = append(f.Children, c)
	}
	return f
}
