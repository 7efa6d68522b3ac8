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
	plan    int  // in which something of the machine has changed since
	moved   bool // the rankings of the herd do not go by this yet
	steps   [viewSteps]viewStep
	whole   int32 // devices of which nothing is used
	devices [viewed]second
}

// viewStep is what is free at most until some time.
type viewStep struct {
	glance
	until second
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

func glanceOf(c berth.Capacity) glance {
	return glance{short(c.CPUMilli), short(c.MemoryMiB), short(c.GPUMilli)}
}

// within reports whether so much may be in what is told of o.
func (g glance) within(o glance) bool {
	return g.cpu <= o.cpu && g.memory <= o.memory && g.gpu <= o.gpu
}

func (g glance) plus(o glance) glance {
	return glance{
		short(int64(g.cpu) + int64(o.cpu)), short(int64(g.memory) + int64(o.memory)), short(int64(g.gpu) + int64(o.gpu)),
	}
}

// short is a number, or the nearest that there is.
func short(x int64) int32 { return int32(max(math.MinInt32, min(x, math.MaxInt32))) }

// second is a time in whole seconds from the origin of ages, rounded down.
type second int32

// atOnce is before all other seconds, and noSecond is after them: never.
const (
	atOnce   second = math.MinInt32
	noSecond second = math.MaxInt32
)

func secondOf(t time.Time) second { return secondsOf(t.Sub(origin)) }

// secondsOf is a time, told from the origin of ages, in seconds.
func secondsOf(d time.Duration) second {
	s := d / time.Second
	if d < s*time.Second {
		s--
	}
	return min(second(short(int64(s))), noSecond-1)
}

// latest is the last second in which something may be before a time that bounds
// a look; zero bounds nothing.
func latest(t time.Time) second {
	if t.IsZero() {
		return noSecond - 1
	}
	return secondOf(t)
}

// see makes the entry of a machine that the plan has not changed: who gives back
// what and when is as it was before.
func (r *run) see(n *node) {
	v, h := n.view, &n.listed.herd
	if !v.moved {
		h.seen = append(h.seen, int32(n.place))
	}
	*v = view{whole: int32(n.has.whole), moved: true}
	ends := r.leaving[:0] // of who has the room, each with its place in the list
	for i := range n.on.list {
		if at := n.on.list[i].leaves(r.policy.AssumeRun); at != unknown {
			ends = append(ends, timeKey(secondsOf(at))<<32|uint64(i))
		}
	}
	slices.Sort(ends)
	r.leaving = ends
	free, given := n.free, 0
	for i := range v.steps {
		for ; given < min(viewAfter[i], len(ends)); given++ {
			free = free.Add(n.on.list[uint32(ends[given])].gives)
		}
		v.steps[i] = viewStep{glanceOf(free), noSecond}
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
		v.devices[i] = noSecond
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

// soonest is a second before which there is no room on the machine for anybody
// who asks for so many devices and has none there now.
func (v *view) soonest(devices int32) second {
	if i := devices - v.whole - 1; i >= 0 && i < viewed {
		return v.devices[i]
	}
	return v.steps[0].until
}

// opens is a second before which the machine has no room for the wish.
func (v *view) opens(w wish) second {
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
