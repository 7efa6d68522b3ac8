package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// logPage is the number of elements that one call lists. The server answers larger pages
// only a few at a time.
const logPage = 200

// logLeaf is a job with logs of its own: a job, an element of an array, or a step.
type logLeaf struct {
	job     berth.JobID
	path    string // of the element or step; "" for a job of its own
	status  berth.State
	ended   time.Time // zero: not known
	members int
	caused  bool // it failed by itself, and not because of another step
}

// logTree finds the logs below a job. It is read again while the job runs, since elements
// are created over time and steps start one after the other.
type logTree struct {
	app    *app
	client *client.Client
	member int // -1: all members
	// say prints a message; notes are messages about steps without a log, each printed once.
	say   func(format string, args ...any)
	notes map[string]bool
}

// newLogTree returns a tree that finds the logs of all members.
func newLogTree(a *app, c *client.Client) *logTree {
	return &logTree{app: a, client: c, member: -1, say: a.say, notes: map[string]bool{}}
}

// leaves returns the jobs below a job that may have a log, in the order of their indexes
// and steps.
func (t *logTree) leaves(ctx context.Context, job wire.Job) ([]logLeaf, error) {
	switch {
	case isPipeline(job):
		return t.steps(ctx, job, "")
	case job.Kind == berth.KindArray:
		return t.elements(ctx, job.ID, job.Name, membersOf(job.Spec))
	default:
		leaf := logLeaf{job: job.ID, status: job.Status, members: membersOf(job.Spec), caused: true}
		return []logLeaf{leaf}, nil
	}
}

// membersOf returns the number of members of a job with this spec.
func membersOf(s *spec.Job) int {
	if s == nil {
		return 1
	}
	return max(1, s.Members)
}

// steps returns the leaves of a pipeline, at every level. within is the path of the
// pipeline, "" for the outermost.
func (t *logTree) steps(ctx context.Context, pipeline wire.Job, within string) ([]logLeaf, error) {
	var all []logLeaf
	for _, s := range pipeline.Steps {
		path, members := spec.StepPath(within, s.Name), 1
		if pipeline.Pipeline != nil {
			step := pipeline.Pipeline.Jobs[s.Name]
			members = membersOf(&step)
		}
		switch {
		case s.CachedFrom != nil:
			t.note(fmt.Sprintf("step %s did not run; see the log of the job that ran: berth logs %s", path,
				*s.CachedFrom))
		case s.Kind == berth.KindArray:
			list, err := t.elements(ctx, s.Job, path, members)
			if err != nil {
				return nil, err
			}
			all = append(all, list...)
		case s.Kind == berth.KindPipeline:
			inner, err := t.client.Job(ctx, s.Job)
			if err != nil {
				return nil, err
			}
			list, err := t.steps(ctx, inner, path)
			if err != nil {
				return nil, err
			}
			all = append(all, list...)
		default:
			caused := s.Reason == nil || s.Reason.Code != berth.ReasonUpstreamFailed
			all = append(all, logLeaf{job: s.Job, path: path, status: s.Status, members: members, caused: caused})
		}
	}
	return all, nil
}

// note prints a message once.
func (t *logTree) note(text string) {
	if !t.notes[text] {
		t.notes[text] = true
		t.say("%s", text)
	}
}

// elements returns the elements of an array that exist so far, by index.
func (t *logTree) elements(ctx context.Context, array berth.JobID, path string, members int) ([]logLeaf, error) {
	type element struct {
		logLeaf
		index int
	}
	var found []element
	taken := 0
	q := client.JobsQuery{Parent: array, Limit: logPage}
	for {
		page, err := t.client.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, j := range page.Items {
			if j.CachedFrom != nil {
				taken++
				continue
			}
			e := element{logLeaf: logLeaf{job: j.ID, status: j.Status, members: members, caused: true}}
			if j.ArrayIndex != nil {
				e.index = *j.ArrayIndex
			}
			if j.FinishedAt != nil {
				e.ended = *j.FinishedAt
			}
			e.path = fmt.Sprintf("%s[%d]", path, e.index)
			found = append(found, e)
		}
		if page.NextCursor == "" {
			break
		}
		q.Cursor = page.NextCursor
	}
	if taken > 0 {
		t.note(fmt.Sprintf("%s of %s did not run; their results are from earlier jobs",
			plural(taken, "element", "elements"), path))
	}
	slices.SortFunc(found, func(a, b element) int { return cmp.Compare(a.index, b.index) })
	all := make([]logLeaf, len(found))
	for i, e := range found {
		all[i] = e.logLeaf
	}
	return all, nil
}

// sources returns the logs of a leaf: of the selected member, or of all.
func (t *logTree) sources(l logLeaf) []logSource {
	if t.member >= 0 || l.members == 1 {
		return []logSource{{job: l.job, member: max(0, t.member), label: l.path, whose: l.path}}
	}
	list := make([]logSource, l.members)
	for i := range list {
		label := fmt.Sprintf("member %d", i)
		if l.path != "" {
			label = l.path + " " + label
		}
		list[i] = logSource{job: l.job, member: i, label: label, whose: l.path}
	}
	return list
}

// culpritsFirst moves the leaves that failed by themselves to the front, the first to fail
// before the others. The others keep their order.
func culpritsFirst(list []logLeaf) {
	guilty := func(l logLeaf) bool { return l.status == berth.Failed && l.caused }
	slices.SortStableFunc(list, func(a, b logLeaf) int {
		switch {
		case guilty(a) && guilty(b):
			return a.ended.Compare(b.ended)
		case guilty(a):
			return -1
		case guilty(b):
			return 1
		default:
			return 0
		}
	})
}

// culprit returns the log that shows most likely why a job failed: of the element or step
// that failed first, and of its member whose failure was reported first. ok is false if
// nothing below the job has failed by itself.
func (t *logTree) culprit(ctx context.Context, job wire.Job) (s logSource, ok bool, err error) {
	list, err := t.leaves(ctx, job)
	if err != nil {
		return s, false, err
	}
	culpritsFirst(list)
	if len(list) == 0 || list[0].status != berth.Failed || !list[0].caused {
		return s, false, nil
	}
	logs := t.sources(list[0])
	if len(logs) == 1 {
		return logs[0], true, nil
	}
	member, err := failedMember(ctx, t.client, list[0].job)
	return logs[min(member, len(logs)-1)], true, err
}

// failedMember returns the member of a gang whose failure the latest attempt reported
// first: the others are stopped after it. Without a report it returns member 0.
func failedMember(ctx context.Context, c *client.Client, job berth.JobID) (int, error) {
	history, err := c.Events(ctx, job, 0)
	if err != nil {
		return 0, err
	}
	member, attempt := 0, 0
	for _, e := range history.Items {
		lost := e.Kind == wire.EventExited || e.Kind == wire.EventOrphaned
		if lost && e.Attempt > attempt && e.Facts != nil && e.Facts.Rank != nil {
			member, attempt = *e.Facts.Rank, e.Attempt
		}
	}
	return member, nil
}
