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
			Code: "overdue", Text: "an older job of the tenant is overdue and has no reserved start yet; " +
				"younger jobs wait for it while the tenant uses its share of the cluster",
			Short:  olderFirst,
			Change: "wait until the older job has started", Jobs: []berth.JobID{older.ID},
		}, true
	}
	if older := d.lines[e.Line]; e.Line != nil && older != nil && older != e {
		return Blocker{
			Code: "overdue", Text: "an older job of the tenant, or of its parent, is overdue and has a reserved " +
				"start; starting this one too would exceed the tenant's share and delay the older job",
			Short:  olderFirst,
			Change: "wait until the older job has started, or the tenant uses less",
			Jobs:   []berth.JobID{older.ID},
		}, true
	}
	return Blocker{}, false
}

// olderFirst is the short text of the blocker overdue.
const olderFirst = "an older, overdue job of the tenant goes first"

// overdueTerm returns the time from which the job is overdue, with the effect on its
// position. Under the order fair, an overdue job passes jobs of other tenants only while
// each account above it holds less than its part of the cluster.
func (r *Reading) overdueTerm(x *queue.Contender, e *queue.Entry) Term {
	p := r.policy
	from := e.OverdueFrom(p).UTC().Format(time.RFC3339)
	date := e.OverdueFrom(p).UTC().Format("2006-01-02 15:04Z")
	switch {
	case e.Held:
		return Term{"overdue", "false", "a held job does not become overdue"}
	case e.EligibleAt.After(r.Now):
		return Term{"overdue", "false", "a job in backoff does not become overdue"}
	case !e.Overdue:
		return Term{"overdue", from,
			"becomes overdue on " + date + " if still waiting, and then goes first within its priority band"}
	case p.Order != queue.Fair:
		return Term{"overdue", from, "overdue since " + date + ": goes first within its priority band"}
	}
	for ; x != &r.shares.Root; x = x.Parent { // the first account at its part is the reason
		if held := queue.AmountsOf(x.Held.Capacity).Dominant(r.shares.Owned); held >= x.Part {
			return Term{"overdue", from,
				fmt.Sprintf("overdue since %s: goes first within its priority band among the jobs of %s, but not "+
					"before other tenants, since %s uses %s of the cluster and its share is %s",
					date, x.Account.Name(), x.Account.Name(), percent(held), percent(x.Part))}
		}
	}
	return Term{"overdue", from,
		"overdue since " + date + ": goes first within its priority band, also before other tenants, " +
			"since its tenant uses less than its share of the cluster"}
}
