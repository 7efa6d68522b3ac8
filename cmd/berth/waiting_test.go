package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
	"berth/wire"
)

// In 80 columns each row of the queue is one line, with the cause readable.
func TestTheQueueFitsIn80Columns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ handle, name, want string }{
		{"", "train-resnet", "1234  0193a1b2-c3d4-7000  train-resnet  in 26h  no room: needs 2 CPUs"},
		{"2c7b31", strings.Repeat("resnet-", 8) + "x",
			"  resnet-resnet-resnet-resn…  in 26h  no room: needs 2 CPUs, most f"},
	} {
		a, b := onTerminal(80, false)
		start := noon.Add(26 * time.Hour)
		err := showQueue(a, wire.Queue{Items: []wire.QueuedJob{{Job: wire.Job{
			ID: "0193a1b2-c3d4-7000-8000-000000000001", Name: c.name, Status: berth.Queued, SubmittedAt: noon,
			Handle: c.handle,
			Waiting: &wire.Waiting{Code: "no_room", Position: 1234, EstimatedStart: &start,
				Message: "no room: needs 2 CPUs, most free 0.5 (m1)"},
		}}}})
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if width := lipgloss.Width(strings.TrimSuffix(line, "\n")); width > 80 {
				t.Errorf("%d columns: %s", width, line)
			}
		}
		if !strings.Contains(b.String(), c.want) {
			t.Errorf("no cause to read:\n%s", b.String())
		}
	}
}

