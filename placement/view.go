package placement

import (
	"math"
	"slices"
	"time"

	"berth"
)

// view is a machine as reservations see it at a glance, in a list of its kind:
// what is free of it at most, step by step as those that hold room give it back.
// Amounts and times are short, so that many views are read quickly.
type view struct {
	moved   bool // the rankings do not go by this yet
	steps   [viewSteps]viewStep
	whole   int32 // devices of which nothing is used
	devices [viewed]tick
}

// viewStep is what is free at most until some time.
type viewStep struct {
	glance
	until tick
}

// viewSteps is how many steps a view tells, and viewAfter after how many of those
// who hold room have gone each of them begins.
const viewSteps = 4

var viewAfter = [viewSteps]int{0, 1, 3, 7}

// viewed is for how many devices a view tells when one more of them is touched
// by a release.
const viewed = 8

// glance is an amount, told shortly: what does not fit by it does not fit.
type glance struct{ cpu, memory, gpu int32 }

// glanceOf returns a capacity as a glance.
func glanceOf(c berth.Capacity) glance {
	return glance{short(c.CPUMilli), short(c.MemoryMiB), short(c.GPUMilli)}
}

// within reports whether so much may be in what is told of o.
func (g glance) within(o glance) bool {
	return g.cpu <= o.cpu && g.memory <= o.memory && g.gpu <= o.gpu
}

// plus adds two glances; sums beyond 32 bits stay at the largest number.
func (g glance) plus(o glance) glance {
	return glance{
		short(int64(g.cpu) + int64(o.cpu)), short(int64(g.memory) + int64(o.memory)), short(int64(g.gpu) +
			int64(o.gpu)),
	}
}

// short is a number, or the nearest that there is.
func short(x int64) int32 { return int32(max(math.MinInt32, min(x, math.MaxInt32))) }

// tick is a time in whole seconds from the origin of ages, rounded down.
type tick int32

// atOnce is before all other seconds, and noTick is after them: never.
const (
	atOnce tick = math.MinInt32
	noTick tick = math.MaxInt32
)

// tickOf returns the tick of a time.
func tickOf(t time.Time) tick { return tickAt(t.Sub(origin)) }

// tickAt is a time, told from the origin of ages, in seconds.
func tickAt(d time.Duration) tick {
	s := d / time.Second
	if d < s*time.Second {
		s--
	}
	return min(tick(short(int64(s))), noTick-1)
}

// latest is the last second in which something may be before a time that bounds
// a look; zero bounds nothing.
func latest(t time.Time) tick {
	if t.IsZero() {
		return noTick - 1
	}
	return tickOf(t)
}

// forKind is the views of one kind, by place in its roster.
type forKind struct {
	kind       *kind
	generation int           // of the roster; the views of another one are void
	assume     time.Duration // the assumption about jobs without limits
	freshAt    int           // the plan that read the feed
	views      []view
	seen       []int32             // places of views that the rankings do not go by yet
	byTime     [1 + viewed]ranking // by view.soonest; empty until it is asked for
}

// forKind returns the views of a kind; void is true if every one must be made.
func (x *releaseIndex) forKind(k *kind) *forKind {
	if k.index >= len(x.kinds) {
		x.kinds = append(x.kinds, make([]*forKind, k.index+1-len(x.kinds))...)
	}
	if f := x.kinds[k.index]; f == nil || f.kind != k {
		x.kinds[k.index] = &forKind{kind: k, generation: -1}
	}
	return x.kinds[k.index]
}

