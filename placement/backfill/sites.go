package backfill

import (
	"cmp"
	"math"
	"slices"
	"time"

	"berth/placement/cluster"
	"berth/placement/fit"
)

// forever is the run time of a job that never ends.
const forever = time.Duration(math.MaxInt64 / 2)

// site is a machine in a simulation: its free capacity and the changes that are to come. Shares of devices are sums,
// so a site ignores which device a share lies on, and whose it is.
type site struct {
	at     time.Time // only advances
	free   amounts
	next   []change        // by time
	owed   amounts         // sum of the capacity that is to leave the site
	stale  bool            // owed is to be computed
	window *cluster.Window // a maintenance window that is not near; nil: none
}

// search is what a search looks for: room for a job that starts now, or for a reserved start.
type search struct {
	run  time.Duration
	now  bool
	from time.Time // of a reserved start: the earliest one
}

// grounds is the machines of a simulation at its present moment.
type grounds struct {
	*Flow
	now         time.Time
	sites       []site
	byNode      map[*cluster.Node]int32
	reaches     map[*cluster.Class]*reach
	territories map[territory][]ground
	openings    []opening // buffer
	places      []spot    // buffer
	visits      int       // machines, sites, entrants, courses and jobs that the simulation has read
}

// spot is the place of one member of a job.
type spot struct {
	site int32
	need amounts
}

// reach is the sites that the members of a class may use, by group: all members are in one group.
type reach struct {
	groups [][]area
	shut   time.Duration // jobs of this run time and longer ones find no room at the present moment
	closed bool          // no site has free capacity for a member

	refused bool      // the plan has found no room for a job of the class
	from    time.Time // no job starts before; zero: unknown, beyond maxExact classes or maxSearch visits
	never   bool      // no job starts
}

// opens reports whether jobs of the class may start at a time.
func (r *reach) opens(now time.Time) bool { return !r.never && !now.Before(r.from) }

// area is the sites of one part of a class.
type area struct {
	need    amounts // of a member
	members int
	sites   []ground
}

// ground is a site that a class may use, with the devices of the site that the class may use.
type ground struct {
	number  int32
	devices int // index of their amount: gpus, firstGPUs or otherGPUs
}

// needs returns the need of one more member on a site after other members have taken their part.
func (a *area) needs(g ground) amounts {
	need := a.need
	if g.devices != gpus {
		need[g.devices] = need[gpus]
	}
	return need
}

// reachOf returns the reach of a class, computed once.
func (s *grounds) reachOf(c *cluster.Class) *reach {
	if r := s.reaches[c]; r != nil {
		return r
	}
	s.cluster.Settle(c) // the plan may have skipped the class
	r := &reach{shut: forever + 1, refused: s.placer.Closed(c)}
	if len(s.reaches) < maxExact && s.visits < maxSearch {
		before := s.reservations.visits
		r.from, r.never = s.earliest(c)
		s.visits += s.reservations.visits - before
	}
	for _, group := range fit.Roomy(s.placer, c) {
		var list []area
		for _, p := range c.Parts {
			list = append(list, area{needOf(p.Class), p.Members, s.sitesOf(p.Class, group)})
		}
		r.groups = append(r.groups, list)
	}
	s.reaches[c] = r
	return r
}

// sitesOf lists the sites of a group that the members of a class may use. Classes with the same machines share one
// list.
func (s *grounds) sitesOf(c *cluster.Class, group string) []ground {
	key := territory{c.Like, group, c.Gang(), c.Request.SameLabel}
	if list, ok := s.territories[key]; ok {
		return list
	}
	look, list := fit.Search{Class: c, Group: group}, []ground{}
	for _, m := range look.Matches() {
		devices := devicesOf(m)
		all := m.Kind.All(s.Number)
		s.visits += 1 + len(all)
		list = slices.Grow(list, len(all))
		for _, n := range all {
			if i, ok := s.byNode[n]; ok && look.Allows(n) {
				list = append(list, ground{i, devices})
			}
		}
	}
	s.territories[key] = list
	return list
}

// territory identifies the sites of a class in a group.
type territory struct {
	like  cluster.Likeness
	group string
	gang  bool
	label string
}

// opening is a spot with the time from which it has room.
type opening struct {
	at time.Time
	spot
	rank int32 // the least comes first among openings of one time
}

// free is the rank of capacity that no reserved start holds.
const free = math.MaxInt32

// place returns the first time at which some group has room for all members of a job, and their places; ok is false if
// none ever has. A job that starts now may use the capacity of reserved starts until they are due. For a reserved
// start, as in plans, the capacity of the reserved starts before it counts as taken from now on.
func (s *grounds) place(r *reach, w search) (at time.Time, places []spot, ok bool) {
	if r.never || w.now && !r.opens(s.now) {
		return s.now, nil, false
	}
	if w.from.Before(r.from) {
		w.from = r.from
	}
	for _, areas := range r.groups {
		list := s.gather(areas, w)
		if list == nil {
			continue
		}
		last := s.now
		for _, o := range list {
			if o.at.After(last) {
				last = o.at
			}
		}
		if ok && !last.Before(at) {
			continue
		}
		at, places, ok = last, s.places[:0], true
		for _, o := range list {
			places = append(places, o.spot)
		}
		s.places = places
	}
	return at, places, ok
}

// tentative is the number of reservations that hold the members of an area while the next area is searched.
const tentative = -1

