package failure_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/failure"
	"berth/spec"
)

// hung is a member for the cases below: an absent field is an unknown one.
type hung struct {
	step  int64 // 0: it has reported none
	cpu   float64
	limit float64
	state string // of its busiest process; "": S
	moves bool   // it was in another state a moment before
	wait  string
	gpu   string // busy: a kernel waits; work, idle; "": no GPU
}

func (h hung) evidence(rank int) failure.HangEvidence {
	e := failure.HangEvidence{Rank: rank, CPULimit: h.limit}
	if h.step != 0 {
		e.Step = &h.step
	}
	if h.cpu >= 0 {
		e.CPU = &h.cpu
	}
	state := h.state
	if state == "" {
		state = "S"
	}
	e.Processes = []failure.HangProcess{{PID: 100 + rank, Name: "python", State: state, Wait: h.wait, Changed: h.moves}, {PID: 1, Name: "init", State: "S", Wait: "do_wait"}}
	full, none := 1.0, 0.0
	switch h.gpu {
	case "busy":
		e.GPUs = []failure.HangGPU{{UUID: "a", Busy: &full}}
	case "work":
		e.GPUs = []failure.HangGPU{{UUID: "a", Busy: &full, Works: true}}
	case "idle":
		e.GPUs = []failure.HangGPU{{UUID: "a", Busy: &none}}
	case "unknown":
		e.GPUs = []failure.HangGPU{{UUID: "a"}}
	}
	return e
}

// answer is the short form of an answer in the cases below: "2 sure step", "unsure [2 1]" or "unsure".
func answer(o failure.OddMember) string {
	switch {
	case o.Rank != nil:
		return fmt.Sprintf("%d %s %s", *o.Rank, o.Confidence, o.By)
	case len(o.Candidates) > 0:
		return fmt.Sprintf("%s %v", o.Confidence, o.Candidates)
	default:
		return string(o.Confidence)
	}
}

