package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/wire"
)

// newPlan builds "berth plan" over POST /v1/plans, which stores nothing. The exit code is
// that of a submit: 6 if no machine could ever hold the job.
func newPlan(a *app) *cobra.Command {
	var over overrides
	cmd := &cobra.Command{
		Use:   "plan FILE|-",
		Short: "Show what would happen to a file, without submitting it",
		Long: "Plan shows on which machines a job would run, its start, its cost, and why other machines do not " +
			"fit.\n" +
			"For a pipeline it shows each step as if it were submitted alone, for a schedule the job or pipeline.\n" +
			"The exit code is 6 if no machine could ever run the job, or a step.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := a.readWork(cmd.Context(), args[0], over)
			if err != nil {
				return err
			}
			return planWork(cmd.Context(), a, w)
		},
	}
	over.register(cmd)
	return cmd
}

// unsatisfiable returns the error with which a submit would be refused, or nil if some
// machine could hold the job.
func unsatisfiable(f wire.Fit) error {
	if len(f.Lacking) == 0 {
		return nil
	}
	parts := make([]string, len(f.Lacking))
	for i, l := range f.Lacking {
		parts[i] = l.String()
	}
	return &berth.Error{Code: berth.CodeCapacity, Slug: berth.SlugUnsatisfiable,
		Message: "no machine can run the job: " + strings.Join(parts, "; ")}
}

// showPlan prints a plan. -o name prints the machines that fit now, the best first.
func showPlan(a *app, p wire.Plan) error {
	names := make([]string, len(p.Fit.Candidates))
	for i, m := range p.Fit.Candidates {
		names[i] = string(m)
	}
	return a.show(view{body: p, names: names, table: func(wide bool) error {
		s := sheet{screen: a.outTerm}
		switch {
		case p.StartsNow:
			s.add("starts", a.outTerm.paint(good, "now"))
		case p.EstimatedStart != nil:
			s.add("starts", startText(a, p.EstimatedStart, p.Reserved, p.EstimatedBy))
		case len(p.Fit.Lacking) > 0:
			s.add("starts", a.outTerm.paint(bad, "never"))
		default:
			s.add("starts", a.outTerm.paint(warn, "not now")+"; "+unknownStart(p.Blockers, p.Fit, p.RunTime))
		}
		addBlockers(a, &s, p.Blockers)
		s.add("runs", runTimeText(p.RunTime))
		s.add("needs", requestText(p.Spec))
		addUser(&s, p.Spec, p.RunsAs, "")
		addChoices(a, &s, p.Alternatives, true)
		if p.CostPerHour != nil {
			s.add("costs", fmt.Sprintf("%.2f USD per hour", *p.CostPerHour))
		}
		if p.Ahead > 0 {
			s.add("ahead", plural(p.Ahead, "waiting job", "waiting jobs"))
		}
		addTerms(&s, p.Priority)
		addFit(&s, p.Fit)
		if err := writeFit(a, &s, p.Fit, wide); err != nil {
			return err
		}
		return writeOffers(a, p.Offers, p.OffersNote)
	}})
}

// addBlockers adds the reasons that keep a job from starting, each with a hint and the jobs
// involved. Codes are stable; messages are not.
func addBlockers(a *app, s *sheet, list []wire.Blocker) {
	for _, b := range list {
		s.add("blocked by", a.outTerm.paint(warn, b.Code)+": "+oneLine(b.Message))
		if b.Hint != "" {
			s.add("", "  hint: "+oneLine(b.Hint))
		}
		for _, id := range b.Jobs {
			s.add("", "  "+string(id))
		}
	}
}

// addTerms adds the terms that determine a job's place in the queue, the weightiest first.
func addTerms(s *sheet, list []wire.Term) {
	label := "place by"
	for _, t := range list {
		text := t.Text
		if text == "" { // an older server sends the value without a text
			text = t.Name + " " + t.Value
		}
		s.add(label, oneLine(text))
		label = "then by"
	}
}

// startText formats an estimated start. A reserved start is not delayed by later jobs;
// otherwise the time follows from the time limits of the jobs that run and wait ahead, and for
// jobs without a limit from how long similar jobs ran.
func startText(a *app, at *time.Time, reserved bool, by wire.EstimateBy) string {
	switch {
	case reserved:
		return stamp(at, a.now()) + ", reserved"
	case by == wire.ByRunTimes:
		return stamp(at, a.now()) + ", estimated by how long similar jobs ran"
	}
	return stamp(at, a.now()) + ", estimated"
}

// likeTexts name the common properties of similar jobs, by wire.RunTime.Like.
var likeTexts = map[string]string{
	"near": "of this name, submitted at about the same time", "name": "of this name",
	"data": "with the same image, inputs and resources", "shape": "of this tenant with as many GPUs",
	"tenant": "of this tenant", "all": "of all tenants",
}

