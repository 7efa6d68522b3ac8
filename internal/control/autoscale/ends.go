package autoscale

import (
	"slices"
	"time"

	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
)

// stop chooses machines that have been drained for idleness for long enough.
func (p *pass) stop() {
	for _, l := range p.Fleet {
		if l.State != cloud.LaunchServing || !l.StopAt.IsZero() || l.DrainActor != db.ScalerActor ||
			l.DrainedAt.IsZero() || slices.Contains(p.out.Undrain, l.Machine) {
			continue
		}
		if due := l.DrainedAt.Add(IdlingFor); p.Now.Before(due) {
			expect(p, due)
		} else {
			p.out.Stop = append(p.out.Stop, l.Machine)
		}
	}
}

// expectDrains records when the policy ends the time of each empty machine of a pool.
func expectDrains(p *pass, in scaler.Input) {
	for _, m := range in.Machines {
		if m.State == scaler.Ready && !m.EmptySince.IsZero() {
			expect(p, m.EmptySince.Add(in.Policy.Keep(m.Price)))
		}
	}
}

// expect records a time at which an act will be due. A time that has passed is left out: the act was refused or is not
// allowed, so an early pass would not help.
func expect(p *pass, due time.Time) {
	if due.After(p.Now) && (p.out.Due.IsZero() || due.Before(p.out.Due)) {
		p.out.Due = due
	}
}