// gather returns the openings for all members in one group, or nil.
func (s *grounds) gather(areas []area, w search) []opening {
	list, ok := s.openings[:0], true
	for i := range areas {
		before := len(list)
		if list = s.spread(&areas[i], w, list); len(list) < before+areas[i].members {
			ok = false
			break
		}
		for _, o := range list[before:] {
			if len(areas) > 1 {
				s.reserve(tentative, o.spot, s.now, forever)
			}
		}
	}
	s.openings = list
	for _, o := range list {
		if len(areas) > 1 {
			s.withdraw(tentative, o.site)
		}
	}
	if !ok {
		return nil
	}
	return list
}

// spread appends the first openings for the members of an area to a list, as many as there are. As in plans, held
// capacity comes first, in the order in which starts were reserved, and then the machines with the least free capacity.
func (s *grounds) spread(a *area, w search, list []opening) []opening {
	before := len(list)
	for _, g := range a.sites {
		x, each := s.site(g.number), a.needs(g)
		need := each
		for range a.members {
			var limit time.Time // later openings are useless; zero: none is
			if a.members == 1 && len(list) > before {
				limit = list[before].at
			}
			o, ok := x.open(&need, s.now, w, limit)
			if !ok {
				break
			}
			o.spot = spot{g.number, x.taken(each)}
			list = append(list, o)
			need.add(&each, 1)
		}
		if a.members == 1 && len(list) == before+2 { // no sort for the usual case
			if s.compareOpenings(list[before+1], list[before]) < 0 {
				list[before] = list[before+1]
			}
			list = list[:before+1]
		}
	}
	if found := list[before:]; len(found) > a.members {
		slices.SortStableFunc(found, s.compareOpenings)
		list = list[:before+a.members]
	}
	return list
}

// open returns the opening of a site. For a reserved start it searches up to a limit; zero: without one.
func (x *site) open(need *amounts, now time.Time, w search, limit time.Time) (o opening, ok bool) {
	o = opening{at: now, rank: free}
	if !w.now {
		o.at, ok = x.opening(need, now, limit)
		if o.at.Before(w.from) {
			o.at = w.from
		}
		if ok && x.crosses(o.at, w.run) {
			o.at, ok = x.window.Ends, !x.window.Ends.IsZero()
		}
		return o, ok
	}
	ok, brief := x.admits(need, now, now.Add(w.run))
	if brief {
		for i := range x.next {
			if y := &x.next[i]; y.takes() {
				o.rank = min(o.rank, y.head)
			}
		}
	}
	return o, ok && !x.crosses(now, w.run)
}

// crosses reports whether a job that starts at a time would run into the maintenance window of the site.
func (x *site) crosses(at time.Time, run time.Duration) bool {
	if run >= forever {
		run = 0
	}
	return x.window != nil && x.window.Crosses(at, run)
}

// compareOpenings orders openings by time, rank and free capacity.
func (s *grounds) compareOpenings(a, b opening) int {
	if c := cmp.Or(a.at.Compare(b.at), cmp.Compare(a.rank, b.rank)); c != 0 {
		return c
	}
	x, y := &s.sites[a.site].free, &s.sites[b.site].free
	return cmp.Or(cmp.Compare(x[gpus], y[gpus]), cmp.Compare(x[memory], y[memory]), cmp.Compare(x[cores], y[cores]))
}

// site returns a site at the present moment.
func (s *grounds) site(i int32) *site {
	s.visits++
	x := &s.sites[i]
	if x.at.Before(s.now) {
		s.pass(i)
	}
	return x
}

// pass brings a site to the present moment.
func (s *grounds) pass(i int32) {
	x := &s.sites[i]
	left := len(x.next)
	x.forward(s.now)
	x.stale = x.stale || len(x.next) < left
}

// reserve takes a spot from a time on, for the run of a job, under the number of its reservation.
func (s *grounds) reserve(number int32, o spot, at time.Time, run time.Duration) {
	p := &s.sites[o.site]
	p.stale = true
	p.give(change{at, o.need.negative(), number})
	if run < forever {
		p.give(change{at.Add(run), o.need, number})
	}
}

// withdraw removes the reservations of a number from a site.
func (s *grounds) withdraw(number, site int32) {
	p := &s.sites[site]
	p.next, p.stale = slices.DeleteFunc(p.next, func(x change) bool { return x.head == number }), true
}

// admits reports whether the site has room now for a job that ends at a time: before the first reserved start, which
// is brief, or in addition to all of them.
func (x *site) admits(need *amounts, now, end time.Time) (ok, brief bool) {
	free, first := x.free, true
	for i := 0; ; {
		for ; i < len(x.next) && !x.next[i].at.After(now); i++ { // all of one moment
			free.add(&x.next[i].room, 1)
		}
		if !free.covers(need) {
			return false, false
		}
		if i == len(x.next) {
			return true, false
		}
		now = x.next[i].at
		for j := i; first && j < len(x.next) && x.next[j].at.Equal(now); j++ {
			if x.next[j].takes() {
				if !now.Before(end) {
					return true, true
				}
				first = false
			}
		}
	}
}

// opening returns the first time up to a limit from which the site covers the need for good, if all capacity that is
// to leave it left it now; ok is false if there is no such time. A limit of zero is none.
func (x *site) opening(need *amounts, now, limit time.Time) (at time.Time, ok bool) {
	if x.stale {
		x.owed, x.stale = amounts{}, false
		for i := range x.next {
			if y := &x.next[i]; y.takes() {
				x.owed.add(&y.room, 1)
			}
		}
	}
	room := x.free
	room.add(&x.owed, 1)
	if room.covers(need) {
		return now, true
	}
	for i := range x.next {
		y := &x.next[i]
		if !limit.IsZero() && y.at.After(limit) {
			break
		}
		if y.takes() {
			continue
		}
		if room.add(&y.room, 1); room.covers(need) {
			return y.at, true
		}
	}
	return now, false
}
