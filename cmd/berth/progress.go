package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/wire"
)

// steady is how often plain lines repeat a job's progress at most.
const steady = 10 * time.Second

// progress shows a job that is waited for, on standard error: one line drawn
// over and over on a terminal, a line for each change elsewhere.
type progress struct {
	app    *app
	drawn  bool
	quiet  bool // the server did not answer, and that was said
	status berth.State
	step   int64
	at     time.Time // of the last plain line
	job    wire.Job
}

func newProgress(a *app) *progress { return &progress{app: a, step: -1} }

// update shows the job as it is now.
func (p *progress) update(j wire.Job) {
	if j.Tally != nil {
		j.Progress = tallyProgress(j.Tally)
	}
	p.job = j
	if p.app.errTerm.terminal {
		p.draw()
		return
	}
	now := p.app.now()
	moved := j.Progress != nil && j.Progress.Step != p.step && now.Sub(p.at) >= steady
	if j.Status == p.status && !moved {
		return
	}
	if j.Status.Terminal() {
		return // sayEnd says it
	}
	p.status, p.at = j.Status, now
	if j.Progress != nil {
		p.step = j.Progress.Step
	}
	p.app.say("%s  %s", now.UTC().Format(time.TimeOnly), strings.Join(p.parts(), "  "))
}

// parts are the words about a job that may change while it is waited for.
func (p *progress) parts() []string {
	j := p.job
	status := statusCell(j).text
	if j.Tally != nil {
		status = string(j.Status) // how far it is, progress says
	}
	out := []string{nameText(j), status}
	if j.Attempt > 1 {
		out = append(out, fmt.Sprintf("attempt %d", j.Attempt))
	}
	if n := len(j.Attempts); n > 0 && j.Status.HoldsCapacity() && len(j.Attempts[n-1].Machines) > 0 {
		out = append(out, "on "+machinesText(j.Attempts[n-1].Machines))
	}
	if j.Status == berth.Running && j.Progress != nil {
		out = append(out, stepText(j.Progress))
	} else if !j.Status.HoldsCapacity() && j.Reason != nil {
		out = append(out, oneLine(reasonText(j.Reason)))
	}
	return out
}

// machinesText names the first machines, each once.
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

// draw writes the line again in its place.
func (p *progress) draw() {
	j, s := p.job, p.app.errTerm
	parts := p.parts()
	if j.Progress != nil && j.Progress.Total > 0 && j.Status == berth.Running {
		parts = append(parts[:2], append([]string{bar(j.Progress, 24)}, parts[2:]...)...)
	}
	from := j.SubmittedAt
	if j.StartedAt != nil {
		from = *j.StartedAt
	}
	parts = append(parts, span(p.app.now().Sub(from)))
	if p.quiet {
		parts = append(parts, "(the server does not answer)")
	}
	line := cut(strings.Join(parts, "  "), s.width-1)
	line = strings.Replace(line, parts[1], s.paint(toneOfState(j.Status), parts[1]), 1)
	fmt.Fprint(p.app.err, "\r\x1b[2K"+line)
	p.drawn = true
}

// silent notes that the server did not answer, or with nil that it did.
func (p *progress) silent(err error) {
	changed := p.quiet != (err != nil)
	p.quiet = err != nil
	switch {
	case p.app.errTerm.terminal:
		p.draw()
	case changed && err != nil:
		p.app.say("%s  %v; still waiting", p.app.now().UTC().Format(time.TimeOnly), err)
	case changed:
		p.app.say("%s  the server answers again", p.app.now().UTC().Format(time.TimeOnly))
	}
}

// done removes the line.
func (p *progress) done() {
	if p.drawn {
		fmt.Fprint(p.app.err, "\r\x1b[2K")
	}
}

// bar draws how much of the work is done.
func bar(p *berth.Progress, width int) string {
	full := int(percent(p)) * width / 100
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
