package controlplane

import (
	"fmt"
	"log/slog"
	"time"

	"berth/placement"
	"berth/spec"
)

// Policy is the operators' setting of queue order and preemption. All replicas
// should have the same: any replica may lead, and every replica explains.
type Policy struct {
	Order         string        // fair, priority, fifo or srsf
	BandWidth     int           // points of priority in a band
	Aging         time.Duration // of waiting for one more point of priority; 0: none
	AgingCrosses  bool          // into higher bands
	Overdue       time.Duration // of waiting a job comes before others of its band; 0: never
	HalfLife      time.Duration // of past use; 0: it does not count
	EntryPenalty  time.Duration // that each start costs, as if it had run so long
	Backfill      int           // blocked jobs with a reserved start; 0: none
	PreemptAfter  time.Duration // of waiting a job displaces others; 0: never
	MinRuntime    time.Duration // before a job can be displaced
	NominationFor time.Duration // room is kept for a job that displaced others; see minNominationFor
	AssumeRun     time.Duration // of a job without time_limit; 0: no end
	ShareGPUs     bool          // jobs of different tenants may have shares of one GPU
	Exponent      float64       // a in remaining time x GPUs^a, of order srsf
	Outrank       float64       // order srsf: preempt jobs with over this many times the remaining service; 0: none
}

// defaultPolicy is argued for in docs/adr/0010.
func defaultPolicy() Policy {
	return Policy{
		Order: placement.Fair.String(), BandWidth: 100, Aging: time.Hour, Overdue: 24 * time.Hour,
		HalfLife: spec.DefaultHalfLife,
		Backfill: 32, PreemptAfter: 5 * time.Minute, MinRuntime: 10 * time.Minute, NominationFor: 10 * time.Minute,
		Exponent: placement.UsualExponent, Outrank: 2,
	}
}

// Plain is the default policy without reserved starts, preemption and aging: jobs
// are ordered by share, priority and submission alone.
func (p Policy) Plain() Policy {
	p.BandWidth, p.Aging, p.Overdue, p.Backfill, p.PreemptAfter, p.MinRuntime = 1, 0, 0, 0, 0, 0
	return p
}

// minNominationFor is the least duration of a nomination. Nominations must end: after
// the loss of a machine, two jobs may each keep a part of the capacity that both
// need, and would wait for each other without end.
const minNominationFor = time.Minute

// faults returns all faults of the policy.
func (p Policy) faults() []error {
	var faults []error
	if _, ok := placement.ParseOrder(p.Order); !ok {
		faults = append(faults, fmt.Errorf("order %q is not known: allowed are fair, priority, fifo, srsf", p.Order))
	}
	if p.BandWidth < 1 || p.BandWidth > 1001 {
		faults = append(faults, fmt.Errorf("band-width %d: allowed are 1 to 1001", p.BandWidth))
	}
	if p.Backfill < 0 || p.Backfill > 10_000 {
		faults = append(faults, fmt.Errorf("backfill %d: allowed are 0 to 10000", p.Backfill))
	}
	if p.Exponent < 0 || p.Exponent > 2 {
		faults = append(faults, fmt.Errorf("srsf-exponent %g: allowed are 0 to 2", p.Exponent))
	}
	if p.Outrank != 0 && !(p.Outrank >= 1 && p.Outrank <= 1000) {
		faults = append(faults, fmt.Errorf("srsf-outrank %g: allowed are 0, which displaces nobody for that, and 1 "+
			"to 1000", p.Outrank))
	}
	if p.NominationFor >= 0 && p.NominationFor < minNominationFor && p.PreemptAfter > 0 {
		faults = append(faults, fmt.Errorf("nomination-for %s: allowed are %s and more, while jobs displace others "+
			"(preempt-after %s): room that is kept for ever can make two jobs wait for each other",
			p.NominationFor, minNominationFor, p.PreemptAfter))
	}
	for name, d := range map[string]time.Duration{
		"aging": p.Aging, "overdue": p.Overdue, "half-life": p.HalfLife, "entry-penalty": p.EntryPenalty,
		"preempt-after": p.PreemptAfter,
		"min-runtime":   p.MinRuntime, "nomination-for": p.NominationFor, "assume-run": p.AssumeRun,
	} {
		if d < 0 {
			faults = append(faults, fmt.Errorf("%s %s: must not be negative", name, d))
		}
	}
	return faults
}

// placement converts a valid policy for the placement engine.
func (p Policy) placement() placement.Policy {
	order, _ := placement.ParseOrder(p.Order)
	return placement.Policy{
		Order: order, BandWidth: p.BandWidth, Aging: p.Aging, Cross: p.AgingCrosses,
		HalfLife: p.HalfLife, EntryPenalty: p.EntryPenalty, Backfill: p.Backfill,
		Preempt: p.PreemptAfter > 0, PreemptAfter: p.PreemptAfter, MinRuntime: p.MinRuntime,
		NominationFor: p.NominationFor,
		AssumeRun:     p.AssumeRun, Overdue: p.Overdue, Exponent: p.Exponent, Outrank: p.Outrank,
		KeepTenantsApart: !p.ShareGPUs,
	}
}

// LogValue logs the policy as one group.
func (p Policy) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("order", p.Order), slog.Int("band_width", p.BandWidth), slog.Duration("aging", p.Aging),
		slog.Bool("aging_crosses", p.AgingCrosses),
		slog.Duration("half_life", p.HalfLife), slog.Duration("entry_penalty", p.EntryPenalty),
		slog.Int("backfill", p.Backfill),
		slog.Duration("preempt_after", p.PreemptAfter), slog.Duration("min_runtime", p.MinRuntime),
		slog.Duration("nomination_for", p.NominationFor),
		slog.Duration("assume_run", p.AssumeRun), slog.Duration("overdue", p.Overdue),
		slog.Bool("share_gpus_across_tenants", p.ShareGPUs),
		slog.Float64("srsf_exponent", p.Exponent), slog.Float64("srsf_outrank", p.Outrank),
	)
}