// runTimeText says how long a job without a time limit is expected to run.
func runTimeText(r *wire.RunTime) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("half of %s %s ended within %s, 9 of 10 within %s (%s confidence)",
		plural(r.Jobs, "job", "jobs"), cmp.Or(likeTexts[r.Like], "like it"), seconds(r.MedianSeconds),
		seconds(r.P90Seconds), oneLine(r.Confidence))
}

// seconds formats a duration in seconds.
func seconds(s float64) string { return span(time.Duration(s * float64(time.Second))) }

// addFit adds how many machines fit a request, now and if they were empty, and names the
// best ones.
func addFit(s *sheet, f wire.Fit) {
	s.add("machines", fmt.Sprintf("%d total, %d with room now, %d when idle", f.Machines,
		f.FitNow, f.FitEver))
	// Only of a gang, which starts when all members have room at once.
	if f.MembersNow != nil {
		s.add("members", plural(*f.MembersNow, "has", "have")+" room at the same time")
	}
	if len(f.Candidates) > 0 {
		const most = 5
		names := make([]string, 0, most)
		for _, m := range f.Candidates[:min(most, len(f.Candidates))] {
			names = append(names, string(m))
		}
		text := strings.Join(names, ", ")
		if more := len(f.Candidates) - most; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		s.add("best", text)
	}
	// Machines that hold a part of the job's data; the label stands before the first.
	label := "data"
	for _, d := range f.Data {
		s.add(label, oneLine(d.String()))
		label = ""
	}
	s.add("fit", oneLine(f.Summary))
}

// writeFit prints the sheet and, below the sheet, the conditions that rule machines out.
// RULES OUT counts the machines that fail a condition and passed all earlier ones, BY
// ITSELF all machines that fail the condition.
func writeFit(a *app, s *sheet, f wire.Fit, wide bool) error {
	if err := s.write(a.out); err != nil {
		return err
	}
	// DeleteFunc overwrites its argument, and the slice belongs to the caller.
	clauses := f.Clauses
	if !wide { // leave out conditions that only repeat an earlier one
		clauses = slices.DeleteFunc(slices.Clone(clauses), func(c wire.FitClause) bool { return c.After == 0 })
	}
	if len(clauses) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	t := table{screen: a.outTerm, head: []string{"CONDITION", "RULES OUT", "WHAT"}}
	if wide {
		t.head = []string{"CONDITION", "RULES OUT", "BY ITSELF", "WHAT"}
	}
	for _, c := range clauses {
		cells := []any{c.Name, fmt.Sprint(c.After)}
		if wide {
			cells = append(cells, fmt.Sprint(c.Alone))
		}
		t.add(append(cells, c.Text)...)
	}
	return t.write(a.out)
}

// newExplain builds "berth explain" over GET /v1/jobs/{id}/explain.
func newExplain(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain JOB",
		Short: "Explain a job's state and list everything that keeps it from starting",
		Long: "Explain shows in at most five entries why a job waits: its place, the reasons, the jobs that hold\n" +
			"the room as far as you may see them, the estimated start and the next step. -o wide adds all reasons\n" +
			"with codes, the values that decide the order, all conditions on machines, and offers of clouds.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(liveJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := a.job(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			e, err := c.Explain(cmd.Context(), job.ID)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showExplanation(a, job, e)
		},
	}
}

// showExplanation prints the reasons of a job's state. -o name prints the codes of the
// blockers, on which scripts can branch.
func showExplanation(a *app, job wire.Job, e wire.Explanation) error {
	names := make([]string, len(e.Blockers))
	for i, b := range e.Blockers {
		names[i] = b.Code
	}
	return a.show(view{body: e, names: names, table: func(wide bool) error {
		s := sheet{screen: a.outTerm, wraps: true}
		if !wide {
			addReasons(a, &s, job, e)
			s.add("image", imageRequestText(job))
			addHeld(&s, job, a.now())
			return s.write(a.out)
		}
		s.add("job", named(job))
		s.add("vars", oneLine(pairs(job.Variables)))
		s.add("status", a.outTerm.paint(toneOfState(e.Status), string(e.Status)))
		if job.Spec != nil && job.Pipeline == nil {
			s.add("reaches", reachText(*job.Spec))
			addUser(&s, *job.Spec, job.RunsAs, job.Status)
		}
		s.add("summary", oneLine(e.Summary))
		addBlockers(a, &s, e.Blockers)
		s.add("room", holdersText(a, e, wide))
		s.add("starts", startsText(a, e))
		s.add("runs", runTimeText(e.RunTime))
		s.add("place", placeText(e))
		s.add("image", imageRequestText(job))
		addTerms(&s, e.Priority)
		addChoices(a, &s, e.Alternatives, false)
		addHeld(&s, job, a.now())
		if e.Fit == nil {
			return s.write(a.out)
		}
		addFit(&s, *e.Fit)
		if err := writeFit(a, &s, *e.Fit, wide); err != nil {
			return err
		}
		return writeOffers(a, e.Offers, e.OffersNote)
	}})
}

// hardwareReasons are the codes of reasons that concern one hardware of a job. Another reason, such as a hold, keeps
// the job from every hardware.
var hardwareReasons = []string{"no_room", "behind", "reserved", "unsatisfiable"}

