package spec

import (
	"strconv"
	"strings"
	"unicode"

	"berth"
)

// MaxMetricName is the greatest length in bytes of the name of a value in a progress file.
const MaxMetricName = 64

// ValidMetricName reports whether a job may report a value under this name in its progress file.
func ValidMetricName(name string) bool {
	other := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("_-./", r)
	}
	return name != "" && len(name) <= MaxMetricName && !strings.ContainsFunc(name, other)
}

// StepRef names a checkpoint of a job: one step, or the newest one if Step is nil.
type StepRef struct {
	Job  berth.JobID
	Step *int64
}

// CutStep splits JOB and JOB@STEP, where JOB is any text by which a user names a job. step is
// nil if the text names none. ok is false for any other text.
func CutStep(text string) (job string, step *int64, ok bool) {
	const longest = 512
	job, digits, found := strings.Cut(text, "@")
	odd := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	if job == "" || len(job) > longest || strings.ContainsFunc(job, odd) {
		return "", nil, false
	}
	if !found {
		return job, nil, true
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != digits {
		return "", nil, false
	}
	return job, &n, true
}

// ParseStepRef parses JOB and JOB@STEP, where JOB is a whole id. The error has
// berth.CodeInvalid.
func ParseStepRef(text string) (StepRef, error) {
	job, step, ok := CutStep(text)
	id, err := berth.ParseJobID(job)
	if !ok || err != nil {
		return StepRef{}, berth.Errorf(berth.CodeInvalid, "%.200q is not a checkpoint of a job", text)
	}
	return StepRef{id, step}, nil
}

// String returns the reference in the form of ParseStepRef.
func (r StepRef) String() string {
	if r.Step == nil {
		return string(r.Job)
	}
	return string(r.Job) + "@" + strconv.FormatInt(*r.Step, 10)
}

// StartsFrom returns the checkpoint of another job that the policy names, or nil. A job that is
// not named by its id counts as none; the API refuses it. The nil policy names none.
func (c *CheckpointPolicy) StartsFrom() *StepRef {
	if c == nil || c.From == "" {
		return nil
	}
	ref, err := ParseStepRef(c.From)
	if err != nil {
		return nil
	}
	return &ref
}

// LeastDisk returns the smallest limit on the disk use of any member of the job, on any of its hardware; 0: no member
// has a limit. The spec must have its defaults filled in.
func LeastDisk(s Job) MiB {
	least := MiB(0)
	for number := range len(s.Alternatives) + 1 {
		chosen := Choose(s, number)
		all := []Resources{chosen.Resources}
		if len(s.Groups) > 0 {
			all = nil
			for _, g := range s.Groups {
				all = append(all, MemberResources(chosen, g))
			}
		}
		for _, r := range all {
			if r.Disk > 0 && (least == 0 || r.Disk < least) {
				least = r.Disk
			}
		}
	}
	return least
}
