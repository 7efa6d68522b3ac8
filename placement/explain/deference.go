package explain

import (
	"fmt"
	"time"

	"berth"
	"berth/placement/queue"
)

// Deference records the older overdue jobs for which younger jobs of the same tenant
// wait. Only explanations read it. The zero value is empty.
type Deference struct {
	lines    map[*queue.Line]*queue.Entry    // by the line of the waiting jobs
	accounts map[*queue.Account]*queue.Entry // by the account of the waiting jobs
}

// Defers records that the jobs of a line wait for an older job with a reserved start; see
// queue.Shares.MustYieldTo. It does nothing unless wanted, so that a plan without
// explanations allocates no map.
func (d *Deference) Defers(wanted bool, l *queue.Line, older *queue.Entry) {
	if !wanted {
		return
	}
	if d.lines == nil {
		d.lines = map[*queue.Line]*queue.Entry{}
	}
	d.lines[l] = older
}

// Halts records that the other jobs of a contender wait for one of its jobs, which is
// overdue and has no reserved start yet. It does nothing unless wanted.
func (d *Deference) Halts(wanted bool, x *queue.Contender, older *queue.Entry) {
	if !wanted {
		return
	}
	if d.accounts == nil {
		d.accounts = map[*queue.Account]*queue.Entry{}
	}
	d.accounts[x.Account] = older
}

// blocker returns the blocker of a job that waits for an older overdue job; ok is false
// for any other job.
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

// overdueTerm returns the time from which the job is overdue, with the effect on its
// position. Under the order fair, an overdue job passes jobs of other tenants only while
// each account above it holds less than its part of the cluster.
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
	for ; x != &r.shares.Root; x = x.Parent { // the first account at its part is the reason
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