// addReasons adds an explanation in at most five entries: the job with its place, the reasons without codes, the
// holders of the room, the start, and the next step. Wide has the rest.
func addReasons(a *app, s *sheet, job wire.Job, e wire.Explanation) {
	s.add("job", jobLine(a, job, e))
	label, waits := "waiting", e.Status.Waiting()
	if !waits {
		label = "note" // of a job that does not wait, the blockers are only remarks
	}
	if len(e.Blockers) == 0 || !waits {
		s.add("summary", oneLine(e.Summary))
	}
	const shown = 2
	var reasons []string
	hint := ""
	for i, b := range e.Blockers {
		if i < shown {
			reasons = append(reasons, oneLine(b.Message))
		}
		hint = cmp.Or(hint, b.Hint)
	}
	if more := len(e.Blockers) - shown; more > 0 {
		reasons = append(reasons, plural(more, "more reason", "more reasons")+" (-o wide)")
	}
	if len(reasons) > 0 {
		s.add(label, a.outTerm.paint(warn, strings.Join(reasons, "; ")))
	}
	s.add("room", holdersText(a, e, false))
	s.add("starts", startAndRun(a, e))
	choice := nextChoice(a, e.Alternatives)
	if choice != "" && (hint == "" || slices.Contains(hardwareReasons, e.Blockers[0].Code)) {
		s.add("or", choice) // in place of the hint, which is about the preferred hardware alone
		return
	}
	if others := len(e.Offers) - 1; others > 0 { // the first offer is the present machines
		hint = strings.TrimPrefix(hint+"; "+plural(others, "offer", "offers")+" of clouds: -o wide", "; ")
	}
	s.add("hint", oneLine(hint))
}

// jobLine names a job with its status, its place in the queue and its variables.
func jobLine(a *app, job wire.Job, e wire.Explanation) string {
	text := named(job) + ": " + a.outTerm.paint(toneOfState(e.Status), string(e.Status))
	if place := placeText(e); place != "" {
		text += ", " + place
	}
	if vars := oneLine(pairs(job.Variables)); vars != "" {
		text += "; " + vars
	}
	return text
}

// startAndRun is startsText with the expected run time of a job without a time limit.
func startAndRun(a *app, e wire.Explanation) string {
	text := startsText(a, e)
	if e.RunTime == nil || text == "" {
		return text
	}
	return fmt.Sprintf("%s; runs %s at the median, %s at the 90th percentile (%s confidence)", text,
		seconds(e.RunTime.MedianSeconds), seconds(e.RunTime.P90Seconds), oneLine(e.RunTime.Confidence))
}

// startsText describes the start of a waiting job; "" for other jobs.
func startsText(a *app, e wire.Explanation) string {
	switch {
	// Fit is set only while the job waits; a job that runs has no start to estimate.
	case e.EstimatedStart != nil:
		return startText(a, e.EstimatedStart, e.Reserved, e.EstimatedBy)
	case e.Fit != nil:
		return unknownStart(e.Blockers, *e.Fit, e.RunTime)
	}
	return ""
}

// placeText describes the place of a waiting job in the queue; "" for other jobs.
func placeText(e wire.Explanation) string {
	switch {
	// Position is absent for a job that is not in the queue, or that starts now.
	case e.Position != nil && e.Queue != nil:
		return fmt.Sprintf("%d of %d in the queue", *e.Position, *e.Queue)
	case e.Ahead != nil && *e.Ahead > 0:
		return "behind " + plural(*e.Ahead, "waiting job", "waiting jobs")
	}
	return ""
}

// holdersText names the jobs that hold the room of a waiting job, as far as the caller may
// see them: all in wide, otherwise the first two to end.
func holdersText(a *app, e wire.Explanation, wide bool) string {
	named, others := e.Holders, e.OtherHolders
	const most = 2
	if !wide && len(named) > most {
		others += len(named) - most
		named = named[:most]
	}
	var parts []string
	for _, h := range named {
		j := wire.Job{ID: h.Job, Handle: h.Handle, Name: h.Name, ArrayIndex: h.ArrayIndex}
		text := nameText(j) + " (" + handle(j) + ") on " + machinesText(h.Machines)
		if h.EndsBy != nil {
			text += " until " + clock(*h.EndsBy, a.now())
		}
		parts = append(parts, oneLine(text))
	}
	switch {
	case others > 0 && len(parts) > 0:
		parts = append(parts, plural(others, "other job", "other jobs"))
	case others > 0:
		parts = append(parts, plural(others, "job", "jobs"))
	case len(parts) == 0:
		return ""
	}
	return "held by " + strings.Join(parts, ", ")
}

// clock formats a time of day, with the date unless it is within a day.
func clock(at, now time.Time) string {
	if d := at.Sub(now); d > -12*time.Hour && d < 24*time.Hour {
		return at.UTC().Format("15:04:05Z")
	}
	return at.UTC().Format("2006-01-02 15:04Z")
}
