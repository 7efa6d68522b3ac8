package check_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db/history"
	"berth/failure"
	"berth/internal/check"
	"berth/wire"
)

// bad is a history in which one promise was broken on purpose.
type bad struct {
	number int
	what   string
	of     func() check.History
	spoil  func(*check.History)
}

// alloc changes an allocation wherever the history has it.
func alloc(h *check.History, id berth.AllocationID, f func(*history.Allocation)) {
	for j := range h.Jobs {
		for i := range h.Jobs[j].Allocations {
			if h.Jobs[j].Allocations[i].ID == id {
				f(&h.Jobs[j].Allocations[i])
			}
		}
	}
	for m := range h.Machines {
		for i := range h.Machines[m].Allocations {
			if h.Machines[m].Allocations[i].ID == id {
				f(&h.Machines[m].Allocations[i])
			}
		}
	}
}

// seen changes the engines' events of a container.
func seen(h *check.History, id, action string, f func(*check.ContainerEvent)) {
	for i := range h.Containers {
		if h.Containers[i].ID == id && h.Containers[i].Action == action {
			f(&h.Containers[i])
		}
	}
}

// unseen takes an event away.
func unseen(h *check.History, id, action string) {
	h.Containers = slices.DeleteFunc(h.Containers, func(e check.ContainerEvent) bool { return e.ID == id && e.Action == action })
}

// event finds the first event of a kind of the first job; a change of state also
// by its new state.
func event(h *check.History, kind wire.EventKind, to berth.State) *history.Event {
	for i := range h.Jobs[0].Events {
		if e := &h.Jobs[0].Events[i]; e.Kind == kind && e.To == to {
			return e
		}
	}
	panic("no such event in the story")
}

// drop takes an event out and closes the gap.
func drop(h *check.History, e *history.Event) {
	j := &h.Jobs[0]
	j.Events = slices.DeleteFunc(j.Events, func(x history.Event) bool { return x.Seq == e.Seq })
	for i := range j.Events {
		j.Events[i].Seq = int64(i + 1)
	}
	j.EventSeq = int64(len(j.Events))
}

// add appends an event.
func add(h *check.History, e history.Event) {
	j := &h.Jobs[0]
	j.EventSeq++
	e.Seq, e.At = j.EventSeq, j.Events[len(j.Events)-1].At
	j.Events = append(j.Events, e)
}

func later(h *check.History, d time.Duration) { h.Cluster.ReadAt = h.Cluster.ReadAt.Add(d) }

