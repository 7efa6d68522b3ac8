package backfill

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement/queue"
)

// Endings of one time have one order, in which order they are listed at first.
func TestEndingsHaveOneOrder(t *testing.T) {
	t.Parallel()
	x, y := &queue.Runner{Number: 1}, &queue.Runner{Number: 2}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	list := []ending{{at: now, site: 3}}
	for _, at := range []time.Time{now.Add(time.Hour), now.Add(2 * time.Hour)} {
		for _, runner := range []*queue.Runner{x, y} {
			for _, job := range []berth.JobID{"a", "b", "c"} {
				list = append(list, ending{at: at, site: none, runner: runner, job: job})
			}
		}
		list = append(list, ending{at: at, site: 0}, ending{at: at, site: 1})
	}
	for seed := range uint64(20) {
		got := slices.Clone(list)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		if slices.SortFunc(got, compareEndings); !reflect.DeepEqual(got, list) {
			t.Fatalf("seed %d: %v, want %v", seed, got, list)
		}
	}
}

// A job that returns to its line is at its old place, whichever jobs have left meanwhile.
func TestALineTakesJobsBack(t *testing.T) {
	t.Parallel()
	entry := func(i int) waiter { return waiter{Entry: &queue.Entry{Job: queue.Job{ID: berth.JobID(rune('a' + i))}}} }
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		c := &course{}
		for i := range 20 {
			c.jobs = append(c.jobs, entry(i))
		}
		c.all = c.jobs
		want := slices.Clone(c.jobs)
		var out []waiter
		for range 60 {
			if len(want) == 0 || len(out) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(out))
				w := out[i]
				out = slices.Delete(out, i, i+1)
				c.insert(w)
				at, _ := slices.BinarySearchFunc(want, w, func(a, b waiter) int { return queue.CompareEntries(a.Entry, b.Entry) })
				want = slices.Insert(want, at, w)
			} else {
				c.next = r.IntN(len(want))
				out = append(out, want[c.next])
				want = slices.Delete(want, c.next, c.next+1)
				c.remove()
			}
			if !reflect.DeepEqual(c.jobs, want) {
				t.Fatalf("seed %d: %v, want %v", seed, c.jobs, want)
			}
		}
	}
}
