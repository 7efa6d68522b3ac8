package agent

import (
	"strconv"

	"go.opentelemetry.io/otel/attribute"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/tracing"
)

// identity names one member on this machine: its allocation, its container and
// its spans. The member's goroutine alone writes to it, until the claim is
// answered; from then on all may read it.
type identity struct {
	machine berth.MachineID
	cluster func() string // the cluster of the session; it may change

	alloc   berth.AllocationID
	job     berth.JobID
	attempt int
	number  int  // the rank; valid if known
	known   bool // the rank came with a claim, a label or a full assignment
}

// name returns the name of the member's container.
func (i *identity) name() string { return berth.ContainerName(i.job, i.number, i.attempt) }

// claimed takes the rank from the answer to the claim.
func (i *identity) claimed(number int) { i.number, i.known = number, true }

// labels returns the labels that make a container this member's.
func (i *identity) labels() map[string]string {
	return map[string]string{
		berth.LabelCluster: i.cluster(),
		berth.LabelMachine: string(i.machine),
		berth.LabelJob:     string(i.job),
		berth.LabelAttempt: strconv.Itoa(i.attempt),
		berth.LabelRank:    strconv.Itoa(i.number),
		berth.LabelAlloc:   strconv.FormatInt(int64(i.alloc), 10),
	}
}

// owns reports whether a container with the member's name also has its labels.
func (i *identity) owns(c node.Container) bool {
	for k, v := range i.labels() {
		if c.Labels[k] != v {
			return false
		}
	}
	return true
}

// key names a span of the member. Every process of this agent makes the same key.
func (i *identity) key(name string) tracing.Key {
	return tracing.Key{Job: i.job, Attempt: i.attempt, Alloc: i.alloc, Name: name}
}

// attributes returns the attributes that all spans of the member carry.
func (i *identity) attributes() []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.String("berth.job_id", string(i.job)), attribute.Int("berth.attempt", i.attempt),
		attribute.Int64("berth.alloc", int64(i.alloc)), attribute.String("berth.machine", string(i.machine)),
	}
	if i.known {
		list = append(list, attribute.Int("berth.rank", i.number))
	}
	return list
}
