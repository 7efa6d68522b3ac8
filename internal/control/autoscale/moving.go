package autoscale

import (
	"slices"
	"time"

	"berth"
	"berth/internal/control/scaler"
	"berth/placement"
)

// MoveAhead is the time before the deadline of a drain from which jobs that will move count as waiting jobs. It is
// longer than the notices of clouds, and about the time in which a machine boots. Earlier, a replacement would stay
// idle until the deadline.
const MoveAhead = 5 * time.Minute

// Moving returns the running jobs that will have to move soon: one of their machines drains until a deadline that is
// near. A job that was ordered to stop already is left out, since it may be canceled; if it moves, it waits in a
// moment. So is a job whose time limit ends before the deadline.
func Moving(f Facts) (list []placement.Running) {
	if len(f.Leaving) == 0 {
		return nil
	}
	for _, r := range f.Running {
		if at, ok := f.movesAt(r); ok && !r.Stopping && !endsBy(r, at) {
			list = append(list, r)
		}
	}
	return list
}

// movesAt returns the earliest deadline of the machines of a job that drain.
func (f *Facts) movesAt(r placement.Running) (at time.Time, ok bool) {
	for _, g := range r.Ranks {
		if t, leaves := f.Leaving[g.Machine]; leaves && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	return at, ok
}

// endsBy reports whether the time limit of a job ends before a time.
func endsBy(r placement.Running, at time.Time) bool {
	return r.TimeLimit > 0 && r.StartedAt.Add(r.TimeLimit).Before(at)
}

// move turns the jobs of Moving into waiting jobs, as they will be after the deadline: they hold no capacity. So the
// pass decides about a replacement with the notice of a cloud, by the rules for waiting jobs, and not after the end of
// the machine. It returns the facts with these jobs, and changes no slice of f.
func move(f Facts) Facts {
	list := Moving(f)
	if len(list) == 0 {
		return f
	}
	f.Machines = f.machines()
	f.Waiting = slices.Clone(f.Waiting)
	moves := make(map[berth.JobID]bool, len(list))
	for _, r := range list {
		if _, known := f.Classes[r.Class]; !known {
			continue
		}
		moves[r.Job] = true
		f.Waiting = append(f.Waiting, waiting(r, f.Now))
		for _, g := range r.Ranks {
			if i := slices.IndexFunc(f.Machines, func(m placement.Machine) bool { return m.ID == g.Machine }); i >= 0 {
				release(&f.Machines[i], g)
			}
		}
	}
	f.Running = slices.DeleteFunc(slices.Clone(f.Running), func(r placement.Running) bool { return moves[r.Job] })
	return f
}

// waiting returns a running job as it waits after the loss of its machine.
func waiting(r placement.Running, now time.Time) placement.Job {
	ran := max(0, now.Sub(r.StartedAt))
	return placement.Job{
		ID: r.Job, Parent: r.Parent, Tenant: r.Tenant, Class: r.Class, Version: r.Version, Attempt: r.Attempt,
		Priority: r.Priority, Preemptible: r.Preemptible, SubmittedAt: r.SubmittedAt, EligibleAt: now,
		LikeName: r.LikeName, LikeData: r.LikeData, TimeLimit: r.TimeLimit,
		Done: r.Done + ran, Expected: r.Expected, RestartCost: r.RestartCost, PreemptedFor: r.PreemptedFor,
		Unaged: r.Unaged + ran,
	}
}

// release subtracts a grant from the use of its machine.
func release(m *placement.Machine, g berth.Grant) {
	m.Used = m.Used.Sub(g.Capacity)
	for _, d := range g.GPUs {
		if i := slices.IndexFunc(m.GPUs, func(x placement.Device) bool { return x.Index == d.Index }); i >= 0 {
			m.GPUs[i].UsedMilli -= d.Milli
		}
	}
}

// promised returns the machines that were launched for jobs that still run on a machine that leaves, with the notes of
// these jobs. Such a machine may be ready before the deadline. It is not drained, and the note lasts, until the job
// waits: also while its containers have exited and their results are uploaded.
func promised(p *pass) map[berth.MachineID]bool {
	machines := map[berth.MachineID]bool{}
	for _, r := range p.running {
		n, noted := p.Notes[r.Job]
		exited := len(r.Ranks) < p.Classes[r.Class].Members // its containers, which hold no capacity any more
		if _, moves := p.movesAt(r); !noted || !moves && !r.Stopping && !exited {
			continue
		}
		held := false
		for _, m := range p.fleet[r.Tenant] {
			if slices.Contains(n.Machines, m.Row.ID) && m.State != scaler.Leaving {
				machines[m.Row.ID], held = true, true
			}
		}
		if held {
			p.kept = append(p.kept, n)
		}
	}
	return machines
}

// hold keeps the promised machines of a tenant from counting as empty.
func hold(p *pass, t berth.TenantID, promised map[berth.MachineID]bool) {
	for i := range p.fleet[t] {
		if m := &p.fleet[t][i]; promised[m.Row.ID] {
			m.EmptySince = time.Time{}
		}
	}
}
