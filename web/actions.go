package web

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// verb is one action on jobs or on a machine. do acts on one object. The id that it returns is that of
// a new job, which only a retry has.
type verb struct {
	title   string
	effect  string // completes "3 jobs" in the question
	danger  bool
	machine bool // on a machine, not on jobs
	fields  []field
	do      func(ctx context.Context, v *visit, id string) (made berth.JobID, err error)
	command string
}

// field is an input of a confirmation.
type field struct {
	Name, Label, Kind, Help string
	Required                bool
}

// verbs are all actions, by their name in forms. The rights are the API's: a page only offers the
// actions of the reader's role.
var verbs = map[string]verb{
	"cancel": {title: "Cancel", danger: true, command: "berth cancel", do: cancelOne,
		effect: "will be canceled. Running containers get their grace period to stop"},
	"hold":    {title: "Hold", command: "berth hold", do: holdOne, effect: "will not start until released"},
	"release": {title: "Release", command: "berth release", do: releaseOne, effect: "may start again"},
	"suspend": {title: "Suspend", danger: true, command: "berth suspend", do: suspendOne,
		effect: "will save a checkpoint, stop, and wait until released",
		fields: []field{{Name: "lose_work", Kind: "checkbox",
			Label: "Also suspend jobs without a checkpoint: they lose all work since their start"}}},
	"retry": {title: "Retry", command: "berth retry", do: retryOne, effect: "will be submitted again as a new job",
		fields: []field{
			{Name: "failed", Kind: "checkbox", Label: "In arrays and pipelines, repeat only failed elements and steps"},
			{Name: "fresh", Kind: "checkbox", Label: "Start from the beginning, not from the last checkpoint"},
			{Name: "fresh_image", Kind: "checkbox",
				Label: "Resolve the image's tag again, instead of the digest found at the submit"}}},
	"priority": {title: "Set priority", command: "berth priority", do: prioritizeOne, effect: "will get this priority",
		fields: []field{{Name: "priority", Kind: "text", Label: "Priority", Required: true,
			Help: "low, normal, high, or 0 to 1000"}}},
	"drain": {title: "Drain", machine: true, command: "berth machine drain", do: drainOne,
		effect: "will get no new work",
		fields: []field{{Name: "reason", Kind: "text", Label: "Reason", Required: true, Help: "such as: new kernel"},
			{Name: "within", Kind: "text", Label: "Move running jobs away after",
				Help: "such as 30m; if empty, running jobs finish"}}},
	"undrain": {title: "Undrain", machine: true, command: "berth machine undrain", do: undrainOne,
		effect: "will get work again"},
	"approve": {title: "Approve", machine: true, command: "berth machine approve", do: approveOne,
		effect: "will get work with the equipment that it reported last"},
}

// actView is the data of a confirmation, and of the result of an action.
type actView struct {
	Do, Title, Question string
	Danger              bool
	Jobs                []wire.Job
	Missing             int // chosen jobs that the reader does not see
	Machine             *wire.Machine
	Fields              []field
	Values              map[string]string
	Back                string
	Command             string
	Done                int // of a result
	Failures            []failure
}

// failure is one job on which an action failed.
type failure struct{ ID, Message string }

// chosenMost is the number of jobs that one action may have.
const chosenMost = 200

// chosen returns the verb and the objects of a form. An object that is named twice counts once. Each
// object costs a call, so their number is bounded by chosenMost. All errors have the code invalid.
func chosen(v *visit) (name string, of verb, ids []string, err error) {
	if err := v.r.ParseForm(); err != nil {
		return "", verb{}, nil, berth.Errorf(berth.CodeInvalid, "the form cannot be read: %v", err)
	}
	name = v.r.Form.Get("do")
	of, ok := verbs[name]
	if !ok {
		return name, of, nil, berth.Errorf(berth.CodeInvalid, "action %q is not known; allowed are %s", clip(40, name),
			strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))
	}
	key := "id"
	if of.machine {
		key = "machine"
	}
	for _, id := range v.r.Form[key] {
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	switch {
	case len(ids) == 0:
		err = berth.Errorf(berth.CodeInvalid, "no job or machine is selected; go back and select at least one")
	case len(ids) > chosenMost:
		err = berth.Errorf(berth.CodeInvalid, "%d jobs are selected; at most %d are allowed at once", len(ids),
			chosenMost)
	}
	return name, of, ids, err
}

// confirmPage asks before an action, with the number of jobs and their names. It changes nothing. Links
// of other sites may lead to it, so an action needs the POST of its form. Jobs that the reader does not
// see are counted and not named.
func confirmPage(ctx context.Context, v *visit) (result, error) {
	name, of, ids, err := chosen(v)
	if err != nil {
		return result{}, err
	}
	view := actView{Do: name, Title: of.title, Danger: of.danger, Fields: of.fields, Command: of.command,
		Back: localPath(v.r.Form.Get("back"))}
	if of.machine {
		if !v.page.Reader.Operates() {
			return result{}, berth.Errorf(berth.CodeForbidden, "this needs an admin token; yours has the role %s",
				v.page.Reader.Role)
		}
		m, err := v.api.Machine(ctx, berth.MachineID(ids[0]))
		if err != nil {
			return result{}, err
		}
		view.Machine = &m
		view.Question = fmt.Sprintf("Machine %s %s. %s on it now.", clip(60, m.ID), of.effect,
			plural(len(m.Jobs), "job"))
		view.Command += " " + shellWord(string(m.ID))
		return result{template: "act", title: of.title, data: view}, nil
	}
	if !v.page.Reader.Acts() {
		return result{}, errReadsOnly(v)
	}
	for _, id := range ids {
		j, err := v.api.Job(ctx, berth.JobID(id))
		switch {
		case berth.CodeOf(err) == berth.CodeNotFound:
			view.Missing++
		case err != nil:
			return result{}, err
		default:
			view.Jobs = append(view.Jobs, j)
			view.Command += " " + shellWord(short(j.ID, j.Handle))
		}
	}
	if len(view.Jobs) == 0 {
		return result{}, berth.Errorf(berth.CodeNotFound, "your token can see none of the selected jobs")
	}
	view.Question = plural(len(view.Jobs), "job") + " " + of.effect + "."
	return result{template: "act", title: of.title, data: view}, nil
}

