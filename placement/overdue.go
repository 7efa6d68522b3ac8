package placement

import (
	"fmt"
	"time"

	"berth"
)

// vow notes that an overdue job of the seat has a start reserved.
func (r *run) vow(x *seat, e *entry) {
	if !e.overdue || r.policy.Order != Fair {
		return
	}
	for ; x != &r.root; x = x.parent {
		x.vowed = x.vowed.plus(amountsOf(e.class.all), 1)
		if x.vowedTo == nil {
			x.vowedTo = e
		}
	}
}

// costsPlace reports for whom a job must wait: an older one of its tenant, or of
// a group that the tenant is in, that is overdue and has a start reserved; nil if
// there is none. With the younger one they would hold their part, and the older
// one would come before other tenants' jobs no longer. Those would have its start
// reserved for themselves in the next plan, and so again whenever it is reserved
// anew. Who has the cluster to itself need not wait, and neither need one for whom
// room is kept.
func (r *run) costsPlace(x *seat, e *entry) (older *entry) {
	if len(r.marks[e.ID]) > 0 {
		return nil
	}
	for ; x != &r.root; x = x.parent {
		if x.vowed == (amounts{}) || x.part >= 1 {
			continue
		}
		if amountsOf(x.held.Capacity).plus(x.vowed, -1).plus(amountsOf(e.class.all), 1).dominant(r.owned) >= x.part {
			return x.vowedTo
		}
	}
	return nil
}

// deference is who of a tenant waits for an older job of it that is overdue.
type deference struct {
	lines map[*line]*entry    // whose jobs cost the older one its place
	seats map[*account]*entry // whose younger jobs do not pass it
}

// defers notes that jobs of a line wait for an older one. Only estimates tell.
func (r *run) defers(l *line, older *entry) {
	if !r.planner.Estimate {
		return
	}
	if r.deference.lines == nil {
		r.deference.lines = map[*line]*entry{}
	}
	r.deference.lines[l] = older
}

// halts notes that all that is left of a seat waits for a job of it.
func (r *run) halts(x *seat, older *entry) {
	if !r.planner.Estimate {
		return
	}
	if r.deference.seats == nil {
		r.deference.seats = map[*account]*entry{}
	}
	r.deference.seats[x.account] = older
}

// blocker tells a job that it waits for an older one; ok is false if it does not.
func (d *deference) blocker(a *account, e *entry) (b Blocker, ok bool) {
	if older := d.seats[a]; older != nil && compareEntries(older, e) < 0 {
		return Blocker{
			Code: "overdue", Text: "an older job of its tenant is overdue and has no start reserved yet: no younger one passes it while the tenant has its part of the cluster",
			Change: "wait: its turn comes after the older one", Jobs: []berth.JobID{older.ID},
		}, true
	}
	if older := d.lines[e.line]; e.line != nil && older != nil && older != e {
		return Blocker{
			Code: "overdue", Text: "an older job of its tenant, or of its group, is overdue and has a start reserved: with this one too they would have their part of the cluster, and other tenants would come before the older one",
			Change: "wait: it may start when the older one has, or when the tenant holds less", Jobs: []berth.JobID{older.ID},
		}, true
	}
	return Blocker{}, false
}

// overdueTerm tells since when the job is overdue, or when it will be, and what
// that changes.
func (r *run) overdueTerm(x *seat, e *entry) Term {
	p := &r.policy
	from := e.overdueFrom(p).UTC().Format(time.RFC3339)
	switch {
	case e.Held:
		return Term{"overdue", "false", "on hold it does not become overdue"}
	case e.EligibleAt.After(r.now):
		return Term{"overdue", "false", "it does not become overdue before it may start"}
	case !e.overdue:
		return Term{"overdue", from, "overdue from " + from + " on, if it still waits then: it comes before all of its band that are not"}
	case p.Order != Fair:
		return Term{"overdue", from, "overdue since " + from + ": it comes before all of its band that are not"}
	}
	for ; x != &r.root; x = x.parent {
		if held := amountsOf(x.held.Capacity).dominant(r.owned); held >= x.part {
			return Term{"overdue", from, fmt.Sprintf("overdue since %s: it comes first of its band of %s, but not before other tenants' jobs: that holds %s of the cluster, and its part is %s",
				from, x.account.name(), percent(held), percent(x.part))}
		}
	}
	return Term{"overdue", from, "overdue since " + from + ": it comes before all of its band that are not, those of other tenants too, since its own holds less than its part of the cluster"}
}

// name of the account for people.
func (a *account) name() string {
	if !a.known {
		return "the tenants without a row"
	}
	return "tenant " + string(a.ID)
}
