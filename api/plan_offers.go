package api

import (
	"context"
	"fmt"
	"time"

	"berth/internal/control/autoscale"
	"berth/internal/control/explain"
	"berth/internal/control/scaler"
	"berth/wire"
)

// offers returns the places for a job: here, the machines that exist, and then the offers of clouds
// that the policy of the job's tenant allows and on which the job fits. note is the reason why there is
// no offer. A quote is no reservation: prices and capacity are of this moment.
func (h *planHandlers) offers(ctx context.Context, j autoscale.Quoted, here wire.PlanOffer) (
	list []wire.PlanOffer, note string, err error) {
	quotes, err := h.quoter.Of(ctx, j)
	if err != nil {
		return nil, "", err
	}
	// The machines that exist come first: they cost no launch.
	list = []wire.PlanOffer{here}
	now := time.Now()
	for _, q := range quotes.List {
		list = append(list, planOffer(q, now))
	}
	switch {
	case quotes.Left > 0:
		note = fmt.Sprintf("%d more offers are not listed", quotes.Left)
	case quotes.Why != "":
		note = cloudTexts[string(quotes.Why)].text
	}
	return list, note, nil
}

// planOffer returns a quote as users see it. An offer that is refused now has a reason and no start.
// Prices are in US dollars an hour, costs in US dollars for the whole run.
func planOffer(q autoscale.Quote, now time.Time) wire.PlanOffer {
	o := q.Offer
	out := wire.PlanOffer{Provider: o.Provider, Region: o.Region, Zone: o.Zone, Machine: o.Type, Machines: q.Machines,
		CPUs: float64(o.CPUs), MemoryMiB: o.MemoryMiB, GPUs: o.GPUs, GPUType: o.GPUType, Market: string(o.Market),
		Price: max(0, o.Price), JobCost: q.Cost, Code: string(q.Refused), Source: o.Source}
	if !o.AsOf.IsZero() {
		out.AsOf = known(o.AsOf)
	}
	if q.Boot > 0 && q.Refused == "" {
		out.Starts = known(now.Add(q.Boot))
	}
	if q.Refused == "" {
		return out
	}
	out.Note = cloudTexts[string(q.Refused)].text
	// Only a closed offer has an end to report; other refusals last until a setting changes.
	if q.Refused != scaler.NoteClosed {
		return out
	}
	switch {
	case q.Closed == "":
		out.Note = "another launch tries it"
	case q.Part != "":
		out.Note = fmt.Sprintf("such machines are not launched now (closed: %s): %s", q.Part, q.Closed)
	default:
		out.Note = "not launched now: " + q.Closed // a refusal, a preemption, or machines that did not join
	}
	if q.Closed != "" && q.Until.IsZero() {
		out.Note += "; closed until its settings change or a launch succeeds"
	}
	// The time at which the breaker lets one launch try again.
	out.Until = known(q.Until)
	return out
}

// existing returns the place of a new job on the machines that exist, with the price of their pool.
// The price is of one member, the cost of all members together; a pool without a price has neither.
func existing(w explain.Prospect, p wire.Plan, run time.Duration) wire.PlanOffer {
	out := wire.PlanOffer{Provider: wire.OnPremises, Starts: p.EstimatedStart}
	if p.StartsNow {
		out.Starts = known(time.Now())
	}
	if m := w.Best; m.ID != "" {
		out.Machine, out.Region, out.Market = string(m.ID), m.Region, m.Market
		out.CPUs, out.MemoryMiB, out.GPUs = float64(m.Total.CPUMilli)/1000, m.Total.MemoryMiB, len(m.GPUs)
		if len(m.GPUs) > 0 {
			out.GPUType = m.GPUs[0].Model
		}
	}
	// CostPerHour is the cost of all members.
	if members := max(1, p.Spec.Members); w.CostPerHour > 0 {
		out.Price, out.JobCost = w.CostPerHour/float64(members), w.CostPerHour*run.Hours()
	}
	if len(p.Blockers) > 0 {
		out.Code, out.Note = p.Blockers[0].Code, p.Blockers[0].Message
	}
	return out
}
