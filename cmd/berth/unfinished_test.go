package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/wire"
)

// liveTerminal is a printer of followed logs on a terminal, and the text written so far.
func liveTerminal(width int, colour bool) (*logPrinter, *progress, *bytes.Buffer) {
	a, b := onTerminal(width, colour)
	below := newProgress(a)
	p := newLogPrinter(a)
	p.around = below.around
	p.live(below)
	return p, below, b
}

// barAt is an unfinished line that changed some seconds after noon.
func barAt(second int, text string) wire.LogLine {
	return wire.LogLine{At: noon.Add(time.Duration(second) * time.Second), Stream: "stderr", Text: text}
}

const erase = "\r\x1b[2K"

func TestUnfinishedLineIsDrawnInPlace(t *testing.T) {
	t.Parallel()
	p, below, b := liveTerminal(60, false)
	show := func(l wire.LogLine) {
		t.Helper()
		if err := p.unfinished(logSource{}, l); err != nil {
			t.Fatal(err)
		}
	}
	show(barAt(1, "\r 10%|#         |"))
	show(barAt(2, "\r 20%|##        |"))
	p.app.now = func() time.Time { return noon.Add(time.Minute) }
	// A line of the other stream stands above, and the bar below again.
	if err := p.print(logSource{}, wire.LogLine{At: noon.Add(3 * time.Second), Stream: "stdout", Text: "epoch 1"}); err != nil {
		t.Fatal(err)
	}
	// The finished bar takes the place of the unfinished one.
	if err := p.print(logSource{}, barAt(4, "\r 20%|##|\r100%|##########|")); err != nil {
		t.Fatal(err)
	}
	show(barAt(5, ""))
	below.done()
	want := erase + " 10%|#         |" + erase + " 20%|##        |" + erase + "epoch 1\n" + erase + " 20%|##        |" +
		erase + "100%|##########|\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnfinishedLineCannotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	p, _, b := liveTerminal(30, true)
	text := "\x1b]0;title\a\x1b[2A\u202e\x1b[31mred\x1b[0m\t" + strings.Repeat("界", 40) + "\x1b[5n"
	if err := p.unfinished(logSource{}, barAt(1, text)); err != nil {
		t.Fatal(err)
	}
	got := strings.TrimPrefix(b.String(), erase)
	for _, bad := range []string{"title", "\x1b[2A", "\u202e", "\x1b[5n", "\t", "\n"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q contains %q", got, bad)
		}
	}
	if width := lipgloss.Width(got); width > 29 || !strings.Contains(got, "red") || !strings.HasSuffix(got, "…") {
		t.Errorf("%q is %d columns wide on a terminal of 30", got, width)
	}
}

func TestOfSeveralLogsTheLineThatMovedLastIsDrawn(t *testing.T) {
	t.Parallel()
	p, _, b := liveTerminal(60, true)
	first, second := logSource{job: "a", member: 0, label: "0"}, logSource{job: "a", member: 1, label: "1"}
	p.expect([]logSource{first, second})
	last := func(want string) {
		t.Helper()
		if text := b.String(); text[strings.LastIndex(text, erase)+len(erase):] != want {
			t.Errorf("the line is %q, want %q", text[strings.LastIndex(text, erase)+len(erase):], want)
		}
	}
	for _, step := range []struct {
		from logSource
		line wire.LogLine
		want string
	}{
		{first, barAt(1, "10%"), "\x1b[36m0\x1b[m | 10%"},
		{second, barAt(1, "20%"), "\x1b[35m1\x1b[m | 20%"},
		{first, barAt(2, "30%"), "\x1b[36m0\x1b[m | 30%"},
		{first, barAt(3, ""), "\x1b[35m1\x1b[m | 20%"},
	} {
		if err := p.unfinished(step.from, step.line); err != nil {
			t.Fatal(err)
		}
		last(step.want)
	}
	p.ended(second)
	last("")
}

func TestUnfinishedLineStandsInPlaceOfTheProgress(t *testing.T) {
	t.Parallel()
	p, below, b := liveTerminal(120, false)
	below.update(running())
	if err := p.unfinished(logSource{}, barAt(1, "\r10%")); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	below.update(running())
	if got := b.String(); got != erase+"10%" {
		t.Errorf("the line is %q, want the bar", got)
	}
	b.Reset()
	if err := p.unfinished(logSource{}, barAt(2, "")); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); !strings.Contains(got, "digits  running") {
		t.Errorf("after the bar the line is %q, want the progress", got)
	}
}

func TestUnfinishedLinesAreForPeopleAtATerminal(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(p *logPrinter){
		"a pipe":        func(p *logPrinter) { p.app.outTerm = screen{} },
		"raw text":      func(p *logPrinter) { p.raw = true },
		"documents":     func(p *logPrinter) { p.app.Output = "json" },
		"a piped error": func(p *logPrinter) { p.app.errTerm = screen{} },
	} {
		a, _ := onTerminal(60, false)
		p := newLogPrinter(a)
		edit(p)
		p.live(newProgress(a))
		if p.shows() {
			t.Errorf("%s gets unfinished lines", name)
		}
	}
}

// Many finished lines in a row must not hide the unfinished one for good.
func TestUnfinishedLineComesBackAfterManyFinishedOnes(t *testing.T) {
	t.Parallel()
	p, below, b := liveTerminal(60, false)
	if err := p.unfinished(logSource{}, barAt(1, "Password: ")); err != nil {
		t.Fatal(err)
	}
	for range 100 { // at one moment of the clock
		if err := p.print(logSource{}, wire.LogLine{Stream: "stdout", Text: "line"}); err != nil {
			t.Fatal(err)
		}
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		below.mu.Lock()
		text := b.String()
		below.mu.Unlock()
		if strings.HasSuffix(text, erase+"Password: ") && strings.Count(text, "line\n") == 100 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("the unfinished line is not drawn again: %q", text)
		}
	}
}

// A job that runs no longer, or a server that does not answer, says nothing by an old bar.
func TestStaleUnfinishedLineGivesWayToTheState(t *testing.T) {
	t.Parallel()
	p, below, b := liveTerminal(120, false)
	below.update(running())
	if err := p.unfinished(logSource{}, barAt(1, "\r50%")); err != nil {
		t.Fatal(err)
	}
	last := func(want string) {
		t.Helper()
		if text := b.String(); !strings.Contains(text[strings.LastIndex(text, erase):], want) {
			t.Errorf("the line is %q, want one with %q", text[strings.LastIndex(text, erase):], want)
		}
	}
	last("50%")
	below.silent(&unreachableError{})
	last("(server not responding)")
	below.silent(nil)
	last("50%")
	retrying := running()
	retrying.Status = berth.Retrying
	below.update(retrying)
	last("digits  retrying")
	below.update(running())
	last("50%")
}
