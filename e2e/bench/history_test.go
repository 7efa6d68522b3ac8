package bench_test

import (
	"time"

	"go.temporal.io/api/enums/v1"

	"berth"
	"berth/activities/control"
	"berth/spec"
)

// measureHistory counts the events of jobs that were placed at once and of one
// that had to wait for longer than its first step does.
func (s *stack) measureHistory(t *table) {
	quick, remote := 0, 0
	for range 20 {
		id := s.submit(jobSpec(fake, "testprog", "exit", "0"))
		s.ends(id)
		e, r := s.history(id)
		quick, remote = max(quick, e), max(remote, r)
	}
	// One job takes the machine, the other waits for it.
	all := jobSpec(fake, "testprog", "sleep", (control.GrantWait + 2*time.Second).String())
	cpus := spec.MilliCPU(64_000)
	all.Resources.CPUs = &cpus
	first := s.submit(all)
	s.until("the machine is full", func() bool {
		j, err := s.api.Job(s.b.Context(), first)
		return err == nil && j.Status == berth.Running
	})
	second := s.submit(jobSpec(fake, "testprog", "exit", "0"))
	s.ends(first)
	s.ends(second)
	waited, r := s.history(second)
	remote = max(remote, r)
	t.add(figure{name: "history events of a job placed at once", value: float64(quick), must: 22, aim: 14,
		note: "most of 20"})
	t.add(figure{name: "history events of a job that waited", value: float64(waited), must: 22, aim: 19})
	t.add(figure{name: "remote activities per job", value: float64(remote), must: 1, aim: 1})
}

// history counts a job's events and the activities that left the workflow's
// own task.
func (s *stack) history(id berth.JobID) (events, remote int) {
	all := s.temporal.GetWorkflowHistory(s.b.Context(), berth.JobWorkflowID(id), "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for all.HasNext() {
		e, err := all.Next()
		s.must(err)
		events++
		if e.GetEventType() == enums.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED {
			remote++
		}
	}
	return events, remote
}