var bads = []bad{
	{1, "a GPU is given again before it is free", preempted, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.FreedSeq = 1000 })
	}},
	{38, "a machine is used by two tenants", preempted, func(h *check.History) {
		two := 0
		for i := range h.Machines {
			for j := range h.Machines[i].Allocations {
				a := &h.Machines[i].Allocations[j]
				a.Tenant, a.OneTenant, a.FreedSeq = "a", true, 0
				if two++; two%2 == 0 {
					a.Tenant = "b"
				}
			}
		}
	}},
	{41, "an untrusted tenant is on a machine below the floors", preempted, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.Untrusted = true })
	}},
	{31, "a GPU is shared by two tenants", preempted, func(h *check.History) {
		two := 0
		for i := range h.Machines {
			for j := range h.Machines[i].Allocations {
				a := &h.Machines[i].Allocations[j]
				a.Tenant, a.FreedSeq = "a", 0
				a.GPUs = []history.DeviceAllocation{{Index: 0, Milli: 250, Tenant: a.Tenant}}
				if two++; two%2 == 0 {
					a.Tenant, a.GPUs[0].Tenant = "b", "b"
				}
			}
		}
	}},
	{1, "claims differ from the reservation", lost, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.GPUs[0].Milli = 500 })
	}},
	{2, "a rank is placed again while the attempt before lives", rebooted, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.FreedSeq = 1000 })
	}},
	{2, "containers of two attempts overlap, and nobody gave the first up", lost, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.OrphanedAt = nil })
	}},
	{2, "containers of two attempts of at_most_one work overlap", lost, func(h *check.History) { h.Jobs[0].Execution = "at_most_one" }},
	{2, "two containers of one attempt", rebooted, func(h *check.History) {
		seen(h, "container-2", "start", func(e *check.ContainerEvent) { e.ID, e.At = "another", e.At.Add(time.Second) })
		seen(h, "container-2", "create", func(e *check.ContainerEvent) { e.Action = "start" })
	}},
	{2, "a container is started again", rebooted, func(h *check.History) {
		e := check.ContainerEvent{}
		seen(h, "container-2", "start", func(x *check.ContainerEvent) { e = *x })
		e.At = e.At.Add(time.Millisecond)
		h.Containers = append(h.Containers, e)
	}},
	{3, "an attempt is left out", lost, func(h *check.History) { h.Jobs[0].Attempts[1].Attempt = 3 }},
	{3, "an attempt is used twice", lost, func(h *check.History) {
		for i := range h.Jobs[0].Events {
			h.Jobs[0].Events[i].Attempt = min(h.Jobs[0].Events[i].Attempt, 1)
		}
	}},
	{3, "a change at an attempt that is over", lost, func(h *check.History) { event(h, wire.EventState, berth.Succeeded).Attempt = 1 }},
	{3, "an older term of the leader places after a newer", lost, func(h *check.History) { h.Jobs[0].Attempts[0].LeaderEpoch = 7 }},
	{3, "an allocation of an attempt that was never made", lost, func(h *check.History) { alloc(h, 2, func(a *history.Allocation) { a.Attempt = 9 }) }},
	{4, "an older attempt registers a checkpoint", lost, func(h *check.History) {
		j := &h.Jobs[0]
		j.Events = slices.Insert(j.Events, len(j.Events)-1, history.Event{At: j.Events[len(j.Events)-2].At, Kind: wire.EventCheckpoint, Attempt: 1, Actor: "agent:m1", Detail: "step 12, 1 bytes"})
		j.EventSeq++
		for i := range j.Events {
			j.Events[i].Seq = int64(i + 1)
		}
	}},
	{4, "a checkpoint after the end", lost, func(h *check.History) {
		add(h, history.Event{Kind: wire.EventCheckpoint, Attempt: 2, Actor: "agent:m2", Detail: "step 20, 1 bytes"})
	}},
	{4, "an older attempt moves the job", lost, func(h *check.History) { event(h, wire.EventState, berth.Succeeded).Attempt = 1 }},
	{4, "a placement under an older epoch of the machine", rebooted, func(h *check.History) {
		alloc(h, 2, func(a *history.Allocation) { a.MachineEpoch = 1 })
	}},
	{4, "a checkpoint of an attempt to come", lost, func(h *check.History) { h.Jobs[0].Checkpoints[0].Attempt = 5 }},
	{5, "a change that is not in the table", shapes["canceled while queued"], func(h *check.History) {
		event(h, wire.EventState, berth.Canceled).To = berth.Retrying
	}},
	{5, "two ends", lost, func(h *check.History) {
		add(h, history.Event{Kind: wire.EventState, From: berth.Succeeded, To: berth.Failed, Attempt: 2, Actor: "workflow"})
	}},
	{5, "an order after the end", canceled, func(h *check.History) {
		add(h, history.Event{Kind: wire.EventOrdered, Attempt: 1, Actor: "workflow"})
	}},
	{5, "a change from another state than the job had", lost, func(h *check.History) {
		event(h, wire.EventState, berth.Succeeded).From = berth.Preempting
	}},
	{6, "submitted for an hour", running, func(h *check.History) {
		h.Jobs[1].State = berth.Submitted
		later(h, time.Hour)
	}},
	{6, "unclaimed for an hour", running, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.State, a.ClaimedAt = berth.AllocReserved, nil })
		later(h, time.Hour)
	}},
	{6, "canceling for a day", running, func(h *check.History) {
		h.Jobs[0].State = berth.Canceling
		later(h, 24*time.Hour)
	}},
	{6, "ended and unsettled for an hour", running, func(h *check.History) {
		for id := range berth.AllocationID(2) {
			alloc(h, id+1, func(a *history.Allocation) { a.State, a.SealedAt = berth.AllocExited, a.StartedAt })
		}
		later(h, time.Hour)
	}},
	{7, "an accepted submit without a job", lost, func(h *check.History) {
		h.Accepted = append(h.Accepted, check.Accepted{Job: "lost"})
		h.Missing = []berth.JobID{"lost"}
	}},
	{7, "one key, two jobs", lost, func(h *check.History) {
		h.Cluster.SameKey = []history.SharedKey{{Tenant: "default", Key: "k", Jobs: []berth.JobID{"a", "b"}}}
	}},
	{7, "one key, two answers", preempted, func(h *check.History) { h.Accepted[1].Key = h.Accepted[0].Key }},
	{7, "a job without a spec", lost, func(h *check.History) { h.Jobs[0].HasSpec = false }},
	{7, "a job that was submitted twice", lost, func(h *check.History) {
		add(h, history.Event{Kind: wire.EventState, To: berth.Submitted, Actor: "user:ada"})
	}},
	{29, "stored data that is not counted", lost, func(h *check.History) {
		h.Cluster.Stored = []history.Stored{
			{Tenant: "default", Kind: "logs", Counted: 7, Rows: 7}, {Tenant: "default", Kind: "uploads", Counted: 1, Rows: 2},
		}
	}},
	{36, "a chunk that counts too few references", lost, func(h *check.History) {
		h.Cluster.Miscounted = []history.MiscountedChunk{{Tenant: "default", SHA256: "ab", Refs: new(int64(0)), Rows: 1}}
	}},
	{36, "a reference to a chunk without a row", lost, func(h *check.History) {
		h.Cluster.Miscounted = []history.MiscountedChunk{{Tenant: "default", SHA256: "ab", Rows: 1}}
	}},
	{36, "a verified checkpoint that names no chunk", lost, func(h *check.History) { chunked(h, berth.CheckpointVerified, 0) }},
	{36, "a pruned checkpoint that names chunks", lost, func(h *check.History) { chunked(h, berth.CheckpointPruned, 3) }},
	{8, "a container without an allocation", rebooted, func(h *check.History) {
		seen(h, "container-1", "create", func(e *check.ContainerEvent) { e.Alloc = 77 })
	}},
	{8, "a container of another rank's allocation", rebooted, func(h *check.History) {
		seen(h, "container-1", "create", func(e *check.ContainerEvent) { e.Rank = 3 })
	}},
	{8, "a container before the claim", rebooted, func(h *check.History) {
		seen(h, "container-1", "create", func(e *check.ContainerEvent) { e.At = e.At.Add(-time.Hour) })
	}},
	{8, "a container of an allocation that was never claimed", rebooted, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.ClaimedAt = nil })
	}},
	{8, "a container of no job", lost, func(h *check.History) {
		h.Containers = append(h.Containers, check.ContainerEvent{Cluster: "c", Job: "none", ID: "x", Action: "create", Alloc: 5})
		h.Missing = []berth.JobID{"none"}
	}},
	{9, "more than the machine has", preempted, func(h *check.History) {
		alloc(h, 2, func(a *history.Allocation) { a.CPUMilli = 5000 })
	}},
	{9, "more than the machine has, together", preempted, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.MemoryMiB, a.FreedSeq = 4000, 1000 })
	}},
	{9, "a counter that drifted", lost, func(h *check.History) { h.Machines[0].CPUUsed = 1 }},
	{9, "a counter of a device that drifted", lost, func(h *check.History) { h.Machines[0].GPUs[1].MilliUsed = 250 }},
	{10, "half a gang", canceled, func(h *check.History) { h.Jobs[0].Allocations = h.Jobs[0].Allocations[:1] }},
	{10, "a rank twice", canceled, func(h *check.History) { alloc(h, 2, func(a *history.Allocation) { a.Rank = 0 }) }},
	{10, "ranks reserved one after the other", canceled, func(h *check.History) {
		alloc(h, 2, func(a *history.Allocation) { a.ReservedAt = a.ReservedAt.Add(time.Second) })
	}},
	{10, "a rank runs on, untold, for an hour", running, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.State, a.OrphanedAt = berth.AllocOrphaned, a.StartedAt })
		later(h, time.Hour)
	}},
	{10, "a gang begins without one of its ranks", canceled, func(h *check.History) { alloc(h, 2, func(a *history.Allocation) { a.PreparedAt = nil }) }},
	{10, "a gang begins before one of its ranks is ready", canceled, func(h *check.History) {
		alloc(h, 2, func(a *history.Allocation) { at := a.StartedAt.Add(time.Minute); a.PreparedAt = &at })
	}},
	{10, "a rank begins before its gang", canceled, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { at := a.PreparedAt.Add(time.Millisecond); a.StartedAt = &at })
	}},
	{10, "a rank begins, its gang is never ready", shapes["a gang is canceled before its last start"], func(h *check.History) {
		alloc(h, 2, func(a *history.Allocation) { a.PreparedAt = nil })
	}},
	{10, "room is kept for a repair for good", repaired, func(h *check.History) {
		h.Jobs[0].Repairs[0].GoneAt = nil
		later(h, time.Hour)
	}},
	{10, "room is kept for a repair for an hour", repaired, func(h *check.History) {
		at := h.Jobs[0].Repairs[0].GoneAt.Add(time.Hour)
		h.Jobs[0].Repairs[0].GoneAt = &at
	}},
	{25, "a port is given twice", repaired, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.ReleasedAt = nil })
	}},
	{25, "a port is given again before its rank is settled", repaired, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { at := a.ReleasedAt.Add(time.Minute); a.ReleasedAt = &at })
	}},
	{13, "it starts after its cancel", canceled, func(h *check.History) {
		event(h, wire.EventState, berth.Canceled).To = berth.Running
	}},
	{13, "it fails after its cancel", canceled, func(h *check.History) { event(h, wire.EventState, berth.Canceled).To = berth.Failed }},
	{13, "a start order that nothing shows before the cancel", shapes["a gang is canceled before its last start"], func(h *check.History) {
		drop(h, event(h, wire.EventOrdered, ""))
	}},
	{13, "a claim after the cancel", canceled, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.ClaimedAt = a.ExitedAt })
	}},
	{13, "success after a cancel that did end it", canceled, func(h *check.History) { h.Jobs[0].State = berth.Succeeded }},
	{13, "a cancel that is nowhere in the history", lost, func(h *check.History) { h.Jobs[0].CancelRequestedAt = h.Jobs[0].FinishedAt }},
	{14, "a victim runs again in the same attempt", preempted, func(h *check.History) {
		j := &h.Jobs[0]
		for i := range j.Events {
			if j.Events[i].To == berth.Retrying {
				j.Events[i].To = berth.Running
			}
		}
	}},
	{14, "a victim is not requeued", preempted, func(h *check.History) { h.Jobs[0].Attempts[0].NextState = berth.Failed }},
	{14, "a victim pays", preempted, func(h *check.History) { h.Jobs[0].Attempts[0].Budget = failure.BudgetInfra }},
	{14, "a victim gives way to the same job twice", preempted, func(h *check.History) {
		h.Jobs[0].GaveWayTo = append(h.Jobs[0].GaveWayTo, h.Jobs[0].GaveWayTo[0])
	}},
	{14, "a victim ends as if its machine had died", preempted, func(h *check.History) { h.Jobs[0].Attempts[0].Outcome.Code = berth.ReasonMachineLost }},
	{14, "another job takes what a victim freed", preempted, func(h *check.History) {
		h.Machines[0].Nominations[0].Beneficiary = "00000000-0000-7000-8000-000000000099"
	}},
	{14, "the victim takes back what it freed", preempted, func(h *check.History) {
		h.Machines[0].Nominations[0].UntilSeq = 0
	}},
	{14, "a victim keeps its devices", preempted, func(h *check.History) { alloc(h, 1, func(a *history.Allocation) { a.FreedSeq = 0 }) }},
	{15, "a silent fresh start", lost, func(h *check.History) { h.Jobs[0].Attempts[1].ResumeFrom = nil }},
	{15, "a step nobody saved", lost, func(h *check.History) { *h.Jobs[0].Attempts[1].ResumeFrom = 99 }},
	{15, "an older step without a rejection", fellBack, func(h *check.History) { h.Jobs[0].Checkpoints[1].State = berth.CheckpointVerified }},
	{15, "a rejection without an event", fellBack, func(h *check.History) { drop(h, event(h, wire.EventCheckpointRejected, "")) }},
	{15, "verified with a shard missing", shapes["one job succeeds"], func(h *check.History) { h.Jobs[0].Checkpoints[0].Ranks = 2 }},
	{15, "a fresh start, although it started from a checkpoint", continued, func(h *check.History) { h.Jobs[0].Attempts[0].ResumeFrom = nil }},
	{15, "back to where it started, although it has saved since", continued, func(h *check.History) { *h.Jobs[0].Attempts[1].ResumeFrom = 7 }},
	{15, "another step than it started from", continued, func(h *check.History) { *h.Jobs[0].Attempts[0].ResumeFrom = 6 }},
	{30, "a live job's checkpoint was pruned", running, func(h *check.History) {
		h.Jobs[0].Start = &history.StartPoint{Job: "a", Attempt: 1, Step: 7, State: berth.CheckpointPruned, Ranks: 2, Shards: 2}
	}},
	{30, "a live job's checkpoint is gone", running, func(h *check.History) {
		h.Jobs[0].Start = &history.StartPoint{Job: "a", Attempt: 1, Step: 7, Ranks: 2, Shards: 2}
	}},
	{30, "a live job's checkpoint lacks a part", running, func(h *check.History) {
		h.Jobs[0].Start = &history.StartPoint{Job: "a", Attempt: 1, Step: 7, State: berth.CheckpointVerified, Ranks: 2, Shards: 1}
	}},
	{30, "a live job's checkpoint has another number of parts", running, func(h *check.History) {
		h.Jobs[0].Start = &history.StartPoint{Job: "a", Attempt: 1, Step: 7, State: berth.CheckpointVerified, Ranks: 1, Shards: 1}
	}},
	{30, "each member gets a part less than there are", running, func(h *check.History) {
		h.Jobs[0].Start = &history.StartPoint{Job: "a", Attempt: 1, Step: 7, State: berth.CheckpointVerified, Ranks: 3, Shards: 3, Parts: 2}
	}},
	{30, "a pinned checkpoint was pruned", lost, func(h *check.History) {
		h.Jobs[0].Checkpoints[0].Pinned, h.Jobs[0].Checkpoints[0].State = true, berth.CheckpointPruned
	}},
	{16, "the user pays for a lost machine", lost, func(h *check.History) {
		h.Jobs[0].Attempts[0].Budget, h.Jobs[0].Failures, h.Jobs[0].Losses = failure.BudgetUser, 1, 0
	}},
	{16, "a failure that is not counted", fellBack, func(h *check.History) { h.Jobs[0].Failures = 0 }},
	{16, "a loss that was none", fellBack, func(h *check.History) { h.Jobs[0].Losses = 1 }},
	{16, "a budget that there is not", fellBack, func(h *check.History) { h.Jobs[0].Attempts[0].Budget, h.Jobs[0].Failures = "mine", 0 }},
	{16, "a requeue at the time limit without a checkpoint", lost, func(h *check.History) {
		j := &h.Jobs[0]
		j.Attempts[0].Budget, j.Losses, j.Checkpoints = failure.BudgetNone, 0, nil
		j.Attempts[0].Outcome = &berth.Reason{Code: berth.ReasonTimeLimit, Rule: failure.RuleRequeue}
	}},
	{16, "losses without end", lost, func(h *check.History) {
		j := &h.Jobs[0]
		j.Losses = failure.MaxInfraLosses + 1
		for range failure.MaxInfraLosses {
			j.Attempts = append(j.Attempts, history.Attempt{Budget: failure.BudgetInfra, NextState: berth.Retrying})
		}
	}},
	{17, "placed on a draining machine", lost, func(h *check.History) { h.Machines[1].Events[0].State = "draining" }},
	{32, "placed inside a maintenance window", lost, func(h *check.History) {
		at := h.Machines[1].Allocations[0].ReservedAt
		h.Machines[1].Windows = []history.Window{{ID: 1, ClosesAt: at.Add(-time.Minute), EndsAt: at.Add(time.Hour),
			UpdatedAt: at.Add(-time.Hour)}}
	}},
	{17, "placed on a device that is not healthy", lost, func(h *check.History) { h.Machines[1].Events[1].State = "unhealthy" }},
	{20, "a job that lives", queued, func(*check.History) {}},
	{20, "a reservation that lives", lost, func(h *check.History) { h.Machines[0].Allocations[0].State = berth.AllocOrphaned }},
	{20, "a counter that is not zero", lost, func(h *check.History) { h.Machines[0].MemUsed = 5 }},
	{20, "a container that nobody saw end", rebooted, func(h *check.History) {
		unseen(h, "container-2", "die")
		alloc(h, 2, func(a *history.Allocation) { a.ExitedAt, a.ReleasedAt = nil, nil })
	}},
	{20, "a container left over from a create", rebooted, func(h *check.History) {
		unseen(h, "container-2", "start")
		unseen(h, "container-2", "die")
		unseen(h, "container-2", "destroy")
		alloc(h, 2, func(a *history.Allocation) { at := h.Cluster.ReadAt; a.ForgottenAt = &at })
		h.Cluster.ReadAt = h.Cluster.ReadAt.Add(2 * time.Minute)
	}},
	{21, "a gap", lost, func(h *check.History) { h.Jobs[0].Events[3].Seq = 40 }},
	{21, "an event more than the row counts", lost, func(h *check.History) { h.Jobs[0].EventSeq-- }},
	{21, "a row in another state", lost, func(h *check.History) { h.Jobs[0].State = berth.Failed }},
	{21, "a row at another attempt", lost, func(h *check.History) { h.Jobs[0].Attempt = 3 }},
	{21, "an end without a time", lost, func(h *check.History) { h.Jobs[0].FinishedAt = nil }},
	{21, "an attempt that ran without an event", lost, func(h *check.History) { drop(h, event(h, wire.EventState, berth.Running)) }},
	{21, "an attempt that led elsewhere", lost, func(h *check.History) { h.Jobs[0].Attempts[0].NextState = berth.Failed }},
	{23, "an event older than the one before", lost, func(h *check.History) {
		e := event(h, wire.EventState, berth.Running)
		e.At = e.At.Add(-time.Hour)
	}},
	{23, "resumed before it was saved", lost, func(h *check.History) { drop(h, event(h, wire.EventCheckpoint, "")) }},
	{23, "the job ran with a rank unclaimed", lost, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.ClaimedAt, a.StartedAt = nil, nil })
	}},
	{23, "a rank started unclaimed", canceled, func(h *check.History) {
		drop(h, event(h, wire.EventState, berth.Running))
		alloc(h, 1, func(a *history.Allocation) { a.ClaimedAt = nil })
	}},
	{23, "claimed before it was reserved", lost, func(h *check.History) {
		alloc(h, 1, func(a *history.Allocation) { a.ReservedAt = a.ReservedAt.Add(time.Hour) })
	}},
	{23, "success without an exit", lost, func(h *check.History) { alloc(h, 2, func(a *history.Allocation) { a.Exit = nil }) }},
	{24, "freed by time alone", lost, func(h *check.History) { alloc(h, 1, func(a *history.Allocation) { a.FreedBy = "" }) }},
	{24, "freed as unclaimed, though it ran", rebooted, func(h *check.History) {
		alloc(h, 2, func(a *history.Allocation) { a.FreedBy = "unclaimed" })
	}},
	{24, "the agent never said so", lost, func(h *check.History) { drop(h, event(h, wire.EventReleased, "")) }},
	{24, "an agent's word without an exit", preempted, func(h *check.History) { alloc(h, 1, func(a *history.Allocation) { a.Exit = nil }) }},
	{24, "an operator's word that nobody gave", lost, func(h *check.History) { alloc(h, 1, func(a *history.Allocation) { a.FreedBy = "operator" }) }},
	{24, "a reboot with the same boot id", rebooted, func(h *check.History) {
		for i := range h.Machines[0].Events {
			h.Machines[0].Events[i].HostBoot = "boot-1"
		}
	}},
	{11, "more GPUs than the tenant may hold", full, func(h *check.History) { *h.Cluster.Tenants[1].GPUMilli = 1999 }},
	{11, "more jobs than the tenant above may run", full, func(h *check.History) { *h.Cluster.Tenants[0].MaxRunning = 1 }},
	{11, "a quota was lowered long before", full, func(h *check.History) {
		t, gpus := h.Cluster.Tenants[1], int64(1000)
		t.Seq, t.At, t.GPUMilli = t.Seq+1, t.At.Add(time.Minute), &gpus
		for i := range h.Holdings {
			h.Holdings[i].Seq += 10
		}
		h.Cluster.Tenants = append(h.Cluster.Tenants, t)
	}},
	{11, "another tenant was created a moment before", full, func(h *check.History) {
		*h.Cluster.Tenants[1].GPUMilli = 1999
		h.Cluster.Tenants = append(h.Cluster.Tenants, moment(h, history.TenantChange{Tenant: "other"}))
	}},
	{11, "the tenant moved a moment before, and both parents allow less", full, func(h *check.History) {
		*h.Cluster.Tenants[0].GPUMilli = 1999
		less := h.Cluster.Tenants[0]
		less.Tenant, less.Seq = "institute", less.Seq-1
		moved := h.Cluster.Tenants[1]
		moved.Parent = "institute"
		h.Cluster.Tenants = append(h.Cluster.Tenants, less, moment(h, moved))
	}},
	{26, "a third element takes room while two hold some", sweep, func(h *check.History) { h.Families[0].Children[0].Spans[0].Until = 1000 }},
	{26, "two of an array that runs one at a time", sweep, func(h *check.History) { h.Families[0].Parallel = 1 }},
	{27, "an array ends before an element", sweep, func(h *check.History) { h.Families[0].Children[1].State = berth.Running }},
	{27, "an element ends after its array", sweep, func(h *check.History) {
		at := h.Families[0].FinishedAt.Add(time.Minute)
		h.Families[0].Children[1].FinishedAt = &at
	}},
	{27, "an array succeeds with a failed element", sweep, func(h *check.History) { h.Families[0].State = berth.Succeeded }},
	{27, "an array succeeds without an element", sweep, func(h *check.History) {
		f := &h.Families[0]
		f.State, f.Children = berth.Succeeded, f.Children[:2]
	}},
	{27, "an array fails although all went well", sweep, func(h *check.History) { h.Families[0].Children[2].State = berth.Succeeded }},
	{27, "an index is two elements", sweep, func(h *check.History) { h.Families[0].Children[1].Index = 0 }},
	{27, "an index it does not have", sweep, func(h *check.History) { h.Families[0].Indexes = []int{0, 1, 7} }},
	{27, "more elements than it has", sweep, func(h *check.History) { h.Families[0].Archived = 1 }},
	{28, "a step begins before the one it needs has ended", line, func(h *check.History) { h.Families[0].Children[0].Spans[0].Until = 1000 }},
	{28, "a step begins although the one it needs failed", line, func(h *check.History) { h.Families[0].Children[0].State = berth.Failed }},
	{6, "a step is not let go", blocked, func(*check.History) {}},
	{6, "a step is let go, and nobody takes it up", func() check.History { return letGo(time.Hour) }, func(*check.History) {}},
	{6, "a step of a held pipeline is not canceled, and what it needs failed", blocked, func(h *check.History) {
		h.Families[0].Held, h.Families[0].Children[0].State = true, berth.Failed
	}},
	{5, "an array goes back to the queue", sweep, func(h *check.History) {
		add(h, history.Event{Kind: wire.EventState, From: berth.Failed, To: berth.Queued, Actor: "workflow"})
	}},
}

