package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"charm.land/lipgloss/v2"

	"berth"
	"berth/wire"
)

// logSource is one log: the one of a member of a job.
type logSource struct {
	job    berth.JobID
	member int
	label  string // stands before each line; "" for the only log of a command
	whose  string // path of the element or step; "" for the job of the command itself
}

// text names the log in a message.
func (s logSource) text() string {
	if s.label == "" {
		return "the log"
	}
	return "the log of " + s.label
}

// logPrinter prints lines of one or several logs on standard output, each line whole. It
// may be used by several goroutines.
type logPrinter struct {
	app    *app
	stamps bool // the time stands before each line
	raw    bool // lines are printed as stored

	// around runs a print while no line of progress is on the terminal; nil: there never is
	// one.
	around func(write func() error) error

	unended liveLines

	// say, if not nil, reports that the server sends nothing of a followed log, where no unfinished lines are shown.
	say  func(format string, args ...any)
	away map[logSource]bool // logs of which the server sends nothing, with say

	mu     sync.Mutex
	tones  map[string]tone // of the labels so far
	widest int             // width of the widest label so far, in columns
}

// newLogPrinter returns a printer that has printed nothing.
func newLogPrinter(a *app) *logPrinter { return &logPrinter{app: a, tones: map[string]tone{}} }

// expect announces the labels of logs that are about to be printed, so that their lines
// begin in one column. Each label gets one of six colours in turn.
func (p *logPrinter) expect(list []logSource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range list {
		if _, known := p.tones[s.label]; !known && s.label != "" {
			p.tones[s.label] = firstLabel + tone(len(p.tones)%labelTones)
			p.widest = max(p.widest, lipgloss.Width(s.label))
		}
	}
}

// print prints one line of a log.
func (p *logPrinter) print(s logSource, l wire.LogLine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := p.format(s, l)
	if err != nil {
		return err
	}
	p.finishes(s, l)
	write := func() error {
		if _, err := fmt.Fprintln(p.app.out, text); err != nil {
			return &outputError{err}
		}
		return nil
	}
	if p.around != nil {
		return p.around(write)
	}
	return write()
}

// labelledLine is the document of a line of an element or a step.
type labelledLine struct {
	Job  berth.JobID `json:"job"`
	Path string      `json:"path"` // of the element or step, such as sweep[3] or prepare.fit
	wire.LogLine
}

// format returns a line as it is printed: for programs one JSON document, for people the
// text with its label.
func (p *logPrinter) format(s logSource, l wire.LogLine) (string, error) {
	if p.app.Output == "json" || p.app.Output == "yaml" {
		var doc any = l
		if s.whose != "" {
			doc = labelledLine{Job: s.job, Path: s.whose, LogLine: l}
		}
		b, err := json.Marshal(doc)
		if err != nil {
			return "", fmt.Errorf("print log line: %w", err)
		}
		return string(p.app.outTerm.document(b)), nil
	}
	text := p.text(l.Text)
	if p.stamps {
		text = p.app.outTerm.paint(faint, l.At.UTC().Format(time.RFC3339)) + " " + text
	}
	return p.labelled(s, text), nil
}

// text returns the text of a line without its label. A progress bar is reduced to its last
// state. On a terminal, all sequences that steer it are removed except colours; a pipe or a
// file receives them unchanged. A raw printer changes nothing.
func (p *logPrinter) text(text string) string {
	if p.raw {
		return text
	}
	text = folded(text)
	if p.app.outTerm.terminal {
		text = harmless(text)
	}
	return text
}

// labelled adds the label of a log to a line.
func (p *logPrinter) labelled(s logSource, text string) string {
	if s.label == "" {
		return text
	}
	pad := strings.Repeat(" ", max(0, p.widest-lipgloss.Width(s.label)))
	label := p.app.outTerm.paint(p.tones[s.label], s.label) + pad + " |"
	if text == "" {
		return label
	}
	return label + " " + text
}
