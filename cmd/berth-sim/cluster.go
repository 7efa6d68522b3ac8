package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"berth"
	"berth/placement"
)

// cluster is the machines and the engine that places on them.
type cluster struct {
	snapshot *placement.Snapshot
	engine   placement.Engine
	now      time.Time
	classes  map[string]string // of requests, by what the arrival asks for

	machines             int
	capacity             int64 // GPU milli of all machines
	asked, placed        int64 // GPU milli
	askedPods, placedPod int
}

// placedPod says where an arrival went: an empty node is nowhere.
type placedPod struct {
	pod     string
	node    berth.MachineID
	devices []int
}

// newCluster starts empty. mix is nil where it is to be learned.
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

// arrive lets the engine place one arrival, and takes its word for it.
func (c *cluster) arrive(p pod) placedPod {
	c.askedPods++
	c.asked += p.request.Capacity().GPUMilli
	class, ok := c.classes[p.shape]
	if !ok {
		class = p.request.Class()
		c.classes[p.shape] = class
		c.snapshot.DefineClass(class, p.request)
	}
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

// occupied is the machine's row after the grant.
func occupied(m placement.Machine, g berth.Grant) placement.Machine {
	m.Used = m.Used.Add(g.Capacity)
	m.GPUs = slices.Clone(m.GPUs)
	for _, d := range g.GPUs {
		m.GPUs[d.Index].UsedMilli += d.Milli
	}
	return m
}

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

// mixOf counts what the pods ask for.
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
