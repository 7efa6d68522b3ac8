package check_test

import (
	"time"

	"berth"
	"berth/db/history"
	"berth/internal/check"
	"berth/internal/control/cloud"
)

// launched is a history with launches: a machine that was launched twice, the first time without an answer that was
// seen later, one that is still serving, and one that a cloud refused.
func launched() check.History {
	s := newStory()
	s.limits("org", "", 100, 100)
	s.limits("team", "org", 100, 100)
	h := s.history()
	h.Cluster.Incarnation = 2
	start := s.at.Add(time.Hour)
	at := func(d time.Duration) *time.Time { t := start.Add(d); return &t }
	one := func(m berth.MachineID, n int, state string, from time.Duration) history.Launch {
		return history.Launch{Machine: m, N: n, State: state, Provider: "lab", Actor: "scaler", Incarnation: 2, Price: 1.5,
			Idempotency: cloud.Token(h.Cluster.ID, "2", m, n), RequestHash: "h", JoinToken: string(m), Sends: 1, Tenant: "team",
			Instance: "i-" + string(m) + state, CreatedAt: *at(from), StateAt: *at(from + time.Minute), SentAt: at(from), LastSentAt: at(from)}
	}
	gone := one("burst-1", 1, "gone", 0)
	gone.Sends, gone.LastSentAt, gone.Terminates, gone.StopAt = 2, at(4*time.Second), 1, at(9*time.Minute)
	gone.JoinedAt, gone.EndedFirst, gone.EndedLast, gone.StateAt = at(time.Minute), at(10*time.Minute), at(11*time.Minute), *at(11 * time.Minute)
	gone.SettledTo, gone.Settled = at(10*time.Minute), 250_000
	again := one("burst-1", 2, "serving", 20*time.Minute)
	again.JoinToken, again.JoinedAt = "second", at(21*time.Minute)
	again.SettledTo, again.Settled, again.Reserved = at(30*time.Minute), 250_000, 1_250_000
	refused := one("burst-2", 1, "failed", 0)
	refused.Refusals, refused.Instance, refused.ErrorKind = 1, "", "quota"
	h.Launched = []history.Launched{
		{Machine: "burst-1", State: berth.MachineReady, Token: "second", Launches: []history.Launch{gone, again}},
		{Machine: "burst-2", Launches: []history.Launch{refused}},
	}
	h.Cluster.Spent = []history.Spent{{Tenant: "team", Days: 500_000, Launches: 500_000}}
	h.Cluster.Limits = []history.SpendLimit{{Tenant: "org", Since: s.at.Add(-time.Hour), UpdatedAt: s.at, Admits: 1_750_000}}
	h.Cluster.Breakers = []history.Breaker{
		{Scope: "offering", Key: "lab/eu//x/spot", Step: 2, Until: at(6 * time.Minute), At: start},
		{Scope: "provider", Key: "lab/eu", Step: 1, Until: at(30 * time.Minute), At: start, Probe: "burst-1/2", ProbeAt: at(31 * time.Minute)},
		{Scope: "pool", Key: "lab/burst", Step: 1, At: start},
		{Scope: "quota", Key: "lab/eu/GPUs", Step: 1, Until: at(30 * time.Minute), At: start, Covers: []string{"lab/eu/x/spot"}},
		{Scope: "throttle", Key: "lab/eu", Step: 1, Until: at(time.Hour), At: start},
	}
	return h
}

// deletedTenants is launched with the costs of ended launches of a deleted tenant, whose parent was deleted too. The
// name of the first one was then used for another tenant.
func deletedTenants() check.History {
	h := launched()
	at := h.Cluster.Tenants[len(h.Cluster.Tenants)-1]
	for _, change := range []history.TenantChange{
		{Tenant: "group", Parent: "org"}, {Tenant: "squad", Parent: "group"},
		{Tenant: "squad", Parent: "group", Deleted: true}, {Tenant: "group", Parent: "org", Deleted: true},
		{Tenant: "squad"},
	} {
		at.Seq++
		change.Seq, change.At = at.Seq, at.At
		h.Cluster.Tenants = append(h.Cluster.Tenants, change)
	}
	h.Cluster.Spent = append([]history.Spent{
		{Tenant: "org", Days: 900}, {Tenant: "group", Launches: 300}, {Tenant: "squad", Days: 50, Launches: 650},
	}, h.Cluster.Spent...)
	return h
}

