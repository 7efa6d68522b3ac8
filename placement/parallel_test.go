package placement_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// Whatever comes and goes, and whatever else is decided, no more elements of a
// parent hold room than may at once; and they are not kept from what there is.
func TestNoMoreElementsHoldRoomThanMay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := placement.NewSnapshot()
		now := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
		total := berth.Capacity{CPUMilli: 8000, MemoryMiB: 8000}
		used := berth.Capacity{}
		machine := func() {
			s.UpsertMachine(placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, Total: total, Used: used})
		}
		machine()
		one := spec.Request{CPUMilli: 1000, MemoryMiB: 100, Members: 1}
		s.DefineClass("c", one)
		limits := map[berth.JobID]int{"": 0, "a": rapid.IntRange(1, 4).Draw(t, "limit of a"), "b": rapid.IntRange(1, 9).Draw(t, "limit of b")}
		holding := map[berth.JobID]int{}
		parents := map[berth.JobID]berth.JobID{}
		waiting := map[berth.JobID]bool{}
		running := map[berth.JobID]placement.Running{}
		planner := placement.Planner{Policy: placement.Policy{
			Order: placement.Fair, BandWidth: 100, Backfill: rapid.IntRange(0, 3).Draw(t, "backfill"), Preempt: rapid.Bool().Draw(t, "preempt"), AssumeRun: time.Hour,
		}}
		for step := range rapid.IntRange(1, 25).Draw(t, "steps") {
			for range rapid.IntRange(0, 6).Draw(t, "new") {
				id := berth.JobID(fmt.Sprintf("j%04d", len(parents)))
				parent := rapid.SampledFrom([]berth.JobID{"", "a", "b"}).Draw(t, "parent")
				parents[id], waiting[id] = parent, true
				s.UpsertJob(placement.Job{
					ID: id, Class: "c", Parent: parent, Parallel: limits[parent], Priority: rapid.SampledFrom([]int{100, 500}).Draw(t, "priority"),
					Preemptible: true, SubmittedAt: now.Add(time.Duration(step) * time.Second),
				})
			}
			plan := planner.Plan(s, now.Add(time.Duration(step)*time.Minute))
			for _, start := range plan.Start {
				p := parents[start.Job]
				if holding[p]++; limits[p] > 0 && holding[p] > limits[p] {
					t.Fatalf("%d elements of %q hold room, at most %d may", holding[p], p, limits[p])
				}
				delete(waiting, start.Job)
				s.RemoveJob(start.Job)
				used = used.Add(one.Capacity())
				running[start.Job] = placement.Running{Job: start.Job, Parent: p, Class: "c", Ranks: start.Ranks, StartedAt: now, Preemptible: true}
				s.UpsertRunning(running[start.Job])
			}
			machine()
			if used.CPUMilli+1000 <= total.CPUMilli {
				for id := range waiting {
					if p := parents[id]; limits[p] == 0 || holding[p] < limits[p] {
						t.Fatalf("job %s of %q waits, although there is room and %d of %d hold some", id, p, holding[p], limits[p])
					}
				}
			}
			for id := range waiting {
				w, ok := planner.Why(s, id, now.Add(time.Duration(step)*time.Minute))
				p, says := parents[id], false
				for _, b := range w.Blockers {
					says = says || b.Code == "parallel"
				}
				if full := limits[p] > 0 && holding[p] >= limits[p]; !ok || says != full {
					t.Fatalf("job %s of %q, of which %d of %d hold room: %+v", id, p, holding[p], limits[p], w.Blockers)
				}
				break
			}
			for id, r := range running {
				if rapid.Bool().Draw(t, "ends") {
					s.RemoveRunning(id)
					delete(running, id)
					holding[r.Parent]--
					used = used.Sub(one.Capacity())
				}
			}
			machine()
		}
	})
}