func TestTheOddMemberIsNamedOrNobody(t *testing.T) {
	t.Parallel()
	spin, sleep := hung{cpu: 1}, hung{cpu: 0}
	for _, c := range []struct {
		claim   string
		members []hung
		of      int // members of the gang; 0: as many as there is evidence
		want    string
		says    string // part of the text
	}{
		// By step.
		{"one is behind", []hung{{step: 17, cpu: 1}, {step: 17, cpu: 1}, {step: 16, cpu: 1}, {step: 17, cpu: 1}}, 0, "2 sure step", "it is at step 16, the others at 17"},
		{"one of two is behind", []hung{{step: 17, cpu: 1}, {step: 16, cpu: 1}}, 0, "1 sure step", "holds up the others"},
		{"one is behind others that differ", []hung{{step: 18, cpu: 1}, {step: 17, cpu: 1}, {step: 12, cpu: 1}}, 0, "2 likely step", "the others at 17 to 18"},
		{"one is behind and sleeps", []hung{{step: 18, cpu: 1}, {step: 17, cpu: 1}, {step: 12, cpu: 0}}, 0, "2 sure step", ""},
		{"one is behind, another one sleeps", []hung{{step: 17, cpu: 1}, {step: 17, cpu: 0}, {step: 16, cpu: 1}}, 0, "2 likely step", ""},
		{"one is behind, another one is stopped", []hung{{step: 17, cpu: 1}, {step: 17, state: "T"}, {step: 16, cpu: 1}}, 0, "unsure [2 1]", "member 1: its process 101 (python) is stopped"},
		{"two are behind", []hung{{step: 17, cpu: 1}, {step: 16, cpu: 1}, {step: 16, cpu: 1}}, 0, "unsure", "all use the CPU"},
		{"only the first reports a step", []hung{{step: 17, cpu: 1}, spin, spin}, 0, "unsure", "alike"},
		{"all are at one step", []hung{{step: 17, cpu: 1}, {step: 17, cpu: 1}, {step: 17, cpu: 1}}, 0, "unsure", "alike"},
		// By its processes.
		{"one is stopped, the others spin", []hung{spin, spin, {state: "T"}, spin}, 0, "2 sure stopped", "102 (python) is stopped"},
		{"one is stopped, the others sleep", []hung{sleep, sleep, {state: "T"}, sleep}, 0, "2 sure stopped", ""},
		{"one of two is stopped", []hung{{state: "T"}, sleep}, 0, "0 sure stopped", ""},
		{"one is traced", []hung{{state: "t"}, sleep, sleep}, 0, "0 sure stopped", ""},
		{"two are stopped", []hung{{state: "T"}, {state: "T"}, sleep}, 0, "unsure", "all sleep"},
		{"one waits for a disk", []hung{sleep, {state: "D"}, sleep}, 0, "1 likely blocked", "cannot be interrupted"},
		{"one waits for a disk, the others spin", []hung{spin, {state: "D"}, spin}, 0, "1 sure blocked", ""},
		{"one reads from a disk", []hung{sleep, {state: "D", moves: true}, sleep}, 0, "unsure", "all sleep"},
		{"two wait for a disk", []hung{sleep, {state: "D"}, {state: "D"}}, 0, "unsure", ""},
		// By CPU.
		{"one sleeps, the others spin", []hung{spin, spin, sleep, spin}, 0, "2 likely cpu", "it sleeps, the others use the CPU"},
		{"one spins, the others sleep", []hung{sleep, sleep, spin, sleep}, 0, "2 likely cpu", "it uses the CPU, the others sleep"},
		{"one of two sleeps", []hung{spin, sleep}, 0, "unsure", ""},
		{"half of them sleep", []hung{spin, spin, sleep, sleep}, 0, "unsure", "differ too much"},
		{"one is between", []hung{spin, {cpu: 0.3}, spin}, 0, "unsure", ""},
		{"one of small members spins", []hung{{limit: 0.25}, {cpu: 0.2, limit: 0.25}, {limit: 0.25}}, 0, "1 likely cpu", "it uses the CPU"},
		{"one of large members uses a little", []hung{{limit: 8}, {cpu: 0.2, limit: 8}, {limit: 8}}, 0, "unsure", ""},
		{"one spins on a machine that is short of CPU", []hung{sleep, sleep, {cpu: 0.15, state: "R"}, sleep}, 0, "2 likely cpu", "it uses the CPU"},
		{"one spins on a machine that is very short of CPU", []hung{sleep, sleep, {cpu: 0.05, state: "R"}}, 0, "2 likely cpu", "it uses the CPU"},
		{"one sleeps, the others share a core", []hung{{cpu: 0.3, state: "R"}, {cpu: 0.3, state: "R"}, sleep, {cpu: 0.3, state: "R"}}, 0, "2 likely cpu", "it sleeps"},
		{"one runs for a moment", []hung{sleep, sleep, {cpu: 0.15, state: "R", moves: true}, sleep}, 0, "unsure", ""},
		{"one sleeper is seen at work twice", []hung{sleep, sleep, {cpu: 0.01, state: "R"}, sleep}, 0, "unsure", "all sleep"},
		{"one has no measurement", []hung{spin, {cpu: -1}, spin}, 0, "unsure", ""},
		// By GPU.
		{"one has idle GPUs", []hung{{cpu: 1, gpu: "busy"}, {cpu: 1, gpu: "idle"}, {cpu: 1, gpu: "busy"}}, 0, "1 likely gpu", "its GPUs are idle"},
		{"one of two has idle GPUs", []hung{{cpu: 1, gpu: "busy"}, {cpu: 1, gpu: "idle"}}, 0, "1 likely gpu", ""},
		{"one's GPUs work", []hung{{cpu: 1, gpu: "busy"}, {cpu: 1, gpu: "work"}, {cpu: 1, gpu: "busy"}}, 0, "1 likely gpu", "its GPUs work"},
		{"one has idle GPUs and sleeps", []hung{{cpu: 1, gpu: "busy"}, {cpu: 0, gpu: "idle"}, {cpu: 1, gpu: "busy"}}, 0, "1 sure gpu", ""},
		{"one has idle GPUs, another one sleeps", []hung{{cpu: 1, gpu: "busy"}, {cpu: 1, gpu: "idle"}, {cpu: 0, gpu: "busy"}}, 0, "unsure [1 2]", "member 1: its GPUs are idle"},
		{"one is stopped, another one spins, the others sleep", []hung{{state: "T"}, spin, sleep, sleep}, 0, "0 likely stopped", ""},
		{"all GPUs wait", []hung{{cpu: 1, gpu: "busy"}, {cpu: 1, gpu: "busy"}, {cpu: 1, gpu: "busy"}}, 0, "unsure", "all GPUs run a kernel that waits"},
		{"all GPUs are idle", []hung{{cpu: 1, gpu: "idle"}, {cpu: 1, gpu: "idle"}, {cpu: 1, gpu: "idle"}}, 0, "unsure", ""},
		{"a device is unknown", []hung{{cpu: 1, gpu: "busy"}, {cpu: 1, gpu: "unknown"}, {cpu: 1, gpu: "busy"}}, 0, "unsure", ""},
		// By the function in which it waits.
		{"all sleep, one in a timer", []hung{{wait: "futex_wait"}, {wait: "futex_wait"}, {wait: "hrtimer_nanosleep"}, {wait: "futex_wait"}}, 0, "2 likely wait", "it waits in hrtimer_nanosleep, the others in a wait for an event"},
		{"all sleep in one function", []hung{{wait: "futex_wait"}, {wait: "futex_wait"}, {wait: "futex_wait"}}, 0, "unsure", "all sleep"},
		{"all sleep in several functions", []hung{{wait: "a"}, {wait: "b"}, {wait: "c"}}, 0, "unsure", ""},
		{"all wait for events", []hung{{wait: "futex_wait_queue"}, {wait: "futex_wait_queue"}, {wait: "do_epoll_wait"}}, 0, "unsure", "all sleep"},
		{"one is behind, another one sleeps in a timer", []hung{{step: 17, wait: "futex_wait"}, {step: 17, wait: "hrtimer_nanosleep"}, {step: 16, wait: "futex_wait"}}, 0, "2 sure step", ""},
		{"the function of one is hidden", []hung{{wait: "a"}, {wait: "a"}, {}}, 0, "unsure", ""},
		// With evidence missing.
		{"one of four is missing", []hung{spin, {state: "T"}, spin}, 4, "1 likely stopped", "(python) is stopped; no evidence of 1 member"},
		{"one of five is missing, and two names", []hung{{step: 17, cpu: 1}, {step: 17, state: "T"}, {step: 16, cpu: 1}, {step: 17, cpu: 1}}, 5, "unsure [2 1]", "is stopped; no evidence of 1 member"},
		{"half is missing", []hung{spin, {state: "T"}}, 4, "1 likely stopped", "; no evidence of 2 members"},
		{"more than half is missing", []hung{spin, {state: "T"}}, 5, "unsure", "evidence of 2 of 5 members arrived"},
		{"the peer of a stopped one is missing", []hung{{state: "T"}}, 2, "0 likely stopped", "is stopped; no evidence of 1 member"},
		{"the peer of a blocked one is missing", []hung{{state: "D"}}, 2, "0 likely blocked", "no evidence of 1 member"},
		{"the peer of a sleeper is missing", []hung{sleep}, 2, "unsure", "evidence of 1 of 2 members arrived"},
		{"all but one of three are missing", []hung{{state: "T"}}, 3, "unsure", "evidence of 1 of 3 members arrived"},
		{"the last one is stopped", []hung{{state: "T"}}, 1, "0 sure stopped", ""},
		{"the last one sleeps", []hung{sleep}, 1, "unsure", "member 0 is alone and shows no sign of its own"},
		{"none has arrived", nil, 3, "unsure", "evidence of 0 of 3"},
	} {
		var list []failure.HangEvidence
		for rank, h := range c.members {
			list = append(list, h.evidence(rank))
		}
		members := max(c.of, len(list))
		for range 3 { // in any order
			got := failure.NameOdd(list, members)
			name := answer(got)
			if name != c.want || !strings.Contains(got.Text(), c.says) || got.Missing != members-len(list) {
				t.Errorf("%s: got %q (%s), want %q with %q", c.claim, name, got.Text(), c.want, c.says)
			}
			rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
	}
}

func TestEvidenceOfAHangIsBounded(t *testing.T) {
	t.Parallel()
	full := func() failure.HangEvidence {
		word := strings.Repeat("x", failure.MaxHangWord)
		p := failure.HangProcess{Name: word, State: "S", Wait: word, Stack: slices.Repeat([]string{word}, failure.MaxHangFrames)}
		return failure.HangEvidence{
			Lines:     slices.Repeat([]string{strings.Repeat("x", failure.MaxHangLine)}, failure.MaxHangLines),
			GPUs:      make([]failure.HangGPU, failure.MaxHangGPUs),
			Processes: slices.Repeat([]failure.HangProcess{p}, failure.MaxHangProcesses),
		}
	}
	if err := full().Valid(); err != nil {
		t.Errorf("the largest evidence is refused: %v", err)
	}
	for what, edit := range map[string]func(*failure.HangEvidence){
		"a line more":    func(h *failure.HangEvidence) { h.Lines = append(h.Lines, "") },
		"a longer line":  func(h *failure.HangEvidence) { h.Lines[3] += "x" },
		"a process more": func(h *failure.HangEvidence) { h.Processes = append(h.Processes, failure.HangProcess{}) },
		"a longer name":  func(h *failure.HangEvidence) { h.Processes = []failure.HangProcess{{Name: h.Processes[0].Name + "x"}} },
		"a frame more":   func(h *failure.HangEvidence) { h.Processes[0].Stack = append(h.Processes[0].Stack, "") },
		"a GPU more":     func(h *failure.HangEvidence) { h.GPUs = append(h.GPUs, failure.HangGPU{}) },
	} {
		h := full()
		edit(&h)
		if h.Valid() == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

func TestEvidenceOfAHangReadsWell(t *testing.T) {
	t.Parallel()
	step, age, cpu, busy, memory, watts, limit := int64(16), 612.3, 1.004, 1.0, 0.01, 118.4, 700.0
	h := failure.HangEvidence{
		QuietSeconds: 600.2, Step: &step, StepSeconds: &age, CPU: &cpu,
		GPUs:      []failure.HangGPU{{Busy: &busy, MemoryBusy: &memory, Watts: &watts, LimitWatts: &limit}},
		Processes: []failure.HangProcess{{Name: "python", State: "R"}, {Name: "init", State: "S"}, {Name: "worker", State: "S"}},
	}
	const want = "no sign of life for 10m0s, step 16 since 10m12s, CPU 1.00 cores, GPU 100 % busy, memory 1 %, 118 of 700 W, processes 1 R, 2 S (python)"
	if got := h.Text(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// gangHung is an attempt of a gang on machines m0, m1, ... in which all members were stopped.
func gangHung(members ...hung) failure.AttemptEvidence {
	e := failure.AttemptEvidence{Job: "j", State: berth.Running, Attempt: 1, Retry: spec.RetryPolicy{MaxAttempts: 2}}
	for rank, h := range members {
		x := caused(failure.CauseStalled)
		x.StartedAt, x.Message = start, "no sign"
		evidence := h.evidence(rank)
		e.Ranks = append(e.Ranks, failure.RankEvidence{
			Rank: rank, Machine: berth.MachineID(fmt.Sprintf("m%d", rank)), Claimed: true, Exit: x, Hang: &evidence,
		})
	}
	return e
}

// inGroups puts the members of an attempt into groups of these sizes.
func inGroups(e failure.AttemptEvidence, sizes ...int) failure.AttemptEvidence {
	rank := 0
	for g, n := range sizes {
		for range n {
			e.Ranks[rank].Group = fmt.Sprintf("g%d", g)
			rank++
		}
	}
	return e
}

// A head that sleeps while its workers spin is no odd one, nor are learners ahead of actors.
func TestUnlikeMembersAreComparedWithinTheirGroup(t *testing.T) {
	t.Parallel()
	spin, sleep, stopped, disk := hung{cpu: 1}, hung{cpu: 0}, hung{state: "T"}, hung{state: "D"}
	at := func(step int64) hung { return hung{step: step, cpu: 1} }
	for _, c := range []struct {
		claim   string
		members []hung
		sizes   []int
		want    string
		says    string
	}{
		{"the head sleeps", []hung{sleep, spin, spin, spin}, []int{1, 3}, "unsure", "group g0: member 0 is alone and shows no sign of its own; group g1: the members look alike: all use the CPU"},
		{"the head sleeps, and one worker", []hung{sleep, spin, spin, sleep, spin}, []int{1, 4}, "3 likely cpu", "the others use the CPU (group g1)"},
		{"the head is stopped", []hung{stopped, spin, spin}, []int{1, 2}, "0 sure stopped", "(group g0)"},
		{"the head waits for a disk", []hung{disk, spin, spin}, []int{1, 2}, "0 likely blocked", "cannot be interrupted"},
		{"the groups are at other steps", []hung{at(100), at(100), at(7), at(7)}, []int{2, 2}, "unsure", "alike"},
		{"one of a group is behind", []hung{at(100), at(100), at(7), at(6), at(7)}, []int{2, 3}, "3 sure step", "it is at step 6, the others at 7 (group g1)"},
		{"a worker is behind, the head is stopped", []hung{stopped, at(7), at(6)}, []int{1, 2}, "unsure [0 2]", "it is at step 6"},
		{"a worker sleeps, the head is stopped", []hung{stopped, spin, spin, sleep}, []int{1, 3}, "0 likely stopped", ""},
		{"one of two groups each", []hung{spin, sleep, spin, sleep, spin, sleep, sleep}, []int{3, 4}, "unsure [1 4]", "group g0: it sleeps"},
		{"pairs say nothing by CPU", []hung{spin, sleep, spin, sleep}, []int{2, 2}, "unsure", "differ too much"},
		{"three alone", []hung{spin, sleep, spin}, []int{1, 1, 1}, "unsure", "member 2 is alone"},
	} {
		got := inGroups(gangHung(c.members...), c.sizes...).Odd()
		name := answer(*got)
		if name != c.want || !strings.Contains(got.Text(), c.says) {
			t.Errorf("%s: got %q (%s), want %q with %q", c.claim, name, got.Text(), c.want, c.says)
		}
	}
}

// Missing evidence lowers the confidence only after the names of the groups were compared, and the text counts the
// members without evidence once.
func TestMissingEvidenceOfAGroupIsCountedOnce(t *testing.T) {
	t.Parallel()
	spin, sleep, stopped := hung{cpu: 1}, hung{cpu: 0}, hung{state: "T"}
	for _, c := range []struct {
		claim   string
		members []hung
		sizes   []int
		without []int // members that sent no evidence
		want    string
		text    string // "": not compared
	}{
		{"one of one group", []hung{sleep, spin, spin, sleep, spin}, []int{1, 4}, []int{1}, "3 likely cpu",
			"member 3 likely holds up the others: it sleeps, the others use the CPU (group g1); no evidence of 1 member"},
		{"one of each group", []hung{spin, spin, spin, spin, spin, sleep, spin}, []int{3, 4}, []int{0, 3}, "5 likely cpu",
			"member 5 likely holds up the others: it sleeps, the others use the CPU (group g1); no evidence of 2 members"},
		{"nothing is missing", []hung{stopped, spin, spin, spin, spin, spin, sleep}, []int{4, 3}, nil, "0 likely stopped",
			"member 0 likely holds up the others: its process 100 (python) is stopped (group g0)"},
		{"one of the group of the sure one", []hung{stopped, spin, spin, spin, spin, spin, sleep}, []int{4, 3}, []int{1}, "0 likely stopped",
			"member 0 likely holds up the others: its process 100 (python) is stopped (group g0); no evidence of 1 member"},
		{"one of the group of the other one", []hung{stopped, spin, spin, spin, spin, spin, spin, sleep}, []int{4, 4}, []int{4}, "0 likely stopped", ""},
		{"several names", []hung{spin, sleep, spin, spin, sleep, spin, spin}, []int{3, 4}, []int{6}, "unsure [1 4]",
			"no member can be named: group g0: it sleeps, the others use the CPU; group g1: it sleeps, the others use the CPU; no evidence of 1 member"},
		{"no name", []hung{spin, spin, spin, spin, spin}, []int{1, 4}, []int{1}, "unsure",
			"no member can be named: group g0: member 0 is alone and shows no sign of its own; group g1: the members look alike: all use the CPU"},
		{"three of four workers", []hung{stopped, spin, spin, spin, spin}, []int{1, 4}, []int{2, 3, 4}, "0 likely stopped", ""},
		{"three of four workers and the head", []hung{stopped, spin, spin, spin, spin}, []int{1, 4}, []int{0, 2, 3, 4}, "unsure",
			"no member can be named: group g0: evidence of 0 of 1 member arrived; group g1: evidence of 1 of 4 members arrived"},
		{"one of a pair, the other one is stopped", []hung{spin, stopped, spin}, []int{1, 2}, []int{2}, "1 likely stopped", ""},
	} {
		e := inGroups(gangHung(c.members...), c.sizes...)
		for _, rank := range c.without {
			e.Ranks[rank].Hang = nil
		}
		got := e.Odd()
		if answer(*got) != c.want || c.text != "" && got.Text() != c.text || got.Missing != len(c.without) {
			t.Errorf("%s: got %q (%s), %d missing, want %q (%s)", c.claim, answer(*got), got.Text(), got.Missing, c.want, c.text)
		}
	}
}

// A group whose peers are done is judged as before: its only member by its own signs.
func TestTheLastGroupOfAGangIsStillAGroup(t *testing.T) {
	t.Parallel()
	spin, sleep, stopped, disk := hung{cpu: 1}, hung{cpu: 0}, hung{state: "T"}, hung{state: "D"}
	for _, c := range []struct {
		claim   string
		members []hung
		sizes   []int
		done    []int
		want    string
		says    string
	}{
		{"the head is stopped", []hung{stopped, spin, spin}, []int{1, 2}, []int{1, 2}, "0 sure stopped", "is stopped (group g0)"},
		{"the head waits for a disk", []hung{disk, spin, spin}, []int{1, 2}, []int{1, 2}, "0 likely blocked", "(group g0)"},
		{"the head sleeps", []hung{sleep, spin, spin}, []int{1, 2}, []int{1, 2}, "unsure", "group g0: member 0 is alone"},
		{"a worker sleeps", []hung{spin, spin, sleep, spin}, []int{1, 3}, []int{0}, "2 likely cpu", "(group g1)"},
		{"two workers are odd", []hung{spin, {step: 17, state: "T"}, {step: 16, cpu: 1}, {step: 17, cpu: 1}}, []int{1, 3}, []int{0}, "unsure [2 1]", "group g1: member 2: it is at step 16"},
		{"the last one of a gang without groups is stopped", []hung{spin, stopped}, []int{}, []int{0}, "1 sure stopped", ""},
	} {
		e := inGroups(gangHung(c.members...), c.sizes...)
		for _, rank := range c.done {
			e.Ranks[rank].Exit, e.Ranks[rank].Hang = exited(0), nil
		}
		got := e.Odd()
		if answer(*got) != c.want || !strings.Contains(got.Text(), c.says) || got.Missing != 0 {
			t.Errorf("%s: got %q (%s), want %q with %q", c.claim, answer(*got), got.Text(), c.want, c.says)
		}
	}
}

// The retry avoids the machine of the odd member, and the reason names the member.
func TestTheMachineOfTheOddMemberIsBlamed(t *testing.T) {
	t.Parallel()
	spin, sleep := hung{cpu: 1}, hung{cpu: 0}
	v := failure.Classify(gangHung(spin, spin, sleep, spin))
	if v.Rule != "stalled" || v.Machine != "m2" || !slices.Equal(v.Avoid, []berth.MachineID{"m2"}) || !strings.Contains(v.Reason.Message, "no sign; member 2 likely holds up the others: it sleeps") {
		t.Errorf("verdict is %+v", v)
	}
	v = failure.Classify(gangHung(spin, spin, spin))
	if v.Machine != "m0" || !strings.Contains(v.Reason.Message, "no member can be named") {
		t.Errorf("without a name: %+v", v)
	}
	single := gangHung(sleep)
	if v := failure.Classify(single); v.Reason.Message != "no sign" || single.Hang(v) == nil || single.Hang(v).Odd != nil {
		t.Errorf("a single member: %+v", v)
	}
}

// The odd member is among the listed ones of a large gang, and a hang is one only by its rule.
func TestTheEvidenceOfALargeGangIsCut(t *testing.T) {
	t.Parallel()
	members := slices.Repeat([]hung{{cpu: 1}}, 40)
	members[33] = hung{state: "T"}
	e := gangHung(members...)
	v := failure.Classify(e)
	h := e.Hang(v)
	if h == nil || len(h.Members) != 16 || h.More != 24 || h.Members[15].Rank != 33 || h.Members[14].Rank != 14 || *h.Odd.Rank != 33 {
		t.Errorf("hang is %+v", h)
	}
	e.State = berth.Canceling
	if v := failure.Classify(e); e.Hang(v) != nil {
		t.Errorf("a canceled gang hangs: %+v", v)
	}
	done := gangHung(hung{cpu: 1}, hung{state: "T"}, hung{})
	done.State = berth.Running
	done.Ranks[2].Exit, done.Ranks[2].Hang = exited(0), nil
	if h := done.Hang(failure.Classify(done)); h == nil || h.Odd.Missing != 0 || *h.Odd.Rank != 1 {
		t.Errorf("with a member that was done: %+v", h)
	}
}
