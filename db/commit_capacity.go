package db

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"berth"
)

// admit returns the decisions that still hold. It takes them in order, and each one can use
// only the capacity that earlier ones have left.
func (p *present) admit(starts []berth.Start) Committed {
	c := Committed{Started: make([]berth.Start, 0, len(starts))}
	for _, s := range starts {
		s = p.stay(s)
		if err := p.take(s); err != nil {
			c.Refused = append(c.Refused, Refusal{s, err.Error()})
			continue
		}
		c.Started = append(c.Started, s)
	}
	return c
}

// take checks one decision against the rows and subtracts the capacity of a valid one. A
// refused decision leaves p unchanged. The error is the reason.
func (p *present) take(s berth.Start) error {
	j, ok := p.jobs[s.Job]
	switch {
	case !ok:
		return errors.New("the job is gone")
	case j.version != s.Version:
		return fmt.Errorf("the job is at version %d, not %d", j.version, s.Version)
	case j.state != berth.Queued && j.state != berth.Retrying:
		return fmt.Errorf("the job is %s", j.state)
	case j.attempt != s.Attempt-1:
		return fmt.Errorf("the job is at attempt %d, not %d", j.attempt, s.Attempt-1)
	case j.held:
		return errors.New("the job is held")
	case !j.eligible:
		return errors.New("the job is not eligible yet")
	case len(s.Ranks) == 0:
		return errors.New("the decision has no ranks")
	}
	parent := p.parents[j.parent]
	if err := parent.Refusal(); err != nil {
		return err
	}
	for i, r := range s.Ranks {
		err := p.closedTo(s.Job, j, r.Machine)
		if err == nil {
			err = p.machines[r.Machine].take(r, s.Job, j.atMostOne)
		}
		if err != nil {
			p.give(s.Ranks[:i])
			return fmt.Errorf("member %d on %s: %w", i, r.Machine, err)
		}
	}
	if err := p.takePorts(s); err != nil {
		p.give(s.Ranks)
		return err
	}
	for _, r := range s.Ranks {
		if m := p.machines[r.Machine]; m.oneTenant {
			m.tenants = append(m.tenants, j.tenant)
		}
	}
	parent.Admit()
	delete(p.jobs, s.Job) // a second decision about the same job is refused
	// writeStarts deletes the job's nominations, so their room is free for later decisions.
	for _, m := range p.keeping[s.Job] {
		m.kept = slices.DeleteFunc(m.kept, func(e Nomination) bool { return e.Beneficiary == s.Job })
	}
	return nil
}

// closedTo returns the rule that keeps a job off a machine, regardless of free capacity; nil: none.
func (p *present) closedTo(id berth.JobID, j presentJob, machine berth.MachineID) error {
	if pool, closed := p.closed[poolSite{id, machine}]; closed {
		return fmt.Errorf("pool %s does not take jobs of this tenant", pool)
	}
	if p.tainted[poolSite{id, machine}] {
		return errors.New("the job does not tolerate a taint of the machine")
	}
	if why := p.exposed[poolSite{id, machine}]; why != "" {
		return fmt.Errorf("the machine does not meet the security floors for untrusted tenants: %s", why)
	}
	if p.machines[machine].usedByOther(j.tenant) {
		return errors.New("another tenant uses the machine")
	}
	if w := p.machines[machine].window; w != nil {
		return fmt.Errorf("the machine is in maintenance window %d until %s", w.id, w.until.UTC().Format(time.RFC3339))
	}
	return nil
}

// give returns the capacity of members to their machines.
func (p *present) give(ranks []berth.Grant) {
	for _, r := range ranks {
		p.machines[r.Machine].give(r)
	}
}

// take subtracts one member of job from the machine's free capacity. Capacity nominated for
// other jobs is not available to it. A refused member leaves m unchanged.
func (m *presentMachine) take(r berth.Grant, job berth.JobID, atMostOne bool) error {
	left := m.free
	var kept map[int]int64
	for _, e := range m.kept {
		if e.Beneficiary != job {
			if kept == nil {
				kept = map[int]int64{}
			}
			left = left.Sub(e.Capacity)
			for _, g := range e.GPUs {
				kept[g.Index] += g.Milli
			}
		}
	}
	switch {
	case m.epoch != r.Epoch:
		return fmt.Errorf("the machine is at epoch %d, not %d", m.epoch, r.Epoch)
	case m.state != berth.MachineReady:
		return fmt.Errorf("the machine is %s", m.state)
	case m.engineSilent:
		return errors.New("the machine's container engine does not answer")
	case atMostOne && !m.fences:
		return errors.New("the machine cannot fence at_most_one work any more")
	// Free capacity comes before nominated capacity, for the more precise reason.
	case !r.Capacity.Fits(m.free):
		return errors.New("there is no room any more")
	case !fitsBeside(r.Capacity, left):
		return errors.New("the room is kept for a job that others gave way to")
	}
	for _, g := range r.GPUs {
		if m.healed[g.Index] < g.Milli {
			return fmt.Errorf("GPU %d is taken or not healthy", g.Index)
		}
		if m.healed[g.Index]-kept[g.Index] < g.Milli {
			return fmt.Errorf("GPU %d is kept for a job that others gave way to", g.Index)
		}
		if oneTenants(g) && m.sharers.others(g.Index, g.Tenant) {
			return fmt.Errorf("GPU %d is shared by another tenant", g.Index)
		}
	}
	for _, g := range r.GPUs {
		m.healed[g.Index] -= g.Milli
		m.sharers.add(g.Index, g.Tenant)
	}
	m.free = m.free.Sub(r.Capacity)
	return nil
}

// fitsBeside is Fits for a capacity that may be negative: nominations may exceed the free
// capacity. A resource that is not requested need not be available.
func fitsBeside(c, left berth.Capacity) bool {
	fits := func(asked, left int64) bool { return asked == 0 || asked <= left }
	return fits(c.CPUMilli, left.CPUMilli) && fits(c.MemoryMiB, left.MemoryMiB) && fits(c.DiskMiB, left.DiskMiB) &&
		fits(c.GPUMilli, left.GPUMilli)
}

// give reverts take.
func (m *presentMachine) give(r berth.Grant) {
	for _, g := range r.GPUs {
		m.healed[g.Index] += g.Milli
		m.sharers.remove(g.Index, g.Tenant)
	}
	m.free = m.free.Add(r.Capacity)
}

// sharers lists, by device, the tenants of all shares. The nil map stays empty.
type sharers map[int][]berth.TenantID

// oneTenants reports whether a share may meet shares of its own tenant only. Plans of a cluster with
// this rule name the tenant.
func oneTenants(d berth.DeviceShare) bool { return d.Tenant != "" }

// others reports whether another tenant has a share of the device.
func (s sharers) others(device int, t berth.TenantID) bool {
	return slices.ContainsFunc(s[device], func(o berth.TenantID) bool { return o != t })
}

// add records a share.
func (s sharers) add(device int, t berth.TenantID) {
	if s != nil {
		s[device] = append(s[device], t)
	}
}

// remove reverts add.
func (s sharers) remove(device int, t berth.TenantID) {
	if at := slices.Index(s[device], t); at >= 0 {
		s[device] = slices.Delete(s[device], at, at+1)
	}
}