// errReadsOnly is the refusal of a change to a reader without the right to act.
func errReadsOnly(v *visit) error {
	return berth.Errorf(berth.CodeForbidden, "this changes data; your token has the role %s, which only reads",
		v.page.Reader.Role)
}

// act carries an action out, job by job: each has its own result. A failure does not stop the others,
// except for one about the reader's rights.
func act(ctx context.Context, v *visit) (result, error) {
	name, of, ids, err := chosen(v)
	if err != nil {
		return result{}, err
	}
	view := actView{Do: name, Title: of.title, Back: localPath(v.r.Form.Get("back"))}
	var made berth.JobID
	var last error
	for _, id := range ids {
		j, err := of.do(ctx, v, id)
		switch code := berth.CodeOf(err); {
		case code == berth.CodeUnauthorized || code == berth.CodeForbidden:
			return result{}, err // it would be the same for the others
		case err != nil:
			last = err
			view.Failures = append(view.Failures, failure{id, sentence(messageOf(err))})
		default:
			made = j
			view.Done++
		}
	}
	switch {
	// The retry of a single job leads to the new job, all other actions lead back.
	case len(view.Failures) == 0 && len(ids) == 1 && name == "retry":
		return result{redirect: "/jobs/" + string(made)}, nil
	case len(view.Failures) == 0:
		return result{redirect: view.Back}, nil
	case len(ids) == 1:
		return result{}, last
	}
	return result{template: "acted", title: of.title, data: view, status: http.StatusConflict}, nil
}

// cancelOne cancels a job. A job that is canceling already, or has ended, stays as it is.
func cancelOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	j, err := v.api.Cancel(ctx, berth.JobID(id))
	return j.ID, err
}

// holdOne keeps a waiting job from starting, until a release.
func holdOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	j, err := v.api.Hold(ctx, berth.JobID(id))
	return j.ID, err
}

// releaseOne ends the hold of a job.
func releaseOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	j, err := v.api.Release(ctx, berth.JobID(id))
	return j.ID, err
}

// suspendOne stops a running job after a checkpoint, and holds it. The API refuses a job that would
// lose its work, unless lose_work is set.
func suspendOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	j, err := v.api.Suspend(ctx, berth.JobID(id), v.r.PostFormValue("lose_work") != "")
	return j.ID, err
}

// retryOne submits an ended job again and returns the id of the new job.
func retryOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	j, err := v.api.Retry(ctx, berth.JobID(id), client.RetryOptions{
		Failed: v.r.PostFormValue("failed") != "", Fresh: v.r.PostFormValue("fresh") != "",
		FreshImage: v.r.PostFormValue("fresh_image") != ""})
	return j.ID, err
}

// prioritizeOne sets a priority, written as in a job file.
func prioritizeOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	text := strings.TrimSpace(v.r.PostFormValue("priority"))
	var p spec.Priority
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		quoted, _ := json.Marshal(text)
		if err := json.Unmarshal(quoted, &p); err != nil {
			return "", berth.Errorf(berth.CodeInvalid,
				"priority %q is not known; allowed are low, normal, high, or 0 to 1000", clip(40, text))
		}
	}
	j, err := v.api.Update(ctx, berth.JobID(id), spec.JobPatch{Priority: &p})
	return j.ID, err
}

// drainOne drains a machine for a reason, with a deadline some time from now.
func drainOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	order := wire.DrainRequest{Reason: strings.TrimSpace(v.r.PostFormValue("reason"))}
	if order.Reason == "" {
		return "", berth.Errorf(berth.CodeInvalid, "a drain needs a reason for other operators, such as: new kernel")
	}
	if within := strings.TrimSpace(v.r.PostFormValue("within")); within != "" {
		d, err := time.ParseDuration(within)
		if err != nil || d <= 0 {
			return "", berth.Errorf(berth.CodeInvalid, "%q is not a duration; allowed are times such as 30m or 2h",
				clip(40, within))
		}
		at := v.page.Now.Add(d)
		order.Deadline = &at
	}
	_, err := v.api.Drain(ctx, berth.MachineID(id), order)
	return "", err
}

// approveOne approves the equipment that the confirmation has shown. Without a fingerprint it sends
// NoFingerprint, which never matches: an empty one would approve any equipment.
func approveOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	_, err := v.api.Approve(ctx, berth.MachineID(id), cmp.Or(v.r.PostFormValue("fingerprint"), wire.NoFingerprint))
	return "", err
}

// undrainOne opens a machine to new work. The API refuses this inside a maintenance window.
func undrainOne(ctx context.Context, v *visit, id string) (berth.JobID, error) {
	_, err := v.api.Undrain(ctx, berth.MachineID(id))
	return "", err
}
