package main

import (
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"berth/wire"
)

// liveLines are the unfinished lines of followed logs, such as progress bars. One of them at a time is drawn below the
// finished lines, in place: the one that changed last. logPrinter.mu guards the fields.
type liveLines struct {
	below *progress // draws the line; nil: unfinished lines are not shown
	lines map[logSource]wire.LogLine
	order map[logSource]int  // number of the last change of each line
	away  map[logSource]bool // logs of which the server sends nothing: their lines may be old ones
	count int
}

// live makes a printer show unfinished lines, for people at a terminal. A pipe, and a reader of raw text, get
// finished lines only.
func (p *logPrinter) live(below *progress) {
	if p.raw || p.app.Output == "json" || p.app.Output == "yaml" || !p.app.outTerm.terminal || !p.app.errTerm.terminal {
		return
	}
	p.unended = liveLines{below: below, lines: map[logSource]wire.LogLine{}, order: map[logSource]int{},
		away: map[logSource]bool{}}
}

// shows reports whether the printer shows unfinished lines.
func (p *logPrinter) shows() bool { return p.unended.below != nil }

// unfinished shows the unfinished line of a log in place of the one before. An empty text removes it.
func (p *logPrinter) unfinished(s logSource, l wire.LogLine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := &p.unended
	if u.lines[s] == l {
		return nil
	}
	u.count++
	u.lines[s], u.order[s] = l, u.count
	if strings.Trim(l.Text, " \r") == "" {
		p.drop(s)
	}
	u.below.follow(p.lastUnfinished(), len(u.away) > 0)
	return nil
}

// ended forgets the unfinished line of a log that is no longer followed.
func (p *logPrinter) ended(s logSource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shows() {
		p.drop(s)
		p.setAway(s, false)
	}
	delete(p.away, s)
}

// silence hides the unfinished line of a log while the server sends nothing. Where none is shown, a message reports the
// first log that falls silent, and the last that is heard again.
func (p *logPrinter) silence(s logSource, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shows() {
		p.setAway(s, silent)
		return
	}
	before := len(p.away) > 0
	if silent && p.away == nil {
		p.away = map[logSource]bool{}
	}
	if silent {
		p.away[s] = true
	} else {
		delete(p.away, s)
	}
	if after := len(p.away) > 0; p.say != nil && after != before {
		p.say("%s", silenceText(p.app.now(), silent))
	}
}

// silenceText says that the server of a followed log or history is silent, or is heard again.
func silenceText(now time.Time, silent bool) string {
	text := "the server responds again"
	if silent {
		text = "the server does not respond; still waiting"
	}
	return now.UTC().Format(time.TimeOnly) + "  " + text
}

// setAway records whether the server sends nothing of a log, and draws the line. The caller holds p.mu.
func (p *logPrinter) setAway(s logSource, away bool) {
	u := &p.unended
	if away {
		u.away[s] = true
	} else {
		delete(u.away, s)
	}
	u.below.follow(p.lastUnfinished(), len(u.away) > 0)
}

// finishes removes the unfinished line that a finished line of the log is, or follows. The caller holds p.mu.
func (p *logPrinter) finishes(s logSource, l wire.LogLine) {
	before, ok := p.unended.lines[s]
	if !ok || before.Stream != l.Stream || before.At.After(l.At) {
		return
	}
	p.drop(s)
	p.unended.below.replace(p.lastUnfinished())
}

// drop removes the unfinished line of a log. The caller holds p.mu.
func (p *logPrinter) drop(s logSource) {
	delete(p.unended.lines, s)
	delete(p.unended.order, s)
}

// lastUnfinished formats the unfinished line that changed last; "": there is none. The caller holds p.mu.
func (p *logPrinter) lastUnfinished() string {
	var from logSource
	last := 0
	for s, n := range p.unended.order {
		if n > last && !p.unended.away[s] {
			from, last = s, n
		}
	}
	if last == 0 {
		return ""
	}
	l := p.unended.lines[from]
	text := strings.ReplaceAll(p.text(l.Text), "\t", " ")
	if p.stamps {
		text = p.app.outTerm.paint(faint, l.At.UTC().Format(time.RFC3339)) + " " + text
	}
	return p.labelled(from, text)
}

// fit cuts a text with colours to the terminal's present width, without the last column: some terminals begin a new
// line after it.
func (s screen) fit(text string) string {
	width := max(s.columns()-1, 1)
	if lipgloss.Width(text) <= width {
		return text
	}
	return lipgloss.NewStyle().MaxWidth(width-1).Render(text) + "…"
}

// follow replaces the unfinished line and draws it. away reports that the server sends nothing of a followed log.
func (p *progress) follow(text string, away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || text == p.below && away == p.away {
		return
	}
	p.below, p.away = text, away
	p.redraw()
}

// replace is follow without the drawing, which a print is about to do.
func (p *progress) replace(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.below = text
}

// shown reports whether there is a line to draw. The caller holds p.mu.
func (p *progress) shown() bool { return p.seen || p.below != "" || p.away }

// redraw draws the present line, unless a print is under way. The caller holds p.mu.
func (p *progress) redraw() {
	switch {
	case p.held():
	case p.shown():
		p.draw()
	default:
		p.erase()
	}
}

// redrawSoon draws the line again once redrawEvery has passed since the last drawing. A log that is followed without a
// wait has nothing else that would draw the unfinished line after many finished ones. The caller holds p.mu.
func (p *progress) redrawSoon() {
	if p.due || p.below == "" && (p.seen || !p.away) {
		return
	}
	p.due = true
	time.AfterFunc(redrawEvery, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.due = false
		if !p.over && !p.drawn {
			p.redraw()
		}
	})
}
