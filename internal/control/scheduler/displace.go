package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/placement"
)

// displace commits the preemptions of a plan, each as a whole, and marks their jobs to be
// read again before the next plan. A preemption that is no longer valid is skipped: the
// next plan decides again. If the database rejects the data of a preemption, its
// beneficiary preempts no job for a while, and the other preemptions go on.
func (p *placer) displace(ctx context.Context, plan placement.Plan) error {
	for _, d := range preemptions(plan) {
		why, err := p.DB.Queue.CommitPreemption(ctx, p.term, d)
		if db.IsDataError(err) && ctx.Err() == nil {
			// An error of this preemption must not end the term: the next leader would make the same plan.
			pause := p.barred.fail(d.For, time.Now())
			p.Logger.Error("preemption failed, will retry", "job_id", d.For, "victims", len(d.Victims),
				"retry_in", pause, "err", err)
			p.again.Jobs = append(p.again.Jobs, jobsOf(d)...)
			continue
		}
		if err != nil {
			return err
		}
		p.barred.forget(d.For)
		// Also after a refusal: the rows have changed since the plan, and the snapshot must
		// catch up.
		p.again.Jobs = append(p.again.Jobs, jobsOf(d)...)
		victims := jobsOf(d)[1:]
		if why != "" {
			p.Logger.Info("preemption refused", "job_id", d.For, "victims", len(victims), "why", why)
			continue
		}
		if len(victims) == 0 {
			continue // the job's nominations are replaced
		}
		p.Metrics.preempted.Add(float64(len(victims)))
		p.Logger.Info("jobs preempted", "job_id", d.For, "victims", victims)
		// The row orders the victims to stop; the poke only saves their workflows a wait.
		p.Poker.Poke(victims...)
	}
	// Another gang would have room with the capacity that these keep for their repair.
	if len(plan.Yield) > 0 {
		n, err := p.writes.starts.GiveUpRepairs(ctx, p.term, plan.Yield)
		if err != nil {
			return err
		}
		p.Logger.Info("nominations for gang repairs released for another gang",
			"gangs", plan.Yield, "given_up", n)
		p.again.Jobs = append(p.again.Jobs, plan.Yield...)
		p.more = p.more || n > 0 && len(plan.Start) == 0 // plan with the released capacity at once
	}
	if err := p.withdraw(ctx, plan); err != nil || len(plan.Release) == 0 {
		return err
	}
	n, err := p.DB.Queue.ClearNominations(ctx, p.term)
	p.did("earmark", n)
	return err
}

// withdraw deletes the nominations that reserved starts replace. A leader that dies before has changed nothing, and
// its successor makes the same decision. Afterwards the next plan of any leader finds the capacity free, and reserves
// the start again.
func (p *placer) withdraw(ctx context.Context, plan placement.Plan) error {
	if len(plan.Withdraw) == 0 {
		return nil
	}
	list := make([]db.Withdrawal, len(plan.Withdraw))
	jobs := make([]berth.JobID, 0, len(list))
	for i, w := range plan.Withdraw {
		list[i] = db.Withdrawal{Job: w.For, Machine: w.Machine, ExpiresAt: w.ExpiresAt}
		jobs = append(jobs, w.For)
	}
	n, err := p.DB.Queue.WithdrawNominations(ctx, p.term, list)
	if err != nil {
		return err
	}
	jobs = slices.Compact(jobs) // a job has an entry for each machine; Compact clears the rest of the old list
	p.Logger.Info("nominations withdrawn, reserved starts replace them", "jobs", jobs, "withdrawn", n)
	p.again.Jobs = append(p.again.Jobs, jobs...)
	p.more = p.more || n > 0 && len(plan.Start) == 0 // plan with the free capacity at once
	return nil
}

// jobsOf returns the beneficiary of a preemption, followed by the victims.
func jobsOf(d db.Preemption) []berth.JobID {
	jobs := []berth.JobID{d.For}
	for _, v := range d.Victims {
		jobs = append(jobs, v.Job)
	}
	return jobs
}

