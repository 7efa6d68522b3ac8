package scheduler

import (
	"context"
	"slices"

	"berth"
	"berth/internal/control/autoscale"
	"berth/internal/control/convert"
	"berth/placement"
	"berth/spec"
)

// ask is a request for a copy of the mirror, see autoscale.CopyMirror.
type ask struct {
	bursts map[berth.TenantID]bool
	reply  chan<- autoscale.Mirror
}

// copy returns a copy of the mirror, for another goroutine. It waits for the end of the present cycle.
// The reply has room for one value, so the placement loop never waits for a caller that has given up.
func (p *placer) copy(ctx context.Context, bursts map[berth.TenantID]bool) (autoscale.Mirror, error) {
	reply := make(chan autoscale.Mirror, 1)
	select {
	case p.asks <- ask{bursts, reply}:
		return <-reply, nil
	case <-ctx.Done():
		return autoscale.Mirror{}, ctx.Err()
	}
}

// copy returns the rows of the mirror. The capacity of starts whose commit is under way counts as used.
// Held jobs, and jobs in backoff, are left out: they wait for something else than a machine. Lists of
// devices are cloned, since the loop changes its own later.
func (m *mirror) copy(bursts map[berth.TenantID]bool) autoscale.Mirror {
	c := autoscale.Mirror{At: m.clock(), Classes: map[string]spec.Request{}, Pools: m.pools, Windows: m.windows}
	at := map[berth.MachineID]int{}
	m.snapshot.EachMachine(func(x placement.Machine) {
		x.GPUs = slices.Clone(x.GPUs)
		at[x.ID] = len(c.Machines)
		c.Machines = append(c.Machines, x)
	})
	for _, s := range m.starting {
		for _, g := range s.Ranks {
			if i, ok := at[g.Machine]; ok {
				use(&c.Machines[i], g)
			}
		}
	}
	m.snapshot.EachRunning(func(r placement.Running) { c.Running = append(c.Running, r) })
	m.snapshot.EachJob(func(j placement.Job) {
		if !j.Held && !j.EligibleAt.After(c.At) {
			j.Alternatives = nil // machines of clouds are launched for the hardware in force alone
			c.Waiting = append(c.Waiting, j)
		}
	})
	c.Waiting = slices.Clip(autoscale.Urgent(c.Waiting, bursts))
	// Only the classes of the copied jobs: a cluster may have thousands of others.
	define := func(class string) {
		if r, ok := placement.RequestOf(m.snapshot, class); ok {
			c.Classes[class] = r
		}
	}
	for _, j := range c.Waiting {
		define(j.Class)
	}
	for _, r := range c.Running {
		define(r.Class)
	}
	for _, row := range m.tenants {
		t, ok := m.snapshot.Tenant(row.ID)
		if !ok {
			t = convert.Tenant(row)
		}
		c.Tenants = append(c.Tenants, t)
	}
	return c
}

// use counts a grant as used in the row of its machine. A device that the row no longer lists is
// ignored.
func use(m *placement.Machine, g berth.Grant) {
	m.Used = m.Used.Add(g.Capacity)
	for _, d := range g.GPUs {
		if i := slices.IndexFunc(m.GPUs, func(x placement.Device) bool { return x.Index == d.Index }); i >= 0 {
			m.GPUs[i].UsedMilli += d.Milli
		}
	}
}
