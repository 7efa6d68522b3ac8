package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"berth"
	"berth/placement"
)

// cluster holds the machines and the engine that places arrivals on their GPUs.
type cluster struct {
	snapshot *placement.Snapshot
	engine   placement.Engine
	now      time.Time
	classes  map[string]string // class of a request, by pod.shape

	machines             int
	capacity             int64 // GPU milli of all machines
	asked, placed        int64 // GPU milli, summed over pods
	askedPods, placedPod int
}

// placedPod is the placement of one arrival. An empty node means that it was dropped.
type placedPod struct {
	pod     string
	node    berth.MachineID
	devices []int // indexes of its GPUs
}

// newCluster returns a cluster without jobs. With a nil mix, the engine learns the
// frequencies of requests from the arrivals.
func newCluster(machines []placement.Machine, mix *placement.Mix) *cluster {
	c := &cluster{
		snapshot: placement.NewSnapshot(),
		engine:   placement.Planner{MaxStarts: 1, Pack: placement.LeastFragmentation},
		now:      time.Unix(0, 0).UTC(),
		classes:  map[string]string{},
		machines: len(machines),
	}
	if mix != nil {
		c.snapshot.UseMix(mix)
	}
	for _, m := range machines {
		c.snapshot.UpsertMachine(m)
		c.capacity += m.Total.GPUMilli
	}
	return c
}

// arrive submits one arrival to the engine and applies the resulting plan. The engine
// decides once: an arrival without a start is dropped and does not wait.
func (c *cluster) arrive(p pod) placedPod {
	c.askedPods++
	c.asked += p.request.Capacity().GPUMilli
	// Equal requests share one class, as jobs in production do: the planner tests a class
	// once.
	class, ok := c.classes[p.shape]
	if !ok {
		class = p.request.Class()
		c.classes[p.shape] = class
		c.snapshot.DefineClass(class, p.request)
	}
	// A second per arrival keeps the submission times distinct and in order.
	c.now = c.now.Add(time.Second)
	id := berth.JobID(p.name)
	c.snapshot.UpsertJob(placement.Job{ID: id, Class: class, Version: 1, SubmittedAt: c.now, EligibleAt: c.now})
	plan := c.engine.Plan(c.snapshot, c.now)
	c.snapshot.RemoveJob(id) // started or dropped
	to := placedPod{pod: p.name}
	for _, s := range plan.Start {
		grant := s.Ranks[0]
		m, _ := c.snapshot.Machine(grant.Machine)
		c.snapshot.UpsertMachine(occupied(m, grant))
		to.node = grant.Machine
		for _, d := range grant.GPUs {
			to.devices = append(to.devices, d.Index)
		}
		c.placedPod++
		c.placed += grant.Capacity.GPUMilli
	}
	return to
}

// occupied returns the machine's row after the grant. It copies the GPUs, since the
// snapshot still refers to the old slice.
func occupied(m placement.Machine, g berth.Grant) placement.Machine {
	m.Used = m.Used.Add(g.Capacity)
	m.GPUs = slices.Clone(m.GPUs)
	for _, d := range g.GPUs {
		m.GPUs[d.Index].UsedMilli += d.Milli
	}
	return m
}

// summary prints the requested and the placed shares of the GPUs.
func (c *cluster) summary(w io.Writer) error {
	percent := func(milli int64) float64 {
		if c.capacity == 0 {
			return 0
		}
		return float64(milli) / float64(c.capacity) * 100
	}
	_, err := fmt.Fprintf(w,
		"machines %d, GPUs %d\narrived  %d, asking for %.2f %% of the GPUs\nplaced   %d, on %.2f %% of the GPUs\n",
		c.machines, c.capacity/1000, c.askedPods, percent(c.asked), c.placedPod, percent(c.placed))
	return err
}

// mixOf returns the frequency of each request among the pods.
func mixOf(pods []pod) (*placement.Mix, error) {
	at := map[string]int{}
	var list []placement.Asked
	for _, p := range pods {
		i, ok := at[p.shape]
		if !ok {
			i = len(list)
			at[p.shape] = i
			list = append(list, placement.Asked{Request: p.request})
		}
		list[i].Count++
	}
	return placement.GivenMix(list)
}
