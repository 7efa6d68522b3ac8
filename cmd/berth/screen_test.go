package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
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
		"plain":              "plain",
		"a\tb":               "a\tb",
		"\x1b[31mred\x1b[0m": "\x1b[31mred\x1b[0m",
		"\x1b[38;5;12mblue":  "\x1b[38;5;12mblue\x1b[0m", // the next line has no colour
		"\x1b[2Jgone":        "gone",
		"\x1b]0;title\x07x":  "x",
		"\x1b]8;;http://e\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1b]52;c;never ended":                    "52;c;never ended", // must not hide the rest of the line
		"\x1bP1;2|x\x1b\\y\u009d0;t\u009cz":        "yz",
		"\x1b(B\x1b7\x1bcreset":                    "reset",
		"cut \x1b[3":                               "cut ",
		"cut \x1b[3\x01x":                          "cut x",
		"ü 日本 \u009b31m":                           "ü 日本 ",
		"\x1b[":                                    "",
		"\x1b":                                     "",
		"broken \xff byte":                         "broken \xff byte",
		"\x1b[6n\x1b[1m" + "bold" + "\x00":         "\x1b[1mbold\x1b[0m",
		"rm \u202egpj.exe\u2066 \u200f":            "rm gpj.exe ",
	} {
		if got := harmless(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// No input may leave a control character in the text, except within a colour.
func FuzzLogsCannotSteerTheTerminal(f *testing.F) {
	for _, seed := range []string{"\x1b[31m\x1b]0;t\x07", "\u009b\u009d\u009c", "\x1b\x1b[[mm", "\x1b[1;\x1b[m"} {
		f.Add(seed)
	}
	colours := regexp.MustCompile("\x1b\\[[0-9;:]*m")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "\uFFFD")
		got := harmless(text)
		if rest := colours.ReplaceAllString(got, ""); strings.ContainsFunc(rest, unsafeRune) {
			t.Errorf("%q: %q can steer a terminal", text, got)
		}
		if again := harmless(got); again != got {
			t.Errorf("%q: %q is changed again, to %q", text, got, again)
		}
	})
}

func TestProgressBarsAreFolded(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"10%\r50%\r100%\r": "100%", "10%\r50%": "50%", "dos\r": "dos", "plain": "plain", "\r\r": "", "": "",
	} {
		if got := folded(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// The line of progress is removed before a line of the log, and stands below it again.
func TestLogLinesStandAboveTheProgress(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(60, false)
	p := newProgress(a)
	p.update(running())
	drawn := b.String()
	b.Reset()
	printer := newLogPrinter(a)
	printer.around = p.around
	now := noon.Add(time.Second)
	a.now = func() time.Time { return now }
	for _, text := range []string{"one", "two"} {
		if err := printer.print(logSource{}, wire.LogLine{Text: text}); err != nil {
			t.Fatal(err)
		}
	}
	again := "\r\x1b[2K"
	want := again + "one\n" + strings.Replace(drawn, "1m30s", "1m31s", 1) + again + "two\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Labels have colours on terminals alone, and their lines begin in one column.
func TestLinesOfSeveralLogsCarryTheirLabels(t *testing.T) {
	t.Parallel()
	logs := []logSource{{job: "a", label: "fit"}, {job: "b", label: "evaluate"}}
	for colour, want := range map[bool]string{
		false: "fit      | one\nevaluate | two\nfit      |\n",
		true:  "\x1b[36mfit\x1b[m      | one\n\x1b[35mevaluate\x1b[m | two\n\x1b[36mfit\x1b[m      |\n",
	} {
		a, b := onTerminal(60, colour)
		p := newLogPrinter(a)
		p.expect(logs)
		for i, text := range []string{"one", "two", ""} {
			if err := p.print(logs[i%2], wire.LogLine{Text: text}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("colour %v (-want +got):\n%s", colour, diff)
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
	for _, in := range []string{"soon", "-5m", "5", "-3d", "d", "1.5d", "1h30d", "2026-01-31d"} {
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

// A document keeps its meaning, and a pipe gets it as the server wrote it.
func TestDocumentsDoNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"long": "a\u009b2J\u202eb\x7f\x1b[2J ä", "title": "x\x1b]0;pwned\a",
		"lines": "a\nb\x1b[2J\n", "return": "10%\r20%", "plain": "a: b", "more": "a\nb\n", "number": "1"}
	for output, read := range map[string]func([]byte, any) error{
		"json": json.Unmarshal, "yaml": func(b []byte, v any) error { return yaml.Unmarshal(b, v) },
	} {
		for _, terminal := range []bool{true, false} {
			a, b := onTerminal(80, false)
			a.Output, a.outTerm.terminal = output, terminal
			body := map[string]any{"list": []any{texts, texts["title"]}, "n": 5, "none": nil}
			if err := a.show(view{body: body}); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsFunc(strings.ReplaceAll(b.String(), "\n", ""), unsafeRune) && terminal {
				t.Errorf("%s on a terminal is %q", output, b)
			}
			var back struct {
				List []any
				N    int
			}
			if err := read(b.Bytes(), &back); err != nil || back.N != 5 || len(back.List) != 2 {
				t.Fatalf("%s, terminal %v: %+v, %v\n%s", output, terminal, back, err, b)
			}
			got, _ := back.List[0].(map[string]any)
			for name, want := range texts {
				if got[name] != want {
					t.Errorf("%s, terminal %v: %s is %q, want %q", output, terminal, name, got[name], want)
				}
			}
		}
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
			{Code: "no_room", Message: "3 machines: 3 have no free GPU", Hint: "wait until jobs end, request less, or add machines"},
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
              hint: wait until jobs end, request less, or add machines
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
