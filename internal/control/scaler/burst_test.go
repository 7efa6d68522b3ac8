package scaler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

// queue returns a machine of 8 GPUs whose jobs end after the given hours, a GPU each or all of them, and jobs that wait.
func queue(left map[berth.JobID]time.Duration, running int, gpus int, waiting ...scaler.Job) *scaler.Queue {
	o := offer(8, 0, cloud.OnDemand, "")
	q := &scaler.Queue{Planner: planner(), Classes: map[string]spec.Request{}, Left: func(id berth.JobID, _ int) time.Duration { return left[id] }}
	m := scaler.MachineOf(o.Offer, "m")
	for i := range running {
		request := job("", 1, gpus).Request
		var used []berth.DeviceShare
		for d := range gpus {
			used = append(used, berth.DeviceShare{Index: i*gpus + d, Milli: 1000})
			m.GPUs[i*gpus+d].UsedMilli = 1000
		}
		grant := berth.Grant{Machine: "m", Capacity: berth.Capacity{GPUMilli: int64(gpus) * 1000}, GPUs: used}
		m.Used = m.Used.Add(grant.Capacity)
		q.Classes[request.Class()] = request
		q.Running = append(q.Running, placement.Running{Job: berth.JobID(fmt.Sprint("r", i)), Class: request.Class(), Version: 1, Attempt: 1,
			Ranks: []berth.Grant{grant}})
	}
	q.Machines = []placement.Machine{m}
	for _, w := range waiting {
		w.Class = w.Request.Class()
		q.Classes[w.Class] = w.Request
		q.Waiting = append(q.Waiting, w.Job)
	}
	return q
}

// options returns options of one policy.
func options(cost map[berth.JobID]float64, p scaler.BurstPolicy) map[berth.JobID]scaler.Option {
	list := map[berth.JobID]scaler.Option{}
	for id, c := range cost {
		list[id] = scaler.Option{Cost: c, Policy: p}
	}
	return list
}

// A wide job holds up eight narrow ones: it bursts, and they wait for the machine that it would have taken.
func TestBurstSendsTheJobThatHoldsUpOthers(t *testing.T) {
	t.Parallel()
	left := map[berth.JobID]time.Duration{"r0": time.Hour, "wide": 10 * time.Hour}
	cost := map[berth.JobID]float64{"wide": 200}
	waiting := []scaler.Job{job("wide", 1, 8)}
	waiting[0].SubmittedAt = now.Add(-time.Minute) // and so comes first
	for i := range 8 {
		id := fmt.Sprint("n", i)
		left[berth.JobID(id)], cost[berth.JobID(id)] = time.Hour, 30
		waiting = append(waiting, job(id, 1, 1))
	}
	q := queue(left, 1, 8, waiting...)
	var went []berth.JobID
	for _, v := range scaler.Burst(q, options(cost, scaler.BurstPolicy{HourOfWait: 5}), scaler.Limits{}, now) {
		if v.Burst {
			went = append(went, v.Job)
			if v.Why != scaler.WhySaves || v.Saved < 80*time.Hour {
				t.Errorf("verdict %+v: wanted are 80 hours that others are spared", v)
			}
		}
	}
	if !slices.Equal(went, []berth.JobID{"wide"}) {
		t.Errorf("jobs %v burst: wanted is the wide one", went)
	}
	delete(cost, "wide") // no offer is large enough
	for _, v := range scaler.Burst(q, options(cost, scaler.BurstPolicy{HourOfWait: 1}), scaler.Limits{}, now) {
		if v.Burst || v.Job == "wide" && v.Why != scaler.WhyClosed {
			t.Errorf("verdict %+v: nothing is worth its cost", v)
		}
	}
}

func TestBurstKeepsTheBudget(t *testing.T) {
	t.Parallel()
	q := queue(map[berth.JobID]time.Duration{"r0": time.Hour, "a": time.Hour, "b": time.Hour}, 1, 8, job("a", 1, 8), job("b", 1, 8))
	got := scaler.Burst(q, options(map[berth.JobID]float64{"a": 1e6, "b": 1e6}, scaler.BurstPolicy{Budget: 90 * time.Minute}), scaler.Limits{}, now)
	if got[0].Burst || got[0].Wait != time.Hour || !got[1].Burst || got[1].Why != scaler.WhyBudget || got[1].Wait != 90*time.Minute {
		t.Errorf("verdicts %+v: wanted is the second job, which does not start within the budget", got)
	}
}

// The queue of a caller stays as it was, and no wait is worth a job without a wait.
func TestBurstIsPure(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		left, cost := map[berth.JobID]time.Duration{"r0": time.Hour, "r1": 3 * time.Hour}, map[berth.JobID]float64{}
		var waiting []scaler.Job
		for i := range rapid.IntRange(0, 5).Draw(t, "jobs") {
			id := berth.JobID(fmt.Sprint("j", i))
			left[id] = time.Duration(rapid.IntRange(1, 300).Draw(t, "minutes")) * time.Minute
			cost[id] = rapid.Float64Range(0.1, 100).Draw(t, "cost")
			waiting = append(waiting, job(string(id), 1, rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "gpus")))
		}
		q := queue(left, 2, 4, waiting...)
		p := scaler.BurstPolicy{HourOfWait: rapid.Float64Range(0, 50).Draw(t, "worth")}
		first, used := scaler.Burst(q, options(cost, p), scaler.Limits{}, now), q.Machines[0].Used
		second := scaler.Burst(q, options(cost, p), scaler.Limits{}, now)
		if !slices.Equal(first, second) || q.Machines[0].Used != used || len(q.Waiting) != len(waiting) {
			t.Fatalf("the same queue gave %+v and %+v", first, second)
		}
		for _, v := range first {
			if v.Burst && v.Saved.Hours()*p.HourOfWait <= v.Cost {
				t.Fatalf("%+v costs more than it saves", v)
			}
		}
	})
}

