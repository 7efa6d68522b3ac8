package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"charm.land/lipgloss/v2"

	"berth"
	"berth/wire"
)

// eraseLine removes the text of the terminal's line and moves to its beginning.
const eraseLine = "\r\x1b[2K"

// steady is the least time between two plain lines that only report progress. Changes of
// status are printed at once. A log of a CI run stays readable this way.
const steady = 10 * time.Second

// progress shows a job on standard error while a command waits for its end: one line that
// is drawn repeatedly on a terminal, a line for each change elsewhere. The job's log may be
// printed meanwhile, by another goroutine, through around.
//
// A print takes as long as the reader of standard output pauses. It holds prints and not mu: the wait that reports to
// progress must go on. What comes meanwhile is shown after the print.
type progress struct {
	app *app

	prints sync.Mutex // held during a print; taken before mu

	mu       sync.Mutex
	printing bool // a print is under way, and nothing is drawn
	behind   bool // news came during the print

	seen   bool        // update was called
	last   time.Time   // of the last drawing
	drawn  bool        // a line is on the terminal and must be removed at the end
	quiet  error       // of a server that did not answer; nil: it answers
	said   bool        // a plain line has reported quiet
	status berth.State // in the last plain line
	step   int64       // in the last plain line
	stage  wire.Stage  // in the last plain line
	reason string      // code of the reason for waiting, in the last plain line
	at     time.Time   // of the last plain line
	job    wire.Job    // as last seen
	below  string      // unfinished line of the log, of any width, drawn while live; "": none
	away   bool        // the server sends nothing of a followed log
	due    bool        // a drawing of the unfinished line will come by itself
	over   bool        // nothing is drawn any longer
}

// notResponding stands for the state of a job that the server does not send.
const notResponding = "(server not responding)"

// newProgress returns a progress that has shown nothing. No job reports step -1, so the
// first report of a job counts as a change.
func newProgress(a *app) *progress { return &progress{app: a, step: -1} }

// update shows the present state of the job. A job that has ended gets no plain line,
// because sayEnd prints the end.
func (p *progress) update(j wire.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = true
	if j.Tally != nil {
		j.Progress = tallyProgress(j.Tally)
	}
	p.job = j
	switch {
	case p.held():
	case p.app.errTerm.terminal:
		p.draw()
	default:
		p.sayJob(j)
	}
}

// held reports whether news must wait for the end of a print. The caller holds p.mu.
func (p *progress) held() bool {
	p.behind = p.behind || p.printing
	return p.printing
}

// sayJob prints a plain line if the job has changed since the last one. The caller holds p.mu.
func (p *progress) sayJob(j wire.Job) {
	now := p.app.now()
	// A plain line cannot be replaced, so progress alone is printed at most once in each
	// steady.
	moved := j.Progress != nil && j.Progress.Step != p.step && now.Sub(p.at) >= steady
	staged := stageOf(j)
	// The text of a reason changes with every place in the queue, its code rarely.
	entered := !staged.Alike(p.stage) || waitCode(j) != p.reason
	moved = moved || stagePercent(staged) != stagePercent(p.stage) && now.Sub(p.at) >= steady
	if j.Status == p.status && !moved && !entered {
		return
	}
	if j.Status.Terminal() {
		return // sayEnd prints the end
	}
	p.status, p.at, p.stage, p.reason = j.Status, now, staged, waitCode(j)
	if j.Progress != nil {
		p.step = j.Progress.Step
	}
	p.app.say("%s  %s", now.UTC().Format(time.TimeOnly), strings.Join(p.parts(), "  "))
}

// parts returns the parts of the line that may change during the wait. The first is the
// name and the second the status: draw relies on these positions.
func (p *progress) parts() []string {
	j := p.job
	status := statusCell(j).text
	if j.Tally != nil {
		status = string(j.Status) // with other counts than in a list
		if j.Status == berth.Running {
			status += ": " + tallyLine(j.Tally)
		}
	}
	out := []string{nameText(j), status}
	if j.Attempt > 1 {
		out = append(out, fmt.Sprintf("attempt %d", j.Attempt))
	}
	if n := len(j.Attempts); n > 0 && j.Status.HoldsCapacity() && len(j.Attempts[n-1].Machines) > 0 {
		out = append(out, "on "+machinesText(j.Attempts[n-1].Machines))
	}
	if text := waitStage(j, p.app.now()); text != "" {
		out = append(out, text)
	}
	if j.Status == berth.Running && j.Progress != nil && j.Tally == nil {
		out = append(out, stepText(j.Progress))
	} else if waitCode(j) != "" {
		out = append(out, oneLine(jobReason(j)))
	} else if !j.Status.HoldsCapacity() && j.Reason != nil {
		out = append(out, oneLine(reasonText(j.Reason)))
	}
	return out
}

