package explain

import (
	"fmt"
	"time"

	"berth"
	"berth/placement/queue"
)

// Deference records the older overdue jobs that younger jobs of the same tenant wait
// for. Only explanations read it.
type Deference struct {
	lines    map[*queue.Line]*queue.Entry    // by the line of the jobs that wait
	accounts map[*queue.Account]*queue.Entry // by the account whose younger jobs wait
}

// Defers records that the jobs of a line wait for an older one.
func (d *Deference) Defers(wanted bool, l *queue.Line, older *queue.Entry) {
	if !wanted {
		return
	}
	if d.lines == nil {
		d.lines = map[*queue.Line]*queue.Entry{}
	}
	d.lines[l] = older
}

// Halts records that the other jobs of a contender wait for one of its jobs.
func (d *Deference) Halts(wanted bool, x *queue.Contender, older *queue.Entry) {
	if !wanted {
		return
	}
	if d.accounts == nil {
		d.accounts = map[*queue.Account]*queue.Entry{}
	}
	d.accounts[x.Account] = older
}

// blocker tells a job that it waits for an older one; ok is false if it does not.
func (d *Deference) blocker(a *queue.Account, e *queue.Entry) (b Blocker, ok bool) {
	if older := d.accounts[a]; older != nil && queue.CompareEntries(older, e) < 0 {
		return Blocker{
			Code: "overdue", Text: "an older job of its tenant is overdue and has no start reserved yet: " +
				"no younger one passes it while the tenant has its part of the cluster",
			Change: "wait: its turn comes after the older one", Jobs: []berth.JobID{older.ID},
		}, true
	}
	if older := d.lines[e.Line]; e.Line != nil && older != nil && older != e {
		return Blocker{
			Code: "overdue", Text: "an older job of its tenant, or of its group, is overdue and has a start " +
				"reserved: with this one too they would have their part of the cluster, " +
				"and other tenants would come before the older one",
			Change: "wait: it may start when the older one has, or when the tenant holds less",
			Jobs:   []berth.JobID{older.ID},
		}, true
	}
	return Blocker{}, false
}

// overdueTerm tells since when the job is overdue, or when it will be, and what
// that changes.
func (r *Reading) overdueTerm(x *queue.Contender, e *queue.Entry) Term {
	p := r.policy
	from := e.OverdueFrom(p).UTC().Format(time.RFC3339)
	switch {
	case e.Held:
		return Term{"overdue", "false", "on hold it does not become overdue"}
	case e.EligibleAt.After(r.Now):
		return Term{"overdue", "false", "it does not become overdue before it may start"}
	case !e.Overdue:
		return Term{"overdue", from,
			"overdue from " + from + " on, if it still waits then: it comes before all of its band that are not"}
	case p.Order != queue.Fair:
		return Term{"overdue", from, "overdue since " + from + ": it comes before all of its band that are not"}
	}
	for ; x != &r.shares.Root; x = x.Parent {
		if held := queue.AmountsOf(x.Held.Capacity).Dominant(r.shares.Owned); held >= x.Part {
			return Term{"overdue", from,
				fmt.Sprintf("overdue since %s: it comes first of its band of %s, "+
					"but not before other tenants' jobs: that holds %s of the cluster, and its part is %s",
					from, x.Account.Name(), percent(held), percent(x.Part))}
		}
	}
	return Term{"overdue", from,
		"overdue since " + from +
			": it comes before all of its band that are not, " +
			"those of other tenants too, since its own holds less than its part of the cluster"}
}