// views lists the machines of a kind for reserved starts. It renews the entries
// of machines that changed since the last plan. The plan itself reads a machine
// that it has touched from the node, and renews its entry in the next plan.
func (r *reservations) views(k *kind) *forKind {
	k.refresh(r.number)
	f := r.index.forKind(k)
	void := f.generation != k.generation || f.assume != r.policy.AssumeRun
	if !void && f.freshAt == r.number {
		return f
	}
	f.freshAt = r.number
	r.index.changed = k.changes(releaseFeed, r.index.changed)
	changed := r.index.changed
	if void {
		f.generation, f.assume = k.generation, r.policy.AssumeRun
		f.seen, f.byTime = f.seen[:0], [1 + viewed]ranking{}
		f.views = slices.Grow(f.views[:0], len(k.members))[:len(k.members)]
		clear(f.views)
		changed = k.members
	}
	for _, n := range changed {
		if n.touched == r.number {
			n.outdateFor(releaseFeed)
			continue
		}
		r.see(f, n)
	}
	return f
}

// byTime ranks the machines of a kind by the first second at which they may have
// the given number of devices for a job that has no room there now.
func (r *reservations) byTime(k *kind, devices int32) (views []view, rank ranking) {
	f := r.views(k)
	views = f.views
	if len(f.seen) > 0 {
		for i := range f.byTime {
			if len(f.byTime[i]) > 0 {
				fresh := r.index.ranks[:0]
				for _, place := range f.seen {
					fresh = append(fresh, standing{timeKey(views[place].soonest(int32(i))), place})
				}
				f.byTime[i].renew(fresh, func(place int32) bool { return !views[place].moved })
				r.index.ranks = fresh
			}
		}
		for _, place := range f.seen {
			views[place].moved = false
		}
		f.seen = f.seen[:0]
	}
	if devices > viewed {
		devices = 0
	}
	x := &f.byTime[devices]
	if len(*x) == 0 {
		for i := range views {
			*x = append(*x, standing{timeKey(views[i].soonest(devices)), int32(i)})
		}
		slices.SortFunc(*x, compareStandings)
	}
	return views, *x
}

// see makes the view of a machine that the plan has not touched.
func (r *reservations) see(f *forKind, n *node) {
	v := &f.views[n.place]
	if !v.moved {
		f.seen = append(f.seen, int32(n.place))
	}
	*v = view{whole: int32(n.has.whole), moved: true}
	ends := r.index.ends[:0] // of the occupants, each with its place in the list
	for i := range n.on.list {
		if at := n.on.list[i].leaves(r.policy.AssumeRun); at != unknown {
			ends = append(ends, timeKey(tickAt(at))<<32|uint64(i))
		}
	}
	slices.Sort(ends)
	r.index.ends = ends
	free, given := n.free, 0
	for i := range v.steps {
		for ; given < min(viewAfter[i], len(ends)); given++ {
			free = free.Add(n.on.list[uint32(ends[given])].frees)
		}
		v.steps[i] = viewStep{glanceOf(free), noTick}
		if given < len(ends) {
			v.steps[i].until = keyTime(ends[given] >> 32)
		}
	}
	i := 0
	for _, x := range ends {
		for range n.on.list[uint32(x)].devices {
			if i < viewed {
				v.devices[i] = keyTime(x >> 32)
				i++
			}
		}
	}
	for ; i < viewed; i++ {
		v.devices[i] = noTick
	}
}

// wish is what a member of a class asks for, told shortly.
type wish struct {
	glance
	devices int32 // of which nothing is used
}

func (c *class) wish() wish {
	w := wish{glance: glanceOf(c.capacity)}
	if c.request.GPUMilli >= whole {
		w.devices = int32(c.request.GPUs)
	}
	return w
}

// soonest is a tick before which there is no room on the machine for anybody
// who asks for so many devices and has none there now.
func (v *view) soonest(devices int32) tick {
	if i := devices - v.whole - 1; i >= 0 && i < viewed {
		return v.devices[i]
	}
	return v.steps[0].until
}

// opens is a tick before which the machine has no room for the wish.
func (v *view) opens(w wish) tick {
	at := atOnce
	for i := range v.steps {
		x := &v.steps[i]
		if w.within(x.glance) {
			break
		}
		at = x.until
	}
	if i := w.devices - v.whole - 1; i >= 0 && i < viewed {
		at = max(at, v.devices[i])
	}
	return at
}
