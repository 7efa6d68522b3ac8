package check

import (
	"maps"
	"math/big"
	"slices"
	"strconv"
	"time"

	"berth"
	"berth/db/history"
)

// launchesArePaid proves invariant 12 for each launch: it has cost its price for its time, rounded up to a whole
// micro-dollar, and money for an hour at least was reserved before it.
func launchesArePaid(c *launchCase) {
	for _, l := range c.l.Launches {
		from := l.CreatedAt
		if l.SentAt != nil {
			from = *l.SentAt
		}
		switch {
		case l.Settled < 0 || l.Reserved < 0:
			c.breach(rows(l), "launch %d has cost %d and reserves %d micro-dollars", l.N, l.Settled, l.Reserved)
		case l.SettledTo == nil && l.Settled != 0:
			c.breach(rows(l), "launch %d has cost %d micro-dollars for no time", l.N, l.Settled)
		case l.SettledTo != nil && apart(l.Settled, cost(l.Price, l.SettledTo.Sub(from))) > 1:
			c.breach(rows(l), "launch %d has cost %d micro-dollars, and $%g an hour for %s are %d", l.N, l.Settled,
				l.Price, l.SettledTo.Sub(from), cost(l.Price, l.SettledTo.Sub(from)))
		case settledLaunch(l) && l.Reserved != 0:
			c.breach(rows(l), "launch %d is %s and reserves %d micro-dollars", l.N, l.State, l.Reserved)
		case l.Tenant == "":
			// Nothing is reserved for launches by hand, and older ones have no costs.
		case l.State == "gone" && l.EndedFirst != nil && l.EndedFirst.After(from) &&
			(l.SettledTo == nil || settledElse(*l.SettledTo, *l.EndedFirst, c.v.o.Skew)):
			c.breach(rows(l), "launch %d ended at %s, and is settled to %v", l.N, l.EndedFirst, l.SettledTo)
		case l.Price <= 0:
			c.breach(rows(l), "launch %d of tenant %s has no price", l.N, l.Tenant)
		case l.Reserved > 0 && l.Reserved+l.Settled < cost(l.Price, time.Hour)-1:
			c.breach(rows(l), "launch %d reserved %d micro-dollars, less than an hour of $%g", l.N,
				l.Reserved+l.Settled, l.Price)
		}
	}
}

// cost returns the cost in micro-dollars, rounded up. The database rounds prices to 15 digits.
func cost(price float64, d time.Duration) int64 {
	if d <= 0 || price <= 0 {
		return 0
	}
	exact, ok := new(big.Rat).SetString(strconv.FormatFloat(price, 'g', 15, 64))
	if !ok {
		return 0
	}
	exact.Mul(exact, big.NewRat(1_000_000*d.Microseconds(), 3600*1_000_000))
	up := new(big.Int).Add(exact.Num(), new(big.Int).Sub(exact.Denom(), big.NewInt(1)))
	return up.Div(up, exact.Denom()).Int64()
}

// apart returns the distance of two amounts.
func apart(a, b int64) int64 {
	if a < b {
		return b - a
	}
	return a - b
}

// settledElse reports whether costs are settled to another time than the end of an instance. They may be settled
// further, if the clock of the database was then ahead of the clock of the read that showed the end.
func settledElse(settled, end time.Time, skew time.Duration) bool {
	return settled.Before(end) || settled.After(end.Add(skew))
}

// spendsAddUp proves invariant 12 for each tenant: the costs of its days equal the costs of its launches, to the last
// micro-dollar. Limits are enforced by the days. Tenants of which one was deleted below another are compared as one.
func spendsAddUp(c *clusterCase) {
	of := heirs(c.c.Tenants)
	sums, proof := map[berth.TenantID]history.Spent{}, map[berth.TenantID][]any{}
	for _, s := range c.c.Spent {
		heir := of(s.Tenant)
		sum := sums[heir]
		sum.Days += s.Days
		sum.Launches += s.Launches
		sums[heir], proof[heir] = sum, append(proof[heir], s)
	}
	for _, heir := range slices.Sorted(maps.Keys(sums)) {
		if s := sums[heir]; s.Days != s.Launches {
			c.breach(proof[heir], "the days of tenant %q, with those of deleted tenants below it, cost %d "+
				"micro-dollars, and their launches %d", heir, s.Days, s.Launches)
		}
	}
}

// heirs returns a function from a tenant to the one that has its costs. The days of a deleted tenant are added to the
// days of its parent, and its launches keep their tenant. A later tenant of the same name is not told apart from it.
func heirs(log []history.TenantChange) func(berth.TenantID) berth.TenantID {
	next := map[berth.TenantID]berth.TenantID{}
	heir := func(t berth.TenantID) berth.TenantID {
		for next[t] != "" {
			t = next[t]
		}
		return t
	}
	for _, t := range log {
		if !t.Deleted || t.Parent == "" {
			continue
		}
		if from, to := heir(t.Tenant), heir(t.Parent); from != to {
			next[from] = to
		}
	}
	return heir
}

// admittedWithin proves invariant 12 for limits. A launch is admitted if the reserved and the settled money stay below
// the limit. At the last admission each launch of the period held at least what it counts here: what it had reserved,
// or its cost as far as an hour's reserve covered it. Launches from before the latest change of the limit, of the
// period or of the tenants below are left out.
func admittedWithin(c *clusterCase) {
	parents, moved := tree(c.c.Tenants)
	for _, limit := range c.c.Limits {
		from := limit.Since
		for _, at := range []time.Time{limit.UpdatedAt, moved} {
			if at = at.Add(launchSlack); at.After(from) {
				from = at
			}
		}
		var held int64
		var proof []any
		for _, l := range c.v.paid {
			if l.CreatedAt.Before(from) || !below(l.Tenant, limit.Tenant, parents) {
				continue
			}
			proof = append(proof, l)
			if l.Reserved > 0 {
				held += l.Reserved + l.Settled
			} else {
				held += min(l.Settled, cost(l.Price, time.Hour))
			}
		}
		if float64(held) > limit.Admits {
			c.breach(append(rows(limit), proof[:min(len(proof), 20)]...),
				"launches of tenant %s and below were admitted for %d micro-dollars, and its limit admits %.0f",
				limit.Tenant, held, limit.Admits)
		}
	}
}

// tree returns the present parents of tenants, and the time of the latest move of a tenant.
func tree(log []history.TenantChange) (parents map[berth.TenantID]berth.TenantID, moved time.Time) {
	parents = map[berth.TenantID]berth.TenantID{}
	for _, t := range log {
		if old, known := parents[t.Tenant]; known && old != t.Parent && t.At.After(moved) {
			moved = t.At
		}
		parents[t.Tenant] = t.Parent
	}
	return parents, moved
}

// below reports whether a tenant is another one, or is below it.
func below(t, above berth.TenantID, parents map[berth.TenantID]berth.TenantID) bool {
	for range len(parents) + 1 {
		if t == above {
			return true
		}
		if t = parents[t]; t == "" {
			return false
		}
	}
	return false
}
