package placement

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/queue"
	"berth/spec"
)

// A question about one job estimates the jobs before it and no others, and has the
// answer that a question about all jobs has.
func TestAQuestionAboutOneJobLeavesOutTheJobsBehindIt(t *testing.T) {
	t.Parallel()
	s, now := NewSnapshot(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	request := spec.Request{Members: 1, CPUMilli: 1000, MemoryMiB: 1}
	s.DefineClass("c", request)
	s.UpsertMachine(cluster.Machine{ID: "m", State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 2000, MemoryMiB: 100}})
	const jobs = 1000
	name := func(i int) berth.JobID { return berth.JobID(fmt.Sprintf("j%04d", i)) }
	for i := range jobs {
		s.UpsertJob(queue.Job{ID: name(i), Class: "c", Priority: 500, TimeLimit: time.Hour, SubmittedAt: now.Add(time.Duration(i-jobs) * time.Second)})
	}
	p := Planner{Policy: queue.Policy{Backfill: 1}}
	all := p.Forecast(s, now)
	for i, estimated := range map[int]int{0: 0, 1: 0, 2: 1, 7: 6, jobs - 1: jobs - 2} { // the first two start now
		one := p.forecast(s, now, name(i))
		if len(one.expected) != estimated {
			t.Errorf("for job %d of %d, %d jobs are estimated, want %d", i, jobs, len(one.expected), estimated)
		}
		want, _ := all.Why(name(i))
		if got, ok := one.Why(name(i)); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("job %d: asked alone %+v, with all %+v", i, got, want)
		}
	}
}

// The start of a job lies between strict order and all gaps filled.
func TestAnEstimateLiesBetweenItsBounds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if got := between(now, now.Add(4*time.Hour), now.Add(time.Hour)); got.Sub(now) != 2*time.Hour {
		t.Errorf("between 4 h and 1 h: %s", got.Sub(now))
	}
	if got := between(now, now.Add(4*time.Hour), now); !got.Equal(now) {
		t.Errorf("between 4 h and now: %s", got.Sub(now))
	}
	if got := between(now, time.Time{}, now); !got.IsZero() {
		t.Errorf("with an unknown bound: %s", got)
	}
}

// simulated returns the simulation of the queue of a snapshot, with the plan before it.
func (p Planner) simulated(s *Snapshot, now time.Time) backfill.Simulated {
	r := p.begin(s, now)
	defer r.finish()
	r.open()
	r.walk()
	list := r.waiting(nil)
	return r.newEstimates(list, list, "").simulated
}

// crowd returns a cluster of equal machines of eight cores, each with a job that ends in an hour, and a waiting job
// of each request. Waiting jobs never end.
func crowd(now time.Time, machines, jobs int, request func(i int) spec.Request) *Snapshot {
	s := NewSnapshot()
	for i := range machines {
		m := cluster.Machine{ID: berth.MachineID(fmt.Sprintf("m%04d", i)), Epoch: 1, State: berth.MachineReady,
			Total: berth.Capacity{CPUMilli: 8000, MemoryMiB: 1 << 20}}
		m.Used = m.Total
		s.UpsertMachine(m)
		id := berth.JobID(fmt.Sprintf("r%04d", i))
		s.UpsertRunning(cluster.Running{Job: id, Attempt: 1, Version: 1, StartedAt: now, TimeLimit: time.Hour,
			Ranks: []berth.Grant{{Machine: m.ID, Epoch: 1, Capacity: m.Total}}})
	}
	for i := range jobs {
		class := fmt.Sprintf("c%04d", i)
		s.DefineClass(class, request(i))
		s.UpsertJob(queue.Job{ID: berth.JobID(fmt.Sprintf("j%04d", i)), Class: class, Priority: 500,
			SubmittedAt: now.Add(time.Duration(i-jobs) * time.Second)})
	}
	return s
}

// most is the budget of a simulation, see adr/0102.
const most = 8_000_000

// The search for the machines of each class counts as work of the simulation. If it takes all of the work, no moment
// is decided.
func TestTheSearchForMachinesCounts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	other := func(i int) spec.Request { // no two classes have the same machines
		return spec.Request{Members: 1, CPUMilli: 8000, MemoryMiB: 1, Avoid: []berth.MachineID{
			berth.MachineID(fmt.Sprintf("m%04d", i))}}
	}
	few := Planner{Policy: queue.Policy{Backfill: 1}}.simulated(crowd(now, 1000, 100, other), now)
	if few.Visits < 1000*100 || !few.Complete || len(few.Starts) != 100 {
		t.Errorf("100 classes on 1,000 machines: %d visits, complete: %v, %d starts", few.Visits, few.Complete,
			len(few.Starts))
	}
	many := Planner{Policy: queue.Policy{Backfill: 1}}.simulated(crowd(now, 8000, 1100, other), now)
	if many.Visits < most || many.Visits > most+8000*2 || many.Complete || len(many.Starts) > 0 ||
		!many.Until.Equal(now) {
		t.Errorf("1,100 classes on 8,000 machines: %d visits, complete: %v, %d starts, until %s", many.Visits,
			many.Complete, len(many.Starts), many.Until)
	}
}

// Each choice among the classes of a tenant counts, also if most of the classes have no room.
func TestTheChoiceAmongClassesCounts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const jobs = 1000
	got := Planner{}.simulated(crowd(now, 8, jobs, func(i int) spec.Request {
		return spec.Request{Members: 1, CPUMilli: 8000, MemoryMiB: int64(1 + i)}
	}), now)
	// In an hour eight jobs start, and each of the others is tried and has no room.
	if got.Visits < (jobs-8)*(jobs-8) || got.Visits > most || !got.Complete || len(got.Starts) != 8 {
		t.Errorf("%d visits, complete: %v, %d starts", got.Visits, got.Complete, len(got.Starts))
	}
}
