package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/wire"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// onTerminal is an app whose two streams are a terminal of this width.
func onTerminal(width int, colour bool) (*app, *bytes.Buffer) {
	var b bytes.Buffer
	s := screen{terminal: true, colour: colour, width: width}
	return &app{config: config{Output: "table"}, out: &b, err: &b, outTerm: s, errTerm: s, now: func() time.Time { return noon }}, &b
}

func running() wire.Job {
	started := noon.Add(-90 * time.Second)
	return wire.Job{
		ID: "0193a1b2-c3d4-7000-8000-000000000001", Name: "digits", Status: berth.Running, Attempt: 2,
		SubmittedAt: noon.Add(-time.Hour), StartedAt: &started,
		Progress: &berth.Progress{Step: 5, Total: 10, Message: "half\x1b[2J way"},
		Attempts: []berth.Attempt{{Number: 2, Machines: []berth.MachineID{"m-1"}}},
	}
}

func TestProgressIsOneLineDrawnAgain(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(120, false)
	p := newProgress(a)
	p.update(running())
	p.silent(&unreachableError{})
	p.silent(nil)
	p.done()
	line := "digits  running  ████████████░░░░░░░░░░░░  attempt 2  on m-1  5/10 50% half[2J way  1m30s"
	again := "\r\x1b[2K"
	want := again + line + again + line + "  (server not responding)" + again + line + again
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgressStaysOnItsLine(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(40, false)
	newProgress(a).update(running())
	line := strings.TrimPrefix(b.String(), "\r\x1b[2K")
	if n := len([]rune(line)); n > 39 || strings.Contains(line, "\n") {
		t.Errorf("%d characters on a terminal of 40: %q", n, line)
	}
}

func TestPlainProgressIsALineForEachChange(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	now := noon
	a := &app{err: &b, now: func() time.Time { return now }}
	p := newProgress(a)
	j := running()
	for range 100 {
		j.Progress = &berth.Progress{Step: j.Progress.Step + 1, Total: 1000}
		p.update(j)
		now = now.Add(time.Second)
	}
	if lines := strings.Count(b.String(), "\n"); lines != 10 {
		t.Errorf("%d lines for 100 s of progress, want one each 10 s:\n%s", lines, b.String())
	}
	j.Status = berth.Preempting
	b.Reset()
	p.update(j)
	p.update(j)
	if lines := strings.Count(b.String(), "\n"); lines != 1 {
		t.Errorf("%d lines for one change:\n%s", lines, b.String())
	}
}

func TestColourIsForTerminalsAlone(t *testing.T) {
	t.Parallel()
	for _, colour := range []bool{true, false} {
		a, b := onTerminal(100, colour)
		if err := showJobs(a, wire.Page[wire.Job]{Items: []wire.Job{running()}}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(b.String(), "\x1b["); got != colour {
			t.Errorf("colour %v: %q", colour, b.String())
		}
	}
}

func TestRowsOfATableStayLines(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(60, false)
	j := running()
	j.Name = "evil\nname\x1b[31m"
	j.Reason = &berth.Reason{Code: berth.ReasonExitCode, Message: strings.Repeat("long ", 50)}
	if err := showJobs(a, wire.Page[wire.Job]{Items: []wire.Job{j}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 2 || strings.Contains(b.String(), "\x1b") {
		t.Errorf("got %q", lines)
	}
}

func TestLogsCannotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":                            "plain",
		"a\tb":                             "a\tb",
		"\x1b[31mred\x1b[0m":               "\x1b[31mred\x1b[0m",
		"\x1b[38;5;12mblue":                "\x1b[38;5;12mblue",
		"\x1b[2Jgone":                      "[2Jgone",
		"\x1b]0;title\x07x":                "]0;titlex",
		"10%\r50%\r100%\r":                 "100%",
		"ü 日本 \u009b31m":                   "ü 日本 31m",
		"\x1b[":                            "[",
		"broken \xff byte":                 "broken \xff byte",
		"\x1b[6n\x1b[1m" + "bold" + "\x00": "[6n\x1b[1mbold",
	} {
		if got := harmless(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestSpans(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 100 * time.Second: "1m40s", 45 * time.Minute: "45m",
		3*time.Hour + 20*time.Minute: "3h20m", 30 * time.Hour: "30h", 72 * time.Hour: "3d",
	} {
		if got := span(d); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}

func TestAmountsOfBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 80 << 30: "80.0 GiB", 3 << 50: "3.0 PiB"} {
		if got := bytesOf(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestJobsAreNamedAfterTheirImages(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"python:3.12-slim": "python", "ghcr.io/me/Train_It:v2": "train-it", "localhost:5000/x@sha256:abc": "x", "a/__b__": "b",
	} {
		if got := nameOf(image); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

func TestSinceReadsTimesAndLengths(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Time{
		"": {}, "90m": noon.Add(-90 * time.Minute), "7d": noon.AddDate(0, 0, -7),
		"2026-01-31": noon.Truncate(24 * time.Hour), "2026-01-31T14:00:00+02:00": noon,
	} {
		if got, err := parseSince(in, noon); err != nil || !got.Equal(want) {
			t.Errorf("%q: got %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"soon", "-5m", "5", "-3d", "d"} {
		if got, err := parseSince(in, noon); err == nil {
			t.Errorf("%q: got %s, want an error", in, got)
		}
	}
}

func TestACommandIsShownAsOneWouldTypeIt(t *testing.T) {
	t.Parallel()
	got := shellLine([]string{"python", "-c", "print('hi there')", "", "--lr=0.1", "a b", "$HOME"})
	want := `python -c 'print('\''hi there'\'')' '' --lr=0.1 'a b' '$HOME'`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTextOfJobsDoesNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	if got := oneLine("a\r\nb\x1b[31m\u202ec\u0085\td"); got != "a  b[31mc d" {
		t.Errorf("got %q", got)
	}
}

func TestExplainSaysItAllOnce(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(120, false)
	a.Output = "wide"
	at, ahead, position, queue := noon.Add(80*time.Minute), 1, 2, 9
	err := showExplanation(a, wire.Job{ID: "0193a1b2-c3d4-7000-8000-000000000001", Name: "digits"}, wire.Explanation{
		Status: berth.Queued, Summary: "3 machines: 3 have no free GPU", Ahead: &ahead, Position: &position, Queue: &queue, EstimatedStart: &at, Reserved: true,
		Blockers: []wire.Blocker{
			{Code: "quota", Quota: "limit", Message: "tenant vision holds 4 of 4 GPUs of its limit; the job asks for 1", Hint: "it starts when jobs of the tenant end, or when the limit is raised"},
			{Code: "no_room", Message: "3 machines: 3 have no free GPU", Hint: "wait, ask for less, or add machines"},
		},
		Priority: []wire.Term{{Name: "priority", Value: "500", Text: "priority 500"}, {Name: "share", Value: "0.3", Text: "tenant vision holds 30.0 % of the cluster"}, {Name: "id", Value: "x"}},
		Fit:      &wire.Fit{Machines: 3, FitEver: 3, Summary: "3 machines: 3 have no free GPU", Clauses: []wire.FitClause{{Name: "free_gpus", Alone: 3, After: 3, Text: "3 have no free GPU"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `job         digits (0193a1b2-c3d4-7000)
status      queued
summary     3 machines: 3 have no free GPU
blocked by  quota: tenant vision holds 4 of 4 GPUs of its limit; the job asks for 1
              hint: it starts when jobs of the tenant end, or when the limit is raised
blocked by  no_room: 3 machines: 3 have no free GPU
              hint: wait, ask for less, or add machines
starts      2026-01-31 13:20:00Z (in 80m), reserved
place       2 of 9 in the queue
place by    priority 500
then by     tenant vision holds 30.0 % of the cluster
then by     id x
machines    3 total, 0 with room now, 3 when idle
fit         3 machines: 3 have no free GPU

CONDITION  RULES OUT  BY ITSELF  WHAT
free_gpus  3          3          3 have no free GPU
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