// preemptions groups a plan's preemptions by their beneficiary, in the plan's order. One
// group is one transaction: its victims release room for that job only.
func preemptions(plan placement.Plan) []db.Preemption {
	var list []db.Preemption
	of := func(id berth.JobID) *db.Preemption {
		i := slices.IndexFunc(list, func(d db.Preemption) bool { return d.For == id })
		if i < 0 {
			list, i = append(list, db.Preemption{For: id}), len(list)
		}
		return &list[i]
	}
	for _, v := range plan.Preempt {
		d := of(v.For)
		d.Victims = append(d.Victims, db.Victim{Job: v.Job, Version: v.Version, Attempt: v.Attempt, Why: because(v)})
	}
	for _, e := range plan.Nominate {
		d := of(e.For)
		d.Nominations = append(d.Nominations, db.Nomination{
			Beneficiary: e.For, Machine: e.Machine, Capacity: e.Capacity, GPUs: e.GPUs, Victim: e.Victim,
			ExpiresAt: e.ExpiresAt,
		})
	}
	return list
}

// because returns the text that a victim's owner sees as the reason of the preemption.
func because(v placement.Preempt) string {
	why := string(v.Why)
	switch v.Why {
	case placement.PreemptBand:
		why = "that one has a higher priority"
	case placement.PreemptShare:
		why = "its tenant has less than its share, this one's more"
	case placement.PreemptQuota:
		why = "its tenant takes back what is guaranteed to it"
	case placement.PreemptRank:
		why = "that one is nearer to its end"
	}
	if v.Lost > 0 {
		why += fmt.Sprintf("; %s of GPU time since its last checkpoint is lost", v.Lost.Round(time.Second))
	}
	return why
}

// stall records the tenants with work that waits only for their quotas, since jobs do not
// age meanwhile. It writes only after a change, at most as often as tenants are read.
func (p *placer) stall(ctx context.Context, plan placement.Plan) error {
	if plan.More || p.mirror.tenantAt.Equal(p.stalledAt) {
		return nil
	}
	p.stalledAt = p.mirror.tenantAt
	changed := false
	for id, row := range p.mirror.tenants {
		changed = changed || slices.Contains(plan.Stalled, id) != (row.StalledSince != nil)
	}
	if !changed {
		return nil
	}
	if err := p.DB.Tenants.SetStalled(ctx, p.term, plan.Stalled); err != nil {
		return err
	}
	return p.mirror.readTenants(ctx)
}

// chargesLimit bounds the charges that one transaction folds.
const chargesLimit = 10_000

// accountsEvery is the interval at which ended work is added to its tenant's usage.
const accountsEvery = time.Second

// keepAccounts adds the charges of ended work to their tenants until the term ends. Charges
// are rows of their own, so that the ends of one tenant's jobs do not wait for each other
// on the tenant's row.
func (s *Scheduler) keepAccounts(ctx context.Context, term db.Term) error {
	for sleep(ctx, accountsEvery) {
		for {
			n, err := s.DB.Tenants.FoldUsage(ctx, term, chargesLimit)
			if err != nil && ctx.Err() == nil {
				s.Logger.Error("cannot charge usage", "err", err)
			}
			if err != nil || n < chargesLimit { // a failure is retried in the next round
				break
			}
		}
		s.foldStorage(ctx, term)
	}
	return ctx.Err()
}

// foldStorage adds changes of stored data to the counters of their tenants.
func (s *Scheduler) foldStorage(ctx context.Context, term db.Term) {
	for {
		n, err := s.DB.Storage.Fold(ctx, term, chargesLimit)
		if err != nil && ctx.Err() == nil {
			s.Logger.Error("cannot add up stored data", "err", err)
		}
		if err != nil || n < chargesLimit {
			return
		}
	}
}
