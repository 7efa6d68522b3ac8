package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/api/client"
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

// The state of the job stands before the unfinished line, cut to the room that the line leaves. The counts and the
// elapsed time are never cut.
func TestStateStandsBeforeTheUnfinishedLine(t *testing.T) {
	t.Parallel()
	sweep := running()
	sweep.Name, sweep.Attempt, sweep.Attempts, sweep.Progress = "sweep", 0, nil, nil
	sweep.Tally = &wire.Tally{Total: 12, ByStatus: map[berth.State]int{berth.Succeeded: 3, berth.Running: 4}}
	slow := running()
	slow.Progress = nil
	tqdm := func(n int) string { return strings.Repeat("#", n) }
	for _, c := range []struct {
		width int
		job   wire.Job
		line  string
		want  string
	}{
		{120, running(), tqdm(30), "digits  running  attempt 2  on m-1  5/10 50% half[2J way  1m30s | " + tqdm(30)},
		{70, running(), tqdm(20), "digits  running  5/10 50%  1m30s | " + tqdm(20)},
		{80, running(), tqdm(45), "running  5/10 50%  1m30s | " + tqdm(45)},
		{80, running(), tqdm(55), "5/10 50%  1m30s | " + tqdm(55)},
		{100, sweep, "2 | 40%|####|", "sweep  running: 3 of 12 done, 4 running  1m30s | 2 | 40%|####|"},
		{40, sweep, "2 | 40%|####|", "3 of 12 done  1m30s | 2 | 40%|####|"},
		{31, slow, "Loading the model ...", "running  1m30s | Loading the …"},
	} {
		_, below, b := liveTerminal(c.width, false)
		below.update(c.job)
		b.Reset()
		below.follow(c.line, false)
		if diff := cmp.Diff(erase+c.want, b.String()); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s", c.width, diff)
		}
		b.Reset()
		below.app.now = func() time.Time { return noon.Add(5 * time.Minute) }
		below.update(c.job)
		if got, want := b.String(), strings.Replace(erase+c.want, "1m30s", "6m30s", 1); got != want {
			t.Errorf("%d columns: after five minutes %q, want %q", c.width, got, want)
		}
		below.follow("", false)
		if got := b.String(); !strings.Contains(got, erase+c.job.Name+"  running") {
			t.Errorf("%d columns: without the line %q, want the state", c.width, got)
		}
	}
}

// A bar that grows by a digit does not change the fields before it.
func TestStateBeforeTheUnfinishedLineIsSteady(t *testing.T) {
	t.Parallel()
	_, below, b := liveTerminal(70, false)
	below.update(running())
	for _, line := range []string{"   1%|####|  9/100", "  10%|####| 10/1000", " 100%|####|100/10000"} {
		b.Reset()
		below.follow(line+", 10.00 it/s | ", false)
		before := strings.TrimSuffix(b.String(), line+", 10.00 it/s | ")
		if want := erase + "running  5/10 50%  1m30s | "; before != want {
			t.Errorf("%q stands before %q, want %q", before, line, want)
		}
	}
}

// The window of a command that runs for hours may be made smaller, also than a table may be.
func TestLinesAreCutToThePresentWidth(t *testing.T) {
	t.Parallel()
	p, below, b := liveTerminal(80, false)
	width := 80
	p.app.errTerm.measure = func() int { return width }
	last := func() string { return b.String()[strings.LastIndex(b.String(), erase)+len(erase):] }
	if err := p.unfinished(logSource{}, barAt(1, "\r"+strings.Repeat("#", 200))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ width, want int }{{80, 79}, {100, 99}, {23, 22}, {5, 4}, {0, 79}} {
		width = c.width
		below.mu.Lock()
		below.draw()
		below.mu.Unlock()
		if got := lipgloss.Width(last()); got != c.want {
			t.Errorf("the bar takes %d columns of %d, want %d", got, c.width, c.want)
		}
	}
	width = 30
	below.update(running())
	if err := p.unfinished(logSource{}, barAt(2, "")); err != nil {
		t.Fatal(err)
	}
	if got := last(); lipgloss.Width(got) > 29 || !strings.HasPrefix(got, "digits  running") {
		t.Errorf("the state takes %d columns of 30: %q", lipgloss.Width(got), got)
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
	if err := p.unfinished(logSource{}, barAt(1, "\r70%")); err != nil {
		t.Fatal(err)
	}
	last := func(want string) {
		t.Helper()
		if text := b.String(); !strings.Contains(text[strings.LastIndex(text, erase):], want) {
			t.Errorf("the line is %q, want one with %q", text[strings.LastIndex(text, erase):], want)
		}
	}
	last("  1m30s | 70%")
	below.silent(&unreachableError{})
	last("(server not responding)")
	below.silent(nil)
	last("  1m30s | 70%")
	retrying := running()
	retrying.Status = berth.Retrying
	below.update(retrying)
	last("digits  retrying")
	below.update(running())
	last("  1m30s | 70%")
}

// An unfinished line is hidden while the server sends nothing of its log. A message replaces the last hidden line.
func TestLineOfASilentLogIsHidden(t *testing.T) {
	t.Parallel()
	p, below, b := liveTerminal(60, false)
	first, second := logSource{job: "a", member: 0, label: "0"}, logSource{job: "a", member: 1, label: "1"}
	for i, s := range []logSource{first, second} {
		if err := p.unfinished(s, barAt(i, "50%")); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		act  func()
		want string
	}{
		{func() { p.silence(second, true) }, "0 | 50%"},
		{func() { p.silence(first, true) }, notResponding},
		{func() { p.silence(second, false) }, "1 | 50%"}, // the server sends only lines that have changed
		{func() { p.ended(second) }, notResponding},
		{func() { p.ended(first) }, ""},
	} {
		step.act()
		if got := lastDrawn(below, b); got != step.want {
			t.Errorf("the line is %q, want %q", got, step.want)
		}
	}
}

// lastDrawn returns the line that stands on the terminal.
func lastDrawn(below *progress, b *bytes.Buffer) string {
	below.mu.Lock()
	defer below.mu.Unlock()
	text := b.String()
	if at := strings.LastIndex(text, erase); at >= 0 {
		text = text[at+len(erase):]
	}
	return text
}

// A followed log has no bar while its server is away, and a message in its place.
func TestFollowedLogHasNoBarWithoutItsServer(t *testing.T) {
	t.Parallel()
	p, below, b := liveTerminal(60, false)
	var away atomic.Bool
	leave, end := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-leave:
			if away.Load() {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
		default:
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: unfinished\ndata: {\"text\":\"50%\"}\n\n")
		w.(http.Flusher).Flush()
		until := end
		if away.Load() {
			until = leave
		}
		select {
		case <-r.Context().Done():
		case <-until:
			if until == end {
				fmt.Fprint(w, "event: end\ndata: {}\n\n")
			}
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // ends the handlers
	shows := func(want string) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); lastDrawn(below, b) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("the line is %q, want %q", lastDrawn(below, b), want)
			}
		}
	}
	away.Store(true) // from the end of the first connection on
	done := make(chan error, 1)
	go func() {
		tree := newLogTree(p.app, client.New(server.URL, "token"))
		done <- followLogs(ctx, tree, p, running(), client.LogsQuery{Follow: true})
	}()
	shows("50%")
	close(leave)
	shows(notResponding)
	away.Store(false)
	shows("50%")
	close(end)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	shows("")
}
