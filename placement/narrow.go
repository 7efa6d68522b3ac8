package placement

import (
	"cmp"
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"time"
)

// walk decides about one job after the other until none is left in line, or the
// plan is cut off.
func (r *run) walk() {
	for {
		r.narrow()
		x := r.next()
		if x == nil {
			return
		}
		if most := r.planner.MaxStarts; most > 0 && len(r.plan.Start) >= most {
			r.plan.More = true
			return
		}
		r.decide(x)
	}
}

// maxSkipped is after how many lines passed over it is worth a look which classes
// have no place any more.
const maxSkipped = 8192

// narrow ends the look at classes without a place once all reserved starts and
// all claims are given: nothing can be done for their jobs any more in this plan,
// since room only gets less by what starts. The others go on as if those were not
// there; only the first job of a tenant with quotas is looked at whatever its
// class, to see who waits for them. Of 100,000 jobs that wait for a full cluster,
// few are left.
func (r *run) narrow() {
	if r.repairs || r.heads < r.policy.Backfill || r.claims > 0 || r.narrowed && r.skipped < maxSkipped {
		return // of gangs without a place each is looked at while room is kept for repairs
	}
	again := r.narrowed
	r.narrowed, r.skipped = true, 0
	var alive []*class
	lines, left := 0, 0
	fit := map[likeness]*class{} // the one that asks for most, of those looked at
	for i, c := range r.snapshot.roster {
		if again { // most that are left have a place still
			c = r.snapshot.roster[len(r.snapshot.roster)-1-i]
		}
		if c.ready == 0 {
			continue
		}
		lines += len(c.lines)
		if c.shut == r.number {
			continue
		}
		r.snapshot.settle(c) // what it is like depends on the kinds there are
		if o := fit[c.like]; o != nil && c.closed != r.number && o.members() >= c.members() && o.asksForAll(c) {
			alive, left = append(alive, c), left+len(c.lines)
			continue
		}
		if !r.closed(c) && !r.dead(c) {
			if c.closed != r.number {
				fit[c.like] = c
			}
			alive, left = append(alive, c), left+len(c.lines)
			continue
		}
		if r.planner.Explain && c.closed != r.number {
			r.explain(c)
		}
		r.shut(c)
	}
	if left > lines/16 { // passing over the others costs less than beginning all of these
		r.reseat(&r.root, func(x *seat) {
			x.begun = slices.DeleteFunc(x.begun, func(l *line) bool {
				return r.closed(l.class) && !(l == x.latest && r.stays(x))
			})
			heap.Init(&x.begun)
			r.fetch(x)
		})
		return
	}
	for _, c := range alive {
		for _, l := range c.lines {
			x := r.sits[l.account.index]
			if l.enteredAt != r.number && r.enter(x, l) || l.enteredAt == r.number && !l.over {
				x.rest = append(x.rest, l)
			}
		}
	}
	r.reseat(&r.root, func(x *seat) {
		if r.stays(x) && !slices.Contains(x.rest, x.latest) {
			x.rest = append(x.rest, x.latest)
		}
		x.begun, x.rest, x.lines = x.rest, nil, nil
		heap.Init(&x.begun)
		x.lead()
	})
}

// stays reports whether the seat's next job is looked at although its class has
// no place: for what it shows, or because others of its tenant may not pass it.
func (r *run) stays(x *seat) bool { return r.shows(x) || x.first.overdue && !x.tried }

// reseat lets change see to each seat that has jobs left, and puts all where they
// belong then.
func (r *run) reseat(above *seat, change func(*seat)) {
	list := above.kids.list[:0]
	for _, x := range above.kids.list {
		if x.kids.run != nil {
			r.reseat(x, change)
		} else {
			change(x)
		}
		r.weigh(x)
		if x.first != nil {
			x.index = len(list)
			list = append(list, x)
		}
	}
	above.kids.list = list
	heap.Init(&above.kids)
	r.lead(above)
}

// dead reports whether no job of the class has a place: not now and, since room
// only gets less by what starts, not later in the plan.
func (r *run) dead(c *class) bool {
	if c.closed != r.number && !r.barren(c) {
		return false
	}
	if c.marked == r.number && r.unmet > 0 {
		return false
	}
	if len(c.limits.list) == 0 || r.tooLong(c, c.limits.list[0].at) {
		return true
	}
	r.end = r.now.Add(c.limits.list[0].at)
	_, ok := r.brief(&search{class: c})
	return !ok
}

// shut closes a class of which no job has a place.
func (r *run) shut(c *class) {
	var end time.Time
	if len(c.limits.list) > 0 {
		end = r.now.Add(c.limits.list[0].at)
	}
	c.close(r.number, end)
}

// barren reports whether no machine has room for one member of the class, held
// room aside. It stays so for the epoch, and for every class that may
// use the same machines and asks for no less.
func (r *run) barren(c *class) bool {
	if c.barren == r.epoch {
		return true
	}
	r.snapshot.settle(c)
	known := r.barrens[c.like]
	if !slices.ContainsFunc(known, c.asksForAll) {
		s := search{class: c}
		if s.any() {
			return false
		}
		r.barrens[c.like] = append(known, c)
	}
	c.barren = r.epoch
	return true
}

// asksForAll reports whether the class asks for all that another one asks for.
func (c *class) asksForAll(o *class) bool {
	return o.capacity.Fits(c.capacity) && o.request.GPUs <= c.request.GPUs && o.request.GPUMilli <= c.request.GPUMilli
}

// likeness is equal for classes that may use the same devices of the same
// machines.
type likeness [sha256.Size]byte

// liken works out what the class is like by the kinds it matches.
func (c *class) liken() {
	h := sha256.New()
	var b []byte
	for _, m := range c.matches {
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(m.kind.number))
		h.Write(binary.LittleEndian.AppendUint64(b, m.devices))
	}
	for _, id := range slices.Sorted(slices.Values(c.request.Avoid)) {
		h.Write(append([]byte(id), 0))
	}
	h.Sum(c.like[:0])
}

// enroll lists the class among those to look at, the one that asks for least
// first: if that has no place, many others have none either.
func (s *Snapshot) enroll(c *class) {
	i, _ := slices.BinarySearchFunc(s.roster, c, compareClasses)
	s.roster = slices.Insert(s.roster, i, c)
	c.number = len(s.numbered)
	s.numbered = append(s.numbered, c)
}

// dismiss takes the class enrolled last off the list.
func (s *Snapshot) dismiss(c *class) {
	s.roster = slices.DeleteFunc(s.roster, func(o *class) bool { return o == c })
	s.numbered = s.numbered[:c.number]
}

func compareClasses(a, b *class) int {
	return cmp.Or(
		cmp.Compare(a.capacity.GPUMilli, b.capacity.GPUMilli), cmp.Compare(a.capacity.CPUMilli, b.capacity.CPUMilli),
		cmp.Compare(a.capacity.MemoryMiB, b.capacity.MemoryMiB), strings.Compare(a.name, b.name),
	)
}
