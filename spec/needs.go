package spec

import (
	"fmt"
	"slices"
	"strings"

	"berth"
)

// MaxNeeds is the largest number of jobs that a job outside of pipelines may wait for.
const MaxNeeds = 100

// needsJob is the start of a need that names a job, and no step of the same pipeline.
const needsJob = "job:"

// NeededJobs returns the jobs in the needs of a job or a pipeline, in ascending order. Needs
// that are no full id are left out; the API refuses these.
func NeededJobs(needs []string) (jobs []berth.JobID) {
	for _, need := range needs {
		if id, err := berth.ParseJobID(strings.TrimPrefix(need, needsJob)); err == nil && len(need) > len(id) {
			jobs = append(jobs, id)
		}
	}
	slices.Sort(jobs)
	return slices.Compact(jobs)
}

// NeededName returns the job that a need names, as an id or a name; ok is false for a need of a
// step.
func NeededName(need string) (job string, ok bool) { return strings.CutPrefix(need, needsJob) }

// NeedOf returns the need for a job.
func NeedOf(job berth.JobID) string { return needsJob + string(job) }

// UnknownNeeds returns a fault for each need that names a job by anything but its full id.
func UnknownNeeds(needs []string) (faults []berth.FieldError) {
	for i, need := range needs {
		name, ok := NeededName(need)
		if _, err := berth.ParseJobID(name); ok && err != nil {
			faults = append(faults, berth.FieldError{Field: fmt.Sprintf("needs[%d]", i),
				Detail: fmt.Sprintf("%.200q is not the id of a job", name), Allowed: "job:ID with a job's whole id"})
		}
	}
	return faults
}

// jobNeeds checks needs and when of a job or a pipeline, which wait for other jobs.
func (v *validation) jobNeeds(needs []string, when string) {
	v.require(len(needs) <= MaxNeeds, "needs", fmt.Sprintf("names %d jobs", len(needs)),
		fmt.Sprintf("at most %d", MaxNeeds))
	for i, need := range needs {
		at := fmt.Sprintf("needs[%d]", i)
		name, ok := NeededName(need)
		v.require(ok && name != "", at, fmt.Sprintf("%.200q names no job", need),
			"job:ID; needs of steps are in files with kind: pipeline")
		v.require(!slices.Contains(needs[:i], need), at, fmt.Sprintf("names %.200s twice", need), "once")
	}
	if when != "" {
		v.oneOf("when", when, WhenSuccess, WhenFailure, WhenAlways)
		v.require(len(needs) > 0, "when", "has no effect without needs", "when next to needs")
	}
}

// validateNeeds checks the jobs that a job outside of pipelines waits for. Only a job that
// starts after their success may read their outputs, unless these jobs have ended.
func validateNeeds(v *validation, s Job) {
	v.jobNeeds(s.Needs, s.When)
	if s.When == "" || s.When == WhenSuccess {
		return
	}
	jobs := NeededJobs(s.Needs)
	for _, o := range s.OutputsNamed() {
		v.require(!slices.Contains(jobs, o.Job), o.Field(),
			fmt.Sprintf("the job may start although job %s has not succeeded", o.Job), "when: success")
	}
}
