package placement_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

func (c *conversation) duration(s string) time.Duration {
	c.t.Helper()
	d, err := time.ParseDuration(s)
	c.must(err)
	return d
}

// policy order=fair band=100 aging=1m backfill=4 preempt=yes after=5m ...
func (c *conversation) policy(args map[string]string) {
	c.t.Helper()
	p := &c.planner.Policy
	for k, v := range args {
		switch k {
		case "order":
			o, ok := placement.ParseOrder(v)
			if !ok {
				c.t.Fatalf("no order %q", v)
			}
			p.Order = o
		case "band":
			p.BandWidth = int(c.number(v))
		case "aging":
			p.Aging = c.duration(v)
		case "cross":
			p.Cross = v == "yes"
		case "halflife":
			p.HalfLife = c.duration(v)
		case "penalty":
			p.EntryPenalty = c.duration(v)
		case "backfill":
			p.Backfill = int(c.number(v))
		case "preempt":
			p.Preempt = v == "yes"
		case "after":
			p.PreemptAfter = c.duration(v)
		case "minimum":
			p.MinRuntime = c.duration(v)
		case "outrank":
			p.Outrank = float64(c.milli(v)) / 1000
		case "overdue":
			p.Overdue = c.duration(v)
		case "keep":
			p.NominationFor = c.duration(v)
		case "assume":
			p.AssumeRun = c.duration(v)
		case "exponent":
			p.Exponent = float64(c.milli(v)) / 1000
		default:
			c.t.Fatalf("policy has no %q", k)
		}
	}
}

// tenant a weight=2 gpus=4 guarantee=3 borrow=preemptible running=2 used=12 budget=100 spent=90
func (c *conversation) tenant(name string, args map[string]string) {
	c.t.Helper()
	id := berth.TenantID(name)
	t, _ := c.s.Tenant(id)
	t.ID = id
	for k, v := range args {
		switch k {
		case "parent":
			t.Parent = berth.TenantID(v)
		case "weight":
			t.Weight = float64(c.milli(v)) / 1000
		case "gpus":
			t.Limit.GPUMilli = c.milli(v)
		case "cpus":
			t.Limit.CPUMilli = c.milli(v)
		case "guarantee":
			t.Guarantee.GPUMilli = c.milli(v)
		case "running":
			t.MaxRunning = int(c.number(v))
		case "borrow":
			t.Borrow = map[string]placement.Borrow{"any": placement.BorrowAny, "preemptible": placement.BorrowPreemptible, "nothing": placement.BorrowNothing}[v]
		case "used": // GPU hours that count in full now
			t.Usage = placement.Usage{At: epoch.Add(c.now), GPU: 3600 * float64(c.number(v))}
		case "budget":
			t.Budget.GPUHours = float64(c.number(v))
		case "spent":
			t.Budget.Spent, t.Budget.At = float64(c.number(v)), epoch.Add(c.now)
		default:
			c.t.Fatalf("tenant has no %q", k)
		}
	}
	c.s.UpsertTenant(t)
}

// run makes a started job a holder of its room.
func (c *conversation) run(start berth.Start, j placement.Job) {
	c.s.UpsertRunning(placement.Running{
		Job: j.ID, Tenant: j.Tenant, Class: j.Class, Version: j.Version + 1, Attempt: start.Attempt, Priority: j.Priority,
		Preemptible: j.Preemptible, SubmittedAt: j.SubmittedAt, Ranks: start.Ranks, StartedAt: epoch.Add(c.now),
		TimeLimit: j.TimeLimit, Remaining: j.Remaining, Done: j.Done, Unaged: j.Unaged, Expected: j.Expected, PreemptedFor: j.PreemptedFor,
	})
	c.ran[j.ID] = j
}