func TestLengths(t *testing.T) {
	t.Parallel()
	l := scaler.Lengths{Prior: time.Hour}
	if l.Mean() != time.Hour {
		t.Errorf("the mean of no jobs is %v", l.Mean())
	}
	for i := range 90 {
		l.Ended(time.Duration(i+1) * time.Minute)
	}
	if want := (90*91/2 + 10*60) * time.Minute / 100; l.Mean() != want {
		t.Errorf("the mean is %v: wanted is %v", l.Mean(), want)
	}
	sum := time.Duration(0)
	for f := range 1000 {
		left := l.Left("a", 30*time.Minute, f)
		if left != l.Left("a", 30*time.Minute, f) || left < time.Second || left > time.Hour {
			t.Fatalf("after 30 minutes, future %d has %v left: the longest job ran for 90 minutes", f, left)
		}
		sum += left
	}
	if mean := sum / 1000; mean < 28*time.Minute || mean > 33*time.Minute {
		t.Errorf("after 30 minutes, %v are left on average: wanted is about half an hour", mean)
	}
}

// The indices of the devices of a machine may have gaps.
func TestBurstReplaysMachinesThatLostADevice(t *testing.T) {
	t.Parallel()
	q := queue(map[berth.JobID]time.Duration{"r0": time.Hour, "a": time.Hour}, 1, 4, job("a", 1, 5))
	m := &q.Machines[0]
	for i := range m.GPUs {
		m.GPUs[i].Index += 9
	}
	for i := range q.Running[0].Ranks[0].GPUs {
		q.Running[0].Ranks[0].GPUs[i].Index += 9
	}
	got := scaler.Burst(q, options(map[berth.JobID]float64{"a": 1}, scaler.BurstPolicy{}), scaler.Limits{}, now)
	if got[0].Wait != time.Hour {
		t.Errorf("verdict %+v: want a wait of an hour", got[0])
	}
}

// chain returns a queue in which jobs of a minute follow each other on one machine.
func chain(jobs int) (q *scaler.Queue, cost map[berth.JobID]float64) {
	left := map[berth.JobID]time.Duration{"r0": time.Minute}
	cost = map[berth.JobID]float64{}
	var waiting []scaler.Job
	for i := range jobs {
		j := job(fmt.Sprintf("j%05d", i), 1, 8)
		j.SubmittedAt = now.Add(time.Duration(i-jobs) * time.Microsecond)
		left[j.ID], cost[j.ID] = time.Minute, 1
		waiting = append(waiting, j)
	}
	return queue(left, 1, 8, waiting...), cost
}

// The plans of a replay of a long queue end at a bound: the later jobs wait at least for the time until then, which is
// no reason to burst.
func TestBurstOfALongQueueDoesNotGuess(t *testing.T) {
	t.Parallel()
	q, cost := chain(600)
	q.Plans = 400
	got := scaler.Burst(q, options(cost, scaler.BurstPolicy{Budget: 24 * time.Hour}), scaler.Limits{}, now)
	for i, v := range got {
		wait, least := time.Duration(i+1)*time.Minute, i >= 398
		if v.Burst || v.Least != least || !least && (v.Wait < wait || v.Wait > wait*9/8) {
			t.Fatalf("job %d: %+v", i, v)
		}
	}
	// Nothing is saved by a job after the bound.
	for _, v := range scaler.Burst(q, options(cost, scaler.BurstPolicy{HourOfWait: 1e-9}), scaler.Limits{Plans: 3000}, now) {
		if v.Burst {
			t.Fatalf("verdict %+v", v)
		}
	}
}

// Every waiting job has a verdict. A job whose budget ends leaves, and the jobs behind it move up.
func TestBurstWeighsAllJobs(t *testing.T) {
	t.Parallel()
	q, cost := chain(200)
	o := options(cost, scaler.BurstPolicy{Budget: 150*time.Minute + 30*time.Second})
	for i, v := range scaler.Burst(q, o, scaler.Limits{}, now) {
		if v.Burst != (i >= 150) || v.Burst && v.Why != scaler.WhyBudget {
			t.Fatalf("job %d: %+v", i, v)
		}
	}
	short := o["j00150"]
	for i := range 100 {
		o[berth.JobID(fmt.Sprintf("j%05d", i))] = scaler.Option{Cost: 1, Policy: scaler.BurstPolicy{Budget: time.Second}}
	}
	o["j00150"] = short
	for i, v := range scaler.Burst(q, o, scaler.Limits{}, now) {
		if v.Burst != (i < 100) || i >= 100 && v.Wait != time.Duration(i-99)*time.Minute {
			t.Fatalf("job %d, without the first hundred: %+v", i, v)
		}
	}
}

// The last job of a queue that is longer than the bound has its turn.
func TestBurstWeighsTenantsInTurn(t *testing.T) {
	t.Parallel()
	q, _ := chain(12)
	cost := map[berth.JobID]float64{}
	for i := range q.Waiting {
		q.Waiting[i].Tenant = berth.TenantID(fmt.Sprint("t", i%3))
		cost[q.Waiting[i].ID] = 1
	}
	went := map[berth.JobID]bool{}
	for turn := range 24 {
		for _, v := range scaler.Burst(q, options(cost, scaler.BurstPolicy{HourOfWait: 1e6}), scaler.Limits{Most: 1, Turn: turn}, now) {
			if v.Burst {
				went[v.Job] = true
			}
		}
	}
	if len(went) != len(q.Waiting) {
		t.Errorf("%d of %d jobs were weighed: %v", len(went), len(q.Waiting), went)
	}
}
