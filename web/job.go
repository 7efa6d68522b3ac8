package web

import (
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// jobView is the data of the page of a job.
type jobView struct {
	wire.Job
	Now     time.Time
	Owner   string
	Facts   []fact
	Advice  *advice
	Actions []action
	Tabs    []filter
	Tab     string
	Chart   template.HTML // time line of the attempts; "": none yet
	Command string        // shows the same on the command line
	Part    any           // data of the open tab
	Related []related
}

// fact is one line about a job.
type fact struct {
	Name, Text string
	At         *time.Time
	Address    string // of a link; "": none
}

// related is a link to another job.
type related struct {
	Title string
	ID    berth.JobID
}

// advice is the next useful step for the reader.
type advice struct {
	Text, Address, Command string
}

// action is a button of a job's page.
type action struct {
	Do, Title string
	Danger    bool
}

// tab is one view of a job. Its part loads the data; when reports for which jobs the tab exists.
type tab struct {
	key, title string
	when       func(j wire.Job) bool
	part       func(ctx context.Context, v *visit, j wire.Job) (any, error)
	command    string // with the job's handle as %s
	live       bool   // has elements with a data-live, so that live readings need it
}

// jobTabs are all tabs of the page of a job, in order. The first one that exists for a job is open
// without a choice.
var jobTabs = []tab{
	{"elements", "Elements", isArray, elementsPart, "berth list --parent %s", true},
	{"graph", "Graph", isPipeline, graphPart, "berth pipeline show %s", true},
	{"log", "Log", isPlain, logPart, "berth logs %s", false},
	{"events", "Events", nil, eventsPart, "berth events %s", true},
	{"explain", "Explain", nil, explainPart, "berth explain %s", false},
	{"metrics", "Use", isPlain, metricsPart, "berth metrics %s", false},
	{"checkpoints", "Checkpoints", isPlain, checkpointsPart, "berth checkpoints %s", false},
	{"outputs", "Outputs", nil, outputsPart, "berth outputs %s", false},
	{"sessions", "Sessions", isPlain, sessionsPart, "berth sessions %s", true},
	{"spec", "Spec", nil, specPart, "berth show %s -o json", false},
}

// isPlain reports whether a job has containers of its own. Older documents have no kind.
func isPlain(j wire.Job) bool { return j.Kind == berth.KindJob || j.Kind == "" }

func isArray(j wire.Job) bool { return j.Kind == berth.KindArray }

func isPipeline(j wire.Job) bool { return j.Kind == berth.KindPipeline }

// jobPage shows one job, with one of its tabs. It reads the job, the data of the open tab and, for the
// chart of a plain job, the history.
func jobPage(ctx context.Context, v *visit) (result, error) {
	j, err := v.api.Job(ctx, v.job())
	if err != nil {
		return result{}, err
	}
	if j.ID != v.job() { // of a handle or the beginning of an id: one address a job
		return result{redirect: linkOf(v.r.URL.JoinPath("../", string(j.ID)))}, nil
	}
	view := jobView{Job: j, Now: v.page.Now, Owner: owner(j.SubmittedBy)}
	view.Facts, view.Related = factsOf(j), relatedOf(j)
	open := openTab(v.query("tab"), j)
	for _, t := range jobTabs {
		if t.when == nil || t.when(j) {
			view.Tabs = append(view.Tabs, filter{t.title, linkOf(v.r.URL, "tab", t.key), t.key == open.key})
		}
	}
	// A live reading comes every 2 s: it must not repeat a search of the log for rows that it would drop.
	if open.live || !v.reading {
		view.Tab = open.key
		if view.Part, err = open.part(ctx, v, j); err != nil {
			return result{}, err
		}
	}
	if isPlain(j) && len(j.Attempts) > 0 {
		events, ok := view.Part.(eventsView)
		if !ok {
			part, err := eventsPart(ctx, v, j)
			if err != nil {
				return result{}, err
			}
			events, _ = part.(eventsView)
		}
		view.Chart = timeline(j, events.Events, v.page.Now)
	}
	handle := short(j.ID, j.Handle)
	view.Command = fmt.Sprintf(open.command, handle)
	view.Advice = adviceFor(j, handle)
	if v.page.Reader.Acts() {
		view.Actions = actionsOn(j)
	}
	return result{template: "job", title: j.Name, data: view}, nil
}

// openTab returns the tab that the address names, or the first one of the job. An unknown name opens
// the first one, so that an address that a reader has kept does not fail.
func openTab(key string, j wire.Job) tab {
	var first *tab
	for i, t := range jobTabs {
		if t.when != nil && !t.when(j) {
			continue
		}
		if t.key == key {
			return t
		}
		if first == nil {
			first = &jobTabs[i]
		}
	}
	return *first
}

// factsOf are the lines about a job next to its status. A fact without a text and without a time is
// left out.
func factsOf(j wire.Job) []fact {
	facts := []fact{
		{Name: "Owner", Text: owner(j.SubmittedBy)}, {Name: "Tenant", Text: string(j.Tenant)},
		{Name: "Priority", Text: number(float64(j.Priority))}, {Name: "Asks", Text: asks(j)},
		{Name: "Submitted", At: &j.SubmittedAt}, {Name: "Started", At: j.StartedAt}, {Name: "Ended", At: j.FinishedAt},
	}
	if n := len(j.Attempts); n > 0 {
		for _, m := range slices.Compact(slices.Clone(j.Attempts[n-1].Machines)) {
			facts = append(facts, fact{Name: "Machine", Text: string(m), Address: "/machines/" + string(m)})
			// A gang of hundreds of members must not fill the page.
			if len(facts) > 12 {
				break
			}
		}
	}
	if j.Stage != nil {
		facts = append(facts, fact{Name: "Stage", Text: j.Stage.String()})
	}
	if j.ExitCode != nil {
		facts = append(facts, fact{Name: "Exit code", Text: strconv.Itoa(*j.ExitCode)})
	}
	if j.EligibleAt != nil && j.Status.Waiting() {
		facts = append(facts, fact{Name: "Next try", At: j.EligibleAt})
	}
	return slices.DeleteFunc(facts, func(f fact) bool { return f.Text == "" && f.At == nil })
}

// asks renders the request of one member of a job, and the number of members. The hardware is that of
// the alternative in force.
func asks(j wire.Job) string {
	if j.Spec == nil {
		return ""
	}
	one := j.Spec.WithDefaults()
	one.Resources = j.Resources() // of the alternative in force
	r := one.Request()
	if len(r.Groups) > 0 {
		list := make([]string, len(r.Groups))
		for i, g := range r.Split() {
			list[i] = fmt.Sprintf("%d %s of %s", g.Members, r.Groups[i].Name, requestText(g))
		}
		return strings.Join(list, "; ")
	}
	if r.Members > 1 {
		return fmt.Sprintf("%d members of %s", r.Members, requestText(r))
	}
	return requestText(r)
}

// requestText renders the request of one member.
func requestText(r spec.Request) string {
	parts := []string{plural(1, "CPU")}
	if r.CPUMilli != 1000 {
		parts[0] = cores(r.CPUMilli) + " CPUs"
	}
	parts = append(parts, berth.BytesText(r.MemoryMiB<<20))
	if r.GPUs > 0 {
		text := number(float64(r.GPUs)*float64(r.GPUMilli)/1000) + " GPU"
		if len(r.GPUTypes) > 0 {
			text += " (" + strings.Join(r.GPUTypes, ", ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// relatedOf links the jobs that a job has to do with.
func relatedOf(j wire.Job) (list []related) {
	add := func(title string, id *berth.JobID) {
		if id != nil && *id != "" {
			list = append(list, related{title, *id})
		}
	}
	add("Part of", j.Parent)
	add("Retry of", j.RetryOf)
	add("Retried by", j.RetriedBy)
	add("Result copied from", j.CachedFrom)
	addHolds(j, add)
	if j.StartedFrom != nil {
		title := fmt.Sprintf("Started from step %d of", j.StartedFrom.Step)
		if n := j.StartedFrom.Parts; n > 0 {
			title = fmt.Sprintf("Started from step %d, with the parts of %s, of", j.StartedFrom.Step,
				plural(n, "member"))
		}
		add(title, &j.StartedFrom.Job)
	}
	return list
}

// shownHolds bounds the ended holds that a job's page links.
const shownHolds = 3

// addHolds links the debug jobs that hold attempts of a job, and the newest ones that held some, or the job that a
// debug job holds.
func addHolds(j wire.Job, add func(title string, id *berth.JobID)) {
	ended := 0
	for _, h := range slices.Backward(j.HeldAttempts) {
		title := fmt.Sprintf("Files of attempt %d kept by", h.Attempt)
		if h.Status.Terminal() {
			if ended++; ended > shownHolds {
				continue
			}
			title = fmt.Sprintf("Files of attempt %d were kept by", h.Attempt)
		}
		add(title, &h.Job)
	}
	if h := j.HoldOf; h != nil {
		add(fmt.Sprintf("Keeps the files of attempt %d of", h.Attempt), &h.Job)
	}
}

// adviceFor is the next useful step for a job, by its status. The first case that applies decides; nil:
// there is no advice.
func adviceFor(j wire.Job, handle string) *advice {
	here := "/jobs/" + string(j.ID) + "?tab="
	switch {
	case j.Held && j.Status.Waiting():
		return &advice{"The job is on hold. Release the job to let it start.", "/act?do=release&id=" + string(j.ID),
			"berth release " + handle}
	case j.Status.Waiting():
		text := "The job waits. See all reasons why it does not start."
		if j.Waiting != nil && j.Waiting.Message != "" {
			text = "The job waits: " + sentence(j.Waiting.Message)
		}
		return &advice{text, here + "explain", "berth explain " + handle}
	case j.Status == berth.Failed && isPlain(j):
		return &advice{"Read the end of the log.", here + "log", "berth logs --tail 50 " + handle}
	case j.Status == berth.Failed || j.Status == berth.Canceled:
		return &advice{"Retry the job: a new job repeats the parts that failed.", "/act?do=retry&id=" + string(j.ID),
			"berth retry " + handle}
	case j.Status == berth.Running && isPlain(j):
		return &advice{"The job runs. Follow its log.", here + "log", "berth logs -f " + handle}
	case j.Status == berth.Succeeded && j.Spec != nil && len(j.Spec.Outputs) > 0:
		return &advice{"The job succeeded. Get its outputs.", here + "outputs", "berth outputs pull " + handle}
	}
	return nil
}

// actionsOn are the actions that a job's status allows. The API decides in the end, since the job may
// have changed after it was read.
func actionsOn(j wire.Job) []action {
	cancel := action{"cancel", "Cancel", true}
	switch {
	case j.Status.Terminal():
		return []action{{"retry", "Retry", false}}
	case j.Held && j.Status.Waiting():
		return []action{{"release", "Release", false}, {"priority", "Priority", false}, cancel}
	case j.Status.Waiting() && isPlain(j):
		return []action{{"hold", "Hold", false}, {"priority", "Priority", false}, cancel}
	case j.Status == berth.Running && isPlain(j):
		return []action{{"suspend", "Suspend", false}, {"priority", "Priority", false}, cancel}
	case j.Status == berth.Canceling:
		return nil
	}
	return []action{{"priority", "Priority", false}, cancel}
}

// eventsView is the history of a job, oldest first.
type eventsView struct{ Events []wire.Event }

// eventsPart reads the history of the job from its first event.
func eventsPart(ctx context.Context, v *visit, j wire.Job) (any, error) {
	events, err := v.api.Events(ctx, j.ID, 0)
	return eventsView{events.Items}, err
}

// explainPart asks for all reasons of the job's state. The answer costs a plan of the queue, so
// only the open tab asks for it.
func explainPart(ctx context.Context, v *visit, j wire.Job) (any, error) {
	e, err := v.api.Explain(ctx, j.ID)
	return e, err
}

// checkpointsPart shows the checkpoints that came with the job.
func checkpointsPart(_ context.Context, _ *visit, j wire.Job) (any, error) { return j.Checkpoints, nil }

// outputsPart lists the stored outputs; for an array or a pipeline, the outputs of all elements
// and steps.
func outputsPart(ctx context.Context, v *visit, j wire.Job) (any, error) {
	outputs, err := v.api.Outputs(ctx, j.ID)
	return outputs.Items, err
}

// specPart renders the job's file as JSON, which the page Submit reads again.
func specPart(_ context.Context, _ *visit, j wire.Job) (any, error) {
	var of any = j.Spec
	if j.Pipeline != nil {
		of = j.Pipeline
	}
	b, err := json.MarshalIndent(of, "", "  ")
	return string(b), err
}

// metricsView is the choice of a picture of metrics.
type metricsView struct {
	Address  string
	Attempts []filter
	Measured []berth.Measured
	Attempt  int
}

// metricsPart links the picture of the chosen attempt.
func metricsPart(_ context.Context, v *visit, j wire.Job) (any, error) {
	n := chosenAttempt(v, j)
	view := metricsView{Attempt: n, Attempts: attemptLinks(v, j, n)}
	if n > 0 {
		view.Address = fmt.Sprintf("/jobs/%s/metrics?attempt=%d", j.ID, n)
		view.Measured = j.Attempts[n-1].Measured
	}
	return view, nil
}

// chosenAttempt is the attempt of the address, the latest one without a choice, 0 before the first.
func chosenAttempt(v *visit, j wire.Job) int {
	n, err := strconv.Atoi(v.query("attempt"))
	if err != nil || n < 1 || n > len(j.Attempts) {
		n = len(j.Attempts)
	}
	return n
}

// attemptLinks are the links of the choice between attempts; none for a single one.
func attemptLinks(v *visit, j wire.Job, chosen int) (links []filter) {
	if len(j.Attempts) < 2 {
		return nil
	}
	for i := max(1, len(j.Attempts)-11); i <= len(j.Attempts); i++ {
		links = append(links, filter{fmt.Sprintf("Attempt %d", i), v.link("attempt", strconv.Itoa(i)), i == chosen})
	}
	return links
}

// metricsPicture serves the server's plot of a job's use.
func metricsPicture(ctx context.Context, v *visit) (result, error) {
	attempt, _ := strconv.Atoi(v.query("attempt"))
	b, err := v.api.MetricsSVG(ctx, v.job(), client.MetricsQuery{Attempt: attempt, Member: -1})
	if err != nil {
		return result{}, err
	}
	// A picture may have styles of its own; as a document of its own it may load and run nothing.
	v.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	v.w.Header().Set("Content-Type", "image/svg+xml")
	v.w.WriteHeader(http.StatusOK)
	_, _ = v.w.Write(b)
	return result{}, errWritten
}