// machinesText names the first machines of an attempt, each once, and counts the rest.
// Several members may run on one machine.
func machinesText(list []berth.MachineID) string {
	const shown = 4
	var names []string
	for _, m := range list {
		if !slices.Contains(names, string(m)) {
			names = append(names, string(m))
		}
	}
	if more := len(names) - shown; more > 0 {
		names = append(names[:shown], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// stepText formats progress on one line. The total is 0 if the job does not report it.
func stepText(p *berth.Progress) string {
	text := fmt.Sprint("step ", p.Step)
	if p.Total > 0 {
		text = fmt.Sprintf("%d/%d %d%%", p.Step, p.Total, percent(p))
	}
	if p.Message != "" {
		text += " " + oneLine(p.Message)
	}
	return text
}

// live reports whether the unfinished line of the log is drawn. The line of a job that does not run, or of a server
// that does not answer, may be an old one. The caller holds p.mu.
func (p *progress) live() bool {
	return p.below != "" && p.quiet == nil && (!p.seen || p.job.Status == berth.Running)
}

// draw replaces the line on the terminal with the present one, cut to the terminal's present width. The caller holds
// p.mu.
func (p *progress) draw() {
	var line string
	switch {
	case p.live() && p.seen:
		line = p.head(lipgloss.Width(p.below)) + p.below
	case p.live():
		line = p.below
	case !p.seen: // a followed log without a wait
		line = notResponding
	default:
		line = p.state()
	}
	fmt.Fprint(p.app.err, eraseLine+p.app.errTerm.fit(line))
	p.drawn, p.last = true, p.app.now()
}

// state returns the line with the state of the job. The caller holds p.mu.
func (p *progress) state() string {
	j, parts := p.job, p.parts()
	if j.Progress != nil && j.Progress.Total > 0 && j.Status == berth.Running {
		// The bar stands after name and status.
		parts = append(parts[:2], append([]string{bar(j.Progress, 24)}, parts[2:]...)...)
	}
	parts = append(parts, p.elapsed())
	if p.quiet != nil {
		parts = append(parts, notResponding)
	}
	parts[1] = p.app.errTerm.paint(toneOfState(j.Status), parts[1])
	return strings.Join(parts, "  ")
}

// elapsed formats the time since the start of the job, or since its submission before the start.
func (p *progress) elapsed() string {
	from := p.job.SubmittedAt
	if p.job.StartedAt != nil {
		from = *p.job.StartedAt
	}
	return span(p.app.now().Sub(from))
}

// head returns the state of a running job that stands before an unfinished line of room columns: as much as fits, and
// at least counts and elapsed time. A line that does not change looks like a hang without a time that moves, and the
// line of one element says nothing about the other elements. The caller holds p.mu.
func (p *progress) head(room int) string {
	j, parts, elapsed := p.job, p.parts(), p.elapsed()
	status, counts := parts[1], ""
	shortest := status
	switch {
	case j.Tally != nil: // status has the counts
		shortest = fmt.Sprintf("%d of %d done", j.Tally.Ended(), j.Tally.Total)
	case j.Progress != nil:
		counts = stepText(&berth.Progress{Step: j.Progress.Step, Total: j.Progress.Total})
		shortest = counts
	}
	const separator = " | "
	room = (room + headStep - 1) / headStep * headStep
	var text string
	for _, fields := range [][]string{
		append(slices.Clone(parts), elapsed), {parts[0], status, counts, elapsed}, {status, counts, elapsed},
		{shortest, elapsed},
	} {
		fields = slices.DeleteFunc(fields, func(f string) bool { return f == "" })
		text = strings.Join(fields, "  ") + separator
		if lipgloss.Width(text)+room < p.app.errTerm.columns() {
			break
		}
	}
	return p.app.errTerm.paint(faint, text)
}

// headStep rounds the width of an unfinished line up for head, so that a bar whose width changes by a digit does not
// change the state before it at each drawing.
const headStep = 8

// redrawEvery is the least time between two drawings for lines of the log: a job that
// writes thousands of lines a second would otherwise spend the time of its command on them.
const redrawEvery = 100 * time.Millisecond

// around removes the line of progress, prints, and draws the line again. If the print goes
// to a pipe, the line appears again with the next news only: the reader of the pipe may
// write to the same terminal.
func (p *progress) around(write func() error) error {
	p.prints.Lock()
	defer p.prints.Unlock()
	p.mu.Lock()
	p.erase()
	p.printing = true
	p.mu.Unlock()
	err := write()
	p.mu.Lock()
	defer p.mu.Unlock()
	behind := p.behind
	p.printing, p.behind = false, false
	switch both := p.app.errTerm.terminal && p.app.outTerm.terminal; {
	case err != nil || p.over:
	case both && p.app.now().Sub(p.last) < redrawEvery:
		p.redrawSoon()
	case both && p.shown():
		p.draw()
	case !p.app.errTerm.terminal && behind:
		p.sayQuiet()
		p.sayJob(p.job)
	}
	return err
}

// silent records whether the last call was answered; a nil error stands for an answer.
// Plain lines report only changes between the two.
func (p *progress) silent(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = err
	switch {
	case p.held():
	case p.app.errTerm.terminal:
		p.draw()
	default:
		p.sayQuiet()
	}
}

// sayQuiet prints a plain line if the server fell silent, or answers again. The caller holds p.mu.
func (p *progress) sayQuiet() {
	if p.said == (p.quiet != nil) {
		return
	}
	p.said = p.quiet != nil
	text := "the server responds again"
	if p.said {
		text = fmt.Sprintf("%v; still waiting", p.quiet)
	}
	p.app.say("%s  %s", p.app.now().UTC().Format(time.TimeOnly), text)
}

// done removes the line from the terminal, so that later messages begin in the first
// column.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.over = true
}

// erase removes the line from the terminal. The caller holds p.mu.
func (p *progress) erase() {
	if p.drawn {
		fmt.Fprint(p.app.err, eraseLine)
		p.drawn = false
	}
}

// bar draws the completed share of the work in width characters.
func bar(p *berth.Progress, width int) string {
	full := int(percent(p)) * width / 100
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