// stop takes away the room of a job that ran; one that was preempted waits
// again, at its old place.
func (c *conversation) stop(name string, again bool) {
	c.t.Helper()
	r, ok := c.s.Running(berth.JobID(name))
	if !ok {
		c.t.Fatalf("%s does not run", name)
	}
	c.s.RemoveRunning(r.Job)
	for _, g := range r.Ranks {
		m, _ := c.s.Machine(g.Machine)
		c.s.UpsertMachine(vacate(m, g))
	}
	if again {
		j := c.ran[r.Job]
		j.Attempt, j.PreemptedFor = r.Attempt, r.PreemptedFor
		c.s.UpsertJob(j)
	}
}

func vacate(m placement.Machine, g berth.Grant) placement.Machine {
	m.Used = m.Used.Sub(g.Capacity)
	m.GPUs = slices.Clone(m.GPUs)
	for _, d := range g.GPUs {
		for i := range m.GPUs {
			if m.GPUs[i].Index == d.Index {
				m.GPUs[i].UsedMilli -= d.Milli
			}
		}
	}
	return m
}

// preempt makes the preemptions and nominations of the latest plan true.
func (c *conversation) preempt() {
	for _, p := range c.plan.Preempt {
		r, _ := c.s.Running(p.Job)
		r.Stopping, r.StopBy = true, epoch.Add(c.now+30*time.Second)
		r.PreemptedFor = append(r.PreemptedFor, p.For)
		c.s.UpsertRunning(r)
	}
	c.nominations = slices.DeleteFunc(c.nominations, func(m placement.Nomination) bool {
		return slices.ContainsFunc(c.plan.Release, func(o placement.Nomination) bool {
			return o.For == m.For && o.Machine == m.Machine && o.Victim == m.Victim
		})
	})
	c.nominations = append(c.nominations, c.plan.Nominate...)
	c.s.SetNominations(c.nominations)
}

func showPolicy(p placement.Plan, now time.Duration) string {
	var b strings.Builder
	for _, x := range p.Preempt {
		fmt.Fprintf(&b, "  preempt %s for %s: %s, %s of GPU time lost\n", x.Job, x.For, x.Why, spec.Duration(x.Lost))
	}
	for _, m := range p.Nominate {
		fmt.Fprintf(&b, "  nominate %s for %s:", m.Machine, m.For)
		for _, d := range m.GPUs {
			fmt.Fprintf(&b, " gpu%d", d.Index)
		}
		if m.Victim == "" {
			b.WriteString(" free now\n")
		} else {
			fmt.Fprintf(&b, " from %s\n", m.Victim)
		}
	}
	for _, m := range p.Release {
		fmt.Fprintf(&b, "  release nomination on %s for %s\n", m.Machine, m.For)
	}
	for _, t := range p.Stalled {
		fmt.Fprintf(&b, "  at its limits: %s\n", t)
	}
	for _, e := range p.Estimates {
		when := "unknown"
		if !e.Start.IsZero() {
			when = "at " + spec.Duration(e.Start.Sub(epoch)).String()
		}
		if e.Reserved {
			when += ", reserved"
		}
		fmt.Fprintf(&b, "  %s. %s starts %s\n", strconv.Itoa(e.Position), e.Job, when)
	}
	return b.String()
}

func showWhy(w placement.JobExplanation) string {
	var b strings.Builder
	for _, x := range w.Blockers {
		fmt.Fprintf(&b, "  %s: %s; %s\n", x.Code, x.Text, x.Change)
	}
	for _, x := range w.Terms {
		fmt.Fprintf(&b, "  | %s\n", x.Text)
	}
	for _, x := range w.Data {
		fmt.Fprintf(&b, "  %s holds %s of its data, chosen: %v\n", x.Machine, spec.MiB(x.MiB), x.Chosen)
	}
	fmt.Fprintf(&b, "  %d of %d", w.Position, w.Queue)
	switch {
	case w.StartsNow:
		b.WriteString(", starts now")
	case w.Start.IsZero():
		b.WriteString(", start unknown")
	default:
		fmt.Fprintf(&b, ", starts at %s", spec.Duration(w.Start.Sub(epoch)))
	}
	if w.Reserved {
		b.WriteString(", reserved")
	}
	return b.String() + "\n"
}