// Without a terminal the reason of a wait is a new line when its code changes, not when the
// place in the queue does.
func TestPlainProgressShowsAReasonOnce(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(80, false)
	a.errTerm.terminal = false
	p := newProgress(a)
	for _, w := range []wire.Waiting{
		{Code: "not_accepted", Message: "waiting for the control plane"},
		{Code: "no_room", Message: "waiting behind 2 jobs"},
		{Code: "no_room", Message: "waiting behind 1 job"},
		{Code: "quota", Message: "quota of a: 1 of 1 running"},
	} {
		p.update(wire.Job{Name: "x", Status: berth.Queued, Waiting: &w})
	}
	want := "12:00:00  x  queued\n12:00:00  x  queued  waiting behind 2 jobs\n12:00:00  x  queued  quota of a: 1 of 1 running\n"
	if got := b.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// By default an explanation has five entries without codes and arithmetic, even if there is more to show. On a terminal
// they are wrapped at words.
func TestExplainIsShort(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		out  screen
		want string
	}{
		"a pipe": {screen{}, shortExplanation},
		"a terminal of 80 columns": {screen{terminal: true, width: 80}, `job      big (0193a1b2-c3d4-7000): queued, 200 of 328 in the queue; LR=0.1
waiting  no machine has 2 CPUs free (most: 0.5 on m1); waiting behind 199 jobs
         of the same priority; 2 more reasons (-o wide)
room     held by sweep[3] (0193a1b2-c3d4-7000) on m1 until 14:00:00Z, train
         (0193a1b2-c3d4-7001) on m1, 5 other jobs
starts   unknown (running jobs or jobs ahead have no time_limit); runs 40m at
         the median, 2h0m at the 90th percentile (medium confidence)
hint     wait until jobs end, request less, or add machines; 2 offers of clouds:
         -o wide
`},
	} {
		a, b := onTerminal(80, false)
		a.outTerm = c.out
		explainBig(t, a)
		if diff := cmp.Diff(c.want, b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Colours end with their line, and take no room.
func TestWrappedExplanationHasColours(t *testing.T) {
	t.Parallel()
	plain, text := onTerminal(60, false)
	explainBig(t, plain)
	coloured, b := onTerminal(60, true)
	explainBig(t, coloured)
	if got := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(b.String(), ""); got != text.String() {
		t.Errorf("without its colours the text is\n%swant\n%s", got, text)
	}
	for line := range strings.Lines(b.String()) {
		styled := strings.Contains(line, "\x1b[")
		if ends := regexp.MustCompile("\x1b\\[0?m[^\x1b]*\n$").MatchString(line); styled && !ends {
			t.Errorf("a colour of %q does not end with the line", line)
		}
		if width := lipgloss.Width(strings.TrimSuffix(line, "\n")); width > 60 {
			t.Errorf("%d columns: %q", width, line)
		}
	}
	if n := strings.Count(b.String(), "\x1b[33m"); n < 2 {
		t.Errorf("the reasons begin a colour %d times, want once in each line:\n%q", n, b)
	}
}

func TestWrapKeepsWordsWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"one two", "one two"},
		{"12345 78901", "12345\n  78901"},
		{"12345 7890 2", "12345 7890\n  2"},
		{"a-very-long-word b", "a-very-long-word\n  b"}, // the terminal breaks it
		{"x a-very-long-word", "x\n  a-very-long-word"},
		{"  hint: do this", "  hint: do\n  this"},
		{"界界界 界界 x", "界界界\n  界界 x"},
	} {
		if got := wrap(c.text, 10, 2); got != c.want {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
}

// explainBig explains a job with everything that an explanation may have.
func explainBig(t *testing.T, a *app) {
	t.Helper()
	ahead, position, queue, index, end := 199, 200, 328, 3, noon.Add(2*time.Hour)
	job := wire.Job{ID: "0193a1b2-c3d4-7000-8000-000000000001", Name: "big", RunsAs: "1000",
		Variables: map[string]string{"LR": "0.1"}, Spec: &spec.Job{Name: "big", Image: "busybox"}}
	err := showExplanation(a, job, wire.Explanation{
		Status: berth.Queued, Summary: "no machine has 2 CPUs free (most: 0.5 on m1)", Ahead: &ahead,
		Position: &position, Queue: &queue,
		Blockers: []wire.Blocker{
			{Code: "no_room", Message: "no machine has 2 CPUs free (most: 0.5 on m1)",
				Hint: "wait until jobs end, request less, or add machines"},
			{Code: "behind", Message: "waiting behind 199 jobs of the same priority",
				Hint: "wait, or raise its priority (berth priority)", Jobs: []berth.JobID{"x", "y"}},
			{Code: "reserved", Message: "a start is reserved"}, {Code: "overdue", Message: "an older job is overdue"},
		},
		RunTime:  &wire.RunTime{MedianSeconds: 2400, P90Seconds: 7200, Jobs: 23, Like: "name", Confidence: "medium"},
		Offers:   []wire.PlanOffer{{Provider: "on_premises"}, {Provider: "a"}, {Provider: "b"}},
		Priority: []wire.Term{{Name: "priority", Value: "500", Text: "priority 500"}},
		Fit: &wire.Fit{Machines: 1, FitEver: 1,
			Clauses: []wire.FitClause{{Name: "free_cpus", Alone: 1, After: 1, Text: "x"}}},
		Holders: []wire.Holder{
			{Job: "0193a1b2-c3d4-7000-8000-000000000002", Name: "sweep", ArrayIndex: &index,
				Machines: []berth.MachineID{"m1"}, EndsBy: &end},
			{Job: "0193a1b2-c3d4-7001-8000-000000000003", Name: "train", Machines: []berth.MachineID{"m1"}},
			{Job: "0193a1b2-c3d4-7002-8000-000000000004", Name: "more", Machines: []berth.MachineID{"m1"}},
		}, OtherHolders: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// shortExplanation is the explanation of explainBig without a width.
const shortExplanation = `job      big (0193a1b2-c3d4-7000): queued, 200 of 328 in the queue; LR=0.1
waiting  no machine has 2 CPUs free (most: 0.5 on m1); waiting behind 199 jobs of the same priority; 2 more reasons (-o wide)
room     held by sweep[3] (0193a1b2-c3d4-7000) on m1 until 14:00:00Z, train (0193a1b2-c3d4-7001) on m1, 5 other jobs
starts   unknown (running jobs or jobs ahead have no time_limit); runs 40m at the median, 2h0m at the 90th percentile (medium confidence)
hint     wait until jobs end, request less, or add machines; 2 offers of clouds: -o wide
`

// A job with other hardware shows that hardware if it may help, and otherwise the step that does.
func TestExplainShowsTheStepThatHelps(t *testing.T) {
	t.Parallel()
	const release, wait = "release it (berth release)", "wait until jobs end, request less, or add machines"
	held := wire.Blocker{Code: "held", Message: "the job is on hold", Hint: release}
	room := wire.Blocker{Code: "no_room", Message: "no machine has 8 GPUs free", Hint: wait}
	for _, c := range []struct {
		list    []wire.Blocker
		choices int
		want    string
	}{
		{[]wire.Blocker{held, room}, 2, "hint     " + release},
		{[]wire.Blocker{held}, 2, "hint     " + release},
		{[]wire.Blocker{{Code: "a code of a later server", Message: "x", Hint: "do y"}}, 2, "hint     do y"},
		{[]wire.Blocker{{Code: "quota", Message: "x"}, room}, 2, "hint     " + wait},
		{[]wire.Blocker{room}, 2, "or       1: 4 cpus, 2GiB memory: 2 machines have room"},
		{[]wire.Blocker{{Code: "unsatisfiable", Message: "x", Hint: wait}, held}, 2, "or       1: 4 cpus"},
		{[]wire.Blocker{{Code: "parallel", Message: "x"}}, 2, "or       1: 4 cpus"},
		{[]wire.Blocker{room}, 1, "hint     " + wait},
		{nil, 2, "or       1: 4 cpus"},
	} {
		a, b := onTerminal(120, false)
		cpus, memory := spec.MilliCPU(4000), spec.MiB(2048)
		list := []wire.HardwareFit{{InForce: true},
			{Number: 1, Resources: spec.Resources{CPUs: &cpus, Memory: &memory}, Room: "2 machines have room"}}
		err := showExplanation(a, wire.Job{Name: "big"}, wire.Explanation{Status: berth.Queued, Summary: "s",
			Blockers: c.list, Alternatives: list[:c.choices]})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, c.want) {
			t.Errorf("with %+v and %d choices the last line is %q, want %q", c.list, c.choices, last, c.want)
		}
	}
}

// The text names the jobs that an expectation rests on.
func TestRunTimesAreExplained(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		run  *wire.RunTime
		want string
	}{
		{nil, ""},
		{&wire.RunTime{MedianSeconds: 2400, P90Seconds: 7200, Jobs: 23, Like: "name", Confidence: "medium"},
			"half of 23 jobs of this name ended within 40m, 9 of 10 within 2h0m (medium confidence)"},
		{&wire.RunTime{MedianSeconds: 5, P90Seconds: 90, Jobs: 3, Like: "of a later version", Confidence: "low"},
			"half of 3 jobs like it ended within 5s, 9 of 10 within 1m30s (low confidence)"},
	} {
		if got := runTimeText(c.run); got != c.want {
			t.Errorf("%+v: %q, want %q", c.run, got, c.want)
		}
	}
}

// Where no start is known, an explanation has the reason, by the first blocker that decides.
func TestAnUnknownStartHasAReason(t *testing.T) {
	t.Parallel()
	const endless = "unknown (running jobs or jobs ahead have no time_limit, and too few jobs have ended to predict)"
	const shut = "unknown (no machine that could run it accepts jobs)"
	room := wire.Blocker{Code: "no_room"}
	closed := wire.Blocker{Code: "no_room", Machines: []berth.MachineID{"m2"}}
	state := func(after int) wire.Fit {
		return wire.Fit{Machines: 2, Clauses: []wire.FitClause{{Name: "state", Alone: after, After: after}}}
	}
	for _, c := range []struct {
		list []wire.Blocker
		fit  wire.Fit
		want string
	}{
		{nil, wire.Fit{}, "unknown"},
		{[]wire.Blocker{room}, state(0),
			"unknown (running jobs have no time_limit, and too few jobs have ended to predict)"},
		{[]wire.Blocker{{Code: "reserved"}}, state(0),
			"unknown (jobs ahead have no time_limit, and too few jobs have ended to predict)"},
		{[]wire.Blocker{room, {Code: "behind"}}, state(1), endless},
		{[]wire.Blocker{closed, {Code: "behind"}}, state(1), shut},
		{[]wire.Blocker{room}, state(2), shut}, // from a server that names no machines
		{[]wire.Blocker{{Code: "held"}, closed}, state(1), "unknown (on hold)"},
		{[]wire.Blocker{{Code: "quota", Quota: "limit"}, room}, state(0), "unknown (the quota does not allow it)"},
		{[]wire.Blocker{room, {Code: "engine_silent"}}, state(0), "unknown (container engines do not answer)"},
		{[]wire.Blocker{{Code: "a code of a later server"}}, state(0), "unknown"},
	} {
		if got := unknownStart(c.list, c.fit, nil); got != c.want {
			t.Errorf("%+v: %q, want %q", c.list, got, c.want)
		}
	}
	// With a prediction for the job itself, jobs have ended.
	if got := unknownStart([]wire.Blocker{room}, state(0), &wire.RunTime{Jobs: 3}); got !=
		"unknown (running jobs have no time_limit)" {
		t.Errorf("with a run time: %q", got)
	}
}
