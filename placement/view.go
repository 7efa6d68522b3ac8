package placement

import (
	"math"
	"time"

	"berth"
)

// view is a machine as reservations see it at a glance, in a list of its kind.
type view struct {
	node    *node
	plan    int // in which something of the machine has changed since
	free    berth.Capacity
	first   time.Duration // from now until room is given back first
	whole   int           // devices of which nothing is used
	devices [viewed]time.Duration
}

// viewed is for how many devices a view tells when one more of them is touched
// by a release.
const viewed = 8

// unbounded is longer than all times.
const unbounded = time.Duration(math.MaxInt64)

// until is how long it is to a time that bounds a look; zero bounds nothing.
func (r *run) until(t time.Time) time.Duration {
	if t.IsZero() {
		return unbounded
	}
	return t.Sub(r.now)
}

// views lists the machines of a kind as k.all does.
func (r *run) views(k *kind) []view {
	if k.viewsAt == r.number {
		return k.views
	}
	k.views, k.viewsAt = k.views[:0], r.number
	for _, n := range k.all(r.number) {
		v := view{node: n, free: n.free, first: unbounded, whole: n.has.whole}
		if agenda := r.agenda(n); len(agenda) > 0 {
			v.first = r.from(agenda[0].at).Sub(r.now)
		}
		for i := range v.devices {
			v.devices[i] = unbounded
			if i < len(n.devicesFree) {
				v.devices[i] = r.from(n.devicesFree[i]).Sub(r.now)
			}
		}
		if n.touched == r.number {
			v.plan = r.number
		}
		k.views = append(k.views, v)
	}
	for i := range k.views {
		k.views[i].node.view = &k.views[i]
	}
	return k.views
}

// mayOpen rules out machines where the class finds no room before the limit.
func (v *view) mayOpen(c *class, limit time.Duration) bool {
	if limit == unbounded || c.capacity.Fits(v.free) {
		return true
	}
	if v.first >= limit {
		return false
	}
	if c.request.GPUMilli < whole || c.request.GPUs == 0 {
		return true
	}
	i := c.request.GPUs - v.whole - 1
	return i < 0 || i >= viewed || v.devices[i] < limit
}
