package controlplane

import (
	"fmt"
	"log/slog"
	"time"

	"berth"
	"berth/placement"
)

// Policy is how jobs are ordered and displace each other, as operators say it.
// All replicas should be told the same: any may lead, and any explains.
type Policy struct {
	Order        string        // fair, priority, fifo or srsf
	BandWidth    int           // points of priority in a band
	Aging        time.Duration // of waiting for one more point of priority; 0: none
	AgingCrosses bool          // into higher bands
	HalfLife     time.Duration // of past use; 0: it does not count
	EntryPenalty time.Duration // that each start costs, as if it had run so long
	Backfill     int           // blocked jobs with a reserved start; 0: none
	PreemptAfter time.Duration // of waiting a job displaces others; 0: never
	MinRuntime   time.Duration // before a job can be displaced
	EarmarkFor   time.Duration // room is kept for a job that displaced others
	AssumeRun    time.Duration // of a job without time_limit; 0: for ever
}

func defaultPolicy() Policy {
	return Policy{Order: placement.Fair.String(), BandWidth: 1, HalfLife: berth.DefaultHalfLife, EarmarkFor: 10 * time.Minute}
}

// faults returns all that is wrong with it.
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
	for name, d := range map[string]time.Duration{
		"aging": p.Aging, "half-life": p.HalfLife, "entry-penalty": p.EntryPenalty, "preempt-after": p.PreemptAfter,
		"min-runtime": p.MinRuntime, "earmark-for": p.EarmarkFor, "assume-run": p.AssumeRun,
	} {
		if d < 0 {
			faults = append(faults, fmt.Errorf("%s %s: must not be negative", name, d))
		}
	}
	return faults
}

// placement is the policy as the engine has it. It must be valid.
func (p Policy) placement() placement.Policy {
	order, _ := placement.ParseOrder(p.Order)
	return placement.Policy{
		Order: order, BandWidth: p.BandWidth, Aging: p.Aging, Cross: p.AgingCrosses,
		HalfLife: p.HalfLife, EntryPenalty: p.EntryPenalty, Backfill: p.Backfill,
		Preempt: p.PreemptAfter > 0, PreemptAfter: p.PreemptAfter, MinRuntime: p.MinRuntime, EarmarkFor: p.EarmarkFor,
		AssumeRun: p.AssumeRun, Exponent: 1,
	}
}

// LogValue shows it in one group.
func (p Policy) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("order", p.Order), slog.Int("band_width", p.BandWidth), slog.Duration("aging", p.Aging), slog.Bool("aging_crosses", p.AgingCrosses),
		slog.Duration("half_life", p.HalfLife), slog.Duration("entry_penalty", p.EntryPenalty), slog.Int("backfill", p.Backfill),
		slog.Duration("preempt_after", p.PreemptAfter), slog.Duration("min_runtime", p.MinRuntime), slog.Duration("earmark_for", p.EarmarkFor),
		slog.Duration("assume_run", p.AssumeRun),
	)
}