// settleBeyond settles the launch that is gone for longer than its instance existed, for that many micro-dollars.
func settleBeyond(h *check.History, by time.Duration, costs int64) {
	l := &h.Launched[0].Launches[0]
	to := l.SettledTo.Add(by)
	l.SettledTo, l.Settled = &to, l.Settled+costs
	h.Cluster.Spent[0].Days += costs
	h.Cluster.Spent[0].Launches += costs
	h.Cluster.Limits[0].Admits += float64(costs)
}

// restoredNames are good histories of restored databases, which lack the last change of a machine.
func restoredNames() map[string]check.History {
	joined, retired := launched(), launched()
	joined.Launched[0].Token = "burst-1" // of the launch before the last one
	for i, m := range retired.Launched {
		for j := range m.Launches {
			l := &retired.Launched[i].Launches[j]
			l.Incarnation, l.Idempotency = 1, cloud.Token(retired.Cluster.ID, "1", l.Machine, l.N)
		}
	}
	last := &retired.Launched[1]
	last.State, last.Token, last.Launches[0].JoinedAt = berth.MachineReady, "burst-2", last.Launches[0].SentAt
	return map[string]check.History{"the join of the last launch is lost": joined, "the retirement is lost": retired}
}

// launch returns a function that changes a launch of the history.
func launch(m, n int, f func(*history.Launch)) func(*check.History) {
	return func(h *check.History) { f(&h.Launched[m].Launches[n]) }
}

