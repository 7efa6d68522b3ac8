package scaler

import (
	"cmp"
	"slices"
	"time"

	"berth"
)

// least returns idling machines to service and launches machines until the pool has the policy's least number. Where
// no offer may be used now, or another limit is reached, it records the number that is missing and the reason.
func (d *decider) least() {
	missing := d.Policy.Min - d.alive(Launching, Ready, Silent)
	for _, m := range d.Machines {
		if missing > 0 && m.State == Idling && d.counts(m.Type) && !slices.Contains(d.Undrain, m.Row.ID) {
			d.Undrain = append(d.Undrain, m.Row.ID)
			missing--
		}
	}
	for ; missing > 0; missing-- {
		if d.MissingWhy = d.launchOne(); d.MissingWhy != "" {
			break
		}
	}
	d.Missing = max(0, missing)
}

// counts reports whether machines of a type count for the least number.
func (d *decider) counts(kind string) bool {
	return d.Policy.MinTypes == nil || slices.Contains(d.Policy.MinTypes, kind)
}

// alive returns the number of machines of the states that count for the least number, with the ones that this
// decision launches and returns.
func (d *decider) alive(states ...MachineState) (n int) {
	for _, m := range d.Machines {
		if d.counts(m.Type) && (slices.Contains(states, m.State) || slices.Contains(d.Undrain, m.Row.ID)) {
			n++
		}
	}
	for _, l := range d.Launches {
		if d.counts(l.Offer.Type) {
			n++
		}
	}
	return n
}

// launchOne launches a machine without a job, of the first offer that the policy and the limits allow. It returns the
// reason why there is none, or "".
func (d *decider) launchOne() NoteCode {
	why := NoteForbid
	var list []choice
	for i, o := range d.Offers {
		switch {
		case !d.permits(o):
		case !d.counts(o.Type):
			why = Later(why, NoteFits)
		case !d.affords(o):
			why = Later(why, NotePrice)
		case !o.Breaker.Allows(d.Now):
			why = Later(why, NoteClosed)
		default:
			list = append(list, choice{i, 1, o.Price})
		}
	}
	if len(list) > 0 {
		why = ""
	}
	for _, c := range d.sorted(list) {
		o := &d.Offers[c.at]
		reserve := o.Price * leastReserved.Hours()
		if refused := d.limit(1, reserve); refused != "" {
			why = cmp.Or(why, refused)
			continue
		}
		d.Launches = append(d.Launches, Launch{Offer: *o, Cost: reserve})
		d.Spent += reserve
		o.Breaker = o.Breaker.Tried()
		return ""
	}
	return why
}

// drain chooses the empty machines to drain, the most expensive and then the newest first. Silent machines do not
// count for the least number here, since they may be lost.
func (d *decider) drain() {
	var list []Machine
	for _, m := range d.Machines {
		if m.State == Ready && !d.used[m.Row.ID] && d.Policy.Expired(m, d.Now) {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b Machine) int {
		return cmp.Or(cmp.Compare(b.Price, a.Price), b.Launched.Compare(a.Launched), cmp.Compare(a.Row.ID, b.Row.ID))
	})
	for alive := d.alive(Launching, Ready); len(list) > 0; list = list[1:] {
		if d.counts(list[0].Type) {
			if alive <= d.Policy.Min {
				continue
			}
			alive--
		}
		d.Drain = append(d.Drain, list[0].Row.ID)
	}
}

// Expired reports whether a machine is empty, and has been for as long as the policy keeps it.
func (p Policy) Expired(m Machine, now time.Time) bool {
	return !m.EmptySince.IsZero() && m.Row.Used == (berth.Capacity{}) && !now.Before(m.EmptySince.Add(p.Keep(m.Price)))
}

// Keep returns the time for which an empty machine of a price is kept.
func (p Policy) Keep(price float64) time.Duration {
	if p.IdleCost <= 0 || price <= 0 {
		return p.Idle
	}
	return max(p.Idle, time.Duration(p.IdleCost/price*float64(time.Hour)))
}