// chunked adds a checkpoint with files of chunks to the first job.
func chunked(h *check.History, state berth.CheckpointState, refs int64) {
	h.Jobs[0].Checkpoints = append(h.Jobs[0].Checkpoints, history.Checkpoint{Step: 9000, Attempt: 9000, Ranks: 1, Shards: 1, State: state,
		ChunkedBytes: 7, ChunkRefs: refs})
}

// Each history is rejected for the promise that it breaks, with the rows that
// broke it.
func TestRejectsEachBadHistory(t *testing.T) {
	t.Parallel()
	for _, b := range slices.Concat(bads, badLaunches, badAlternatives, badGroups, badHolds) {
		h := b.of()
		b.spoil(&h)
		found := check.Verify(h, check.Options{Settled: b.number == 20})
		if !slices.ContainsFunc(found, func(x check.Breach) bool { return x.Invariant == b.number }) {
			t.Errorf("invariant %d: %s: not rejected; found %v", b.number, b.what, found)
		}
		for _, x := range found {
			if x.Sentence == "" || x.Detail == "" || x.Job == "" && x.Machine == "" && !slices.Contains([]int{7, 12, 29, 33, 36}, x.Invariant) {
				t.Errorf("invariant %d: %s: says too little: %+v", b.number, b.what, x)
			}
		}
	}
}

func TestEveryInvariantHasABadHistory(t *testing.T) {
	t.Parallel()
	last := 0
	for _, i := range check.Invariants {
		if i.Number <= last || i.Sentence == "" || i.Reads == "" {
			t.Errorf("invariant %d is out of order, or says too little", i.Number)
		}
		last = i.Number
		if !slices.ContainsFunc(slices.Concat(bads, badLaunches, badAlternatives, badGroups, badHolds), func(b bad) bool { return b.number == i.Number }) {
			t.Errorf("no bad history for invariant %d", i.Number)
		}
	}
}

// A history is judged by invariant 20 only where everything should have ended.
func TestSettledIsAskedFor(t *testing.T) {
	t.Parallel()
	h := running()
	if found := check.Verify(h, check.Options{}); len(found) > 0 {
		t.Errorf("a job at work is no breach: %v", found)
	}
}

// moment makes a change of a tenant one second before the first allocation takes its room.
func moment(h *check.History, c history.TenantChange) history.TenantChange {
	c.Seq, c.At = h.Cluster.Tenants[len(h.Cluster.Tenants)-1].Seq+1, h.Holdings[0].At.Add(-time.Second)
	for i := range h.Holdings {
		h.Holdings[i].Seq += 10
	}
	return c
}