// badLaunches are histories in which a promise about launches was broken on purpose.
var badLaunches = []bad{
	{18, "a launch is requested before the end of the last one", launched, launch(0, 0, func(l *history.Launch) { l.State = "terminating" })},
	{18, "a launch is requested a minute before the last one ends", launched, launch(0, 1, func(l *history.Launch) {
		l.CreatedAt = l.CreatedAt.Add(-10 * time.Minute)
	})},
	{18, "a number is given twice", launched, launch(0, 1, func(l *history.Launch) { l.N = 1 })},
	{18, "a token of another launch", launched, launch(0, 1, func(l *history.Launch) { l.Idempotency = "x" })},
	{18, "a token of another incarnation", launched, launch(0, 1, func(l *history.Launch) { l.Incarnation = 1 })},
	{18, "an instance of two machines", launched, func(h *check.History) {
		l := h.Launched[0].Launches[1]
		l.Machine, l.N, l.Idempotency = "burst-2", 2, cloud.Token(h.Cluster.ID, "2", "burst-2", 2)
		h.Launched[1].Launches, h.Launched[1].State = append(h.Launched[1].Launches, l), berth.MachineReady
	}},
	{18, "an instance without a send", launched, launch(0, 1, func(l *history.Launch) { l.Sends = 0 })},
	{18, "a send without a request", launched, launch(0, 1, func(l *history.Launch) { l.RequestHash = "" })},
	{18, "more refusals than sends", launched, launch(1, 0, func(l *history.Launch) { l.Refusals = 2 })},
	{18, "a last send before the first", launched, launch(0, 0, func(l *history.Launch) { l.LastSentAt = &time.Time{} })},
	{18, "a send of a launch that is requested", launched, launch(0, 1, func(l *history.Launch) { l.State = "requested" })},
	{18, "an end by one read", launched, launch(0, 0, func(l *history.Launch) { l.EndedLast = l.EndedFirst })},
	{18, "an end without a read", launched, launch(0, 0, func(l *history.Launch) { l.EndedFirst = nil })},
	{18, "a failure with an instance", launched, launch(1, 0, func(l *history.Launch) { l.Instance = "i-1" })},
	{18, "a failure with a send without an answer", launched, launch(1, 0, func(l *history.Launch) { l.Refusals = 0 })},
	{18, "a machine at work without its instance", launched, func(h *check.History) {
		h.Launched[1].State, h.Launched[1].Token = berth.MachineReady, "burst-2"
		h.Launched[1].Launches[0].JoinedAt = h.Launched[1].Launches[0].SentAt
	}},
	{18, "a serving launch without a machine", launched, func(h *check.History) { h.Launched[0].State = "" }},
	{18, "a machine at work is terminated without a request", launched, launch(0, 0, func(l *history.Launch) { l.StopAt = nil })},
	{12, "a cost above price and time", launched, launch(0, 0, func(l *history.Launch) { l.Settled += 2 })},
	{12, "a cost below price and time", launched, launch(0, 1, func(l *history.Launch) { l.Settled -= 2 })},
	{12, "a cost of no time", launched, launch(1, 0, func(l *history.Launch) { l.Settled = 1 })},
	{12, "a reservation of an ended launch", launched, launch(0, 0, func(l *history.Launch) { l.Reserved = 1 })},
	{12, "costs that were not settled to the end", launched, launch(0, 0, func(l *history.Launch) {
		earlier := l.SettledTo.Add(-time.Minute)
		l.SettledTo, l.Settled = &earlier, 225_000
	})},
	{12, "costs that were settled beyond the end", launched, func(h *check.History) {
		settleBeyond(h, 3*time.Second, 1250)
	}},
	{12, "a launch without a price", launched, launch(1, 0, func(l *history.Launch) { l.Price = 0 })},
	{12, "a reservation of less than an hour", launched, launch(0, 1, func(l *history.Launch) { l.Reserved = 1000 })},
	{12, "a negative amount", launched, launch(0, 1, func(l *history.Launch) { l.Reserved = -1 })},
	{12, "days that cost a micro-dollar less", launched, func(h *check.History) { h.Cluster.Spent[0].Days-- }},
	{12, "a day of a deleted tenant is lost", deletedTenants, func(h *check.History) { h.Cluster.Spent[0].Days-- }},
	{12, "costs of a tenant that was not deleted are another tenant's", deletedTenants, func(h *check.History) {
		for i := range h.Cluster.Tenants {
			h.Cluster.Tenants[i].Deleted = false
		}
	}},
	{12, "a launch beyond the limit of a tenant above", launched, func(h *check.History) { h.Cluster.Limits[0].Admits-- }},
	{33, "an offering that is closed for two hours", launched, func(h *check.History) {
		at := h.Cluster.Breakers[0].At.Add(2 * time.Hour)
		h.Cluster.Breakers[0].Until = &at
	}},
	{33, "an offering that is closed for good", launched, func(h *check.History) { h.Cluster.Breakers[0].Until = nil }},
	{33, "a quota that is closed for an hour", launched, func(h *check.History) {
		at := h.Cluster.Breakers[1].At.Add(time.Hour)
		h.Cluster.Breakers[1].Until = &at
	}},
	{33, "a quota with a name that is closed for good", launched, func(h *check.History) { h.Cluster.Breakers[3].Until = nil }},
	{33, "a quota that has refused no offer", launched, func(h *check.History) { h.Cluster.Breakers[3].Covers = nil }},
	{33, "a cloud that throttles for good", launched, func(h *check.History) { h.Cluster.Breakers[4].Until = nil }},
	{33, "a probe without its time", launched, func(h *check.History) { h.Cluster.Breakers[1].ProbeAt = nil }},
	{33, "a refusal without a step", launched, func(h *check.History) { h.Cluster.Breakers[2].Step = 0 }},
	{33, "a pool without a name", launched, func(h *check.History) { h.Cluster.Breakers[2].Key = "lab" }},
	{33, "a probe of a scope that has refused nothing", launched, func(h *check.History) { h.Cluster.Breakers[1].Unset = true }},
}
