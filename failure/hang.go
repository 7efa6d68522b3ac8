package failure

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
)

// Bounds of the evidence about one member. An agent keeps to them, and a server refuses more.
const (
	MaxHangLines     = 20  // last lines of the log
	MaxHangLine      = 400 // bytes of a line
	MaxHangProcesses = 32
	MaxHangFrames    = 12 // of a kernel stack
	MaxHangWord      = 80 // bytes of a name, a wait channel or a frame
	MaxHangGPUs      = 64
)

// HangEvidence is the state of a member at the verdict that its job hangs, before any process was
// signaled. A measurement that the machine does not offer is absent.
type HangEvidence struct {
	Rank         int             `json:"rank" doc:"member"`
	Machine      berth.MachineID `json:"machine,omitempty"`
	At           time.Time       `json:"at"`
	QuietSeconds float64         `json:"quiet_seconds" doc:"since the last sign of life that counts"`
	Step         *int64          `json:"step,omitempty" doc:"last step of the progress file"`
	StepSeconds  *float64        `json:"step_seconds,omitempty" doc:"since the progress file last changed"`
	CPU          *float64        `json:"cpu,omitempty" doc:"cores in use, mean of the last minute or less"`
	CPUSeconds   float64         `json:"cpu_seconds,omitempty" doc:"time that cpu is the mean of"`
	CPULimit     float64         `json:"cpu_limit,omitempty" doc:"cores that the member may use"`
	GPUs         []HangGPU       `json:"gpus,omitempty"`
	Processes    []HangProcess   `json:"processes,omitempty" doc:"processes of the container, most CPU time first"`
	More         int             `json:"more_processes,omitempty" doc:"further processes, which are not listed"`
	Lines        []string        `json:"lines,omitempty" doc:"last lines of the log"`
}

// HangGPU is the state of one device. A value that the driver does not report is nil.
type HangGPU struct {
	UUID       string   `json:"uuid"`
	Busy       *float64 `json:"busy,omitempty" doc:"share of the time in which a kernel ran, 0 to 1"`
	MemoryBusy *float64 `json:"memory_busy,omitempty" doc:"share of the time in which memory was read or written"`
	Watts      *float64 `json:"watts,omitempty" doc:"power draw"`
	LimitWatts *float64 `json:"limit_watts,omitempty" doc:"enforced power limit"`
	Works      bool     `json:"works,omitempty" doc:"power and memory show work; a waiting kernel shows none"`
}

// HangProcess is the state of one process of a container.
type HangProcess struct {
	PID        int      `json:"pid" doc:"on the machine"`
	Name       string   `json:"name"`
	State      string   `json:"state" doc:"R: a thread runs, S: all sleep, D: one cannot be interrupted, T: stopped"`
	Changed    bool     `json:"changed,omitempty" doc:"half a second earlier it was in another state"`
	Threads    int      `json:"threads,omitempty"`
	CPUSeconds float64  `json:"cpu_seconds" doc:"CPU time since its start"`
	Wait       string   `json:"wait,omitempty" doc:"kernel function in which it waits, where readable"`
	Stack      []string `json:"stack,omitempty" doc:"kernel stack, the innermost frame first, where readable"`
}

// Hang is the verdict that an attempt hangs, with the evidence of its members.
type Hang struct {
	Attempt int            `json:"attempt"`
	Odd     *OddMember     `json:"odd,omitempty" doc:"the member of a gang that differs from the others"`
	Members []HangEvidence `json:"members"`
	More    int            `json:"more_members,omitempty" doc:"further members, which are not listed"`
}

// maxHangMembers bounds the members of a Hang: a gang may have hundreds.
const maxHangMembers = 16

// Hang returns the evidence of an attempt that ended by a hang, by its verdict. It lists the
// members that the answer about the odd member names, then the first ones, in the order of ranks. It
// returns nil for another end, and without evidence.
func (e AttemptEvidence) Hang(v Verdict) *Hang {
	list := e.hung()
	if len(list) == 0 || !slices.Contains(stalls, v.Rule) {
		return nil
	}
	h := &Hang{Attempt: e.Attempt, Odd: e.Odd()}
	named := func(x HangEvidence) bool {
		return h.Odd != nil && (h.Odd.Rank != nil && *h.Odd.Rank == x.Rank || slices.Contains(h.Odd.Candidates, x.Rank))
	}
	byRank := func(a, b HangEvidence) int { return a.Rank - b.Rank }
	slices.SortFunc(list, func(a, b HangEvidence) int {
		switch {
		case named(a) == named(b):
			return byRank(a, b)
		case named(a):
			return -1
		default:
			return 1
		}
	})
	if n := len(list) - maxHangMembers; n > 0 {
		list, h.More = list[:maxHangMembers], n
	}
	slices.SortFunc(list, byRank)
	h.Members = list
	return h
}

// hung returns the evidence of all members that sent some.
func (e AttemptEvidence) hung() []HangEvidence {
	var list []HangEvidence
	for _, r := range e.Ranks {
		if r.Hang != nil {
			list = append(list, *r.Hang)
		}
	}
	return list
}

// Odd returns the member of a gang that holds up the others; nil for a single member, and without
// evidence of a hang. A member that was done before is not counted among the others.
func (e AttemptEvidence) Odd() *OddMember {
	list := e.hung()
	if len(e.Ranks) < 2 || len(list) == 0 {
		return nil
	}
	o := NameOddOf(e.hungGroups())
	return &o
}

// hungGroups returns the evidence by group, in order of rank. A member that was done before is left out, as is
// a group of such members.
func (e AttemptEvidence) hungGroups() []HungGroup {
	var groups []HungGroup
	for _, r := range e.Ranks {
		if r.Hang == nil && r.Exit != nil && r.Exit.Done() {
			continue
		}
		i := slices.IndexFunc(groups, func(g HungGroup) bool { return g.Name == r.Group })
		if i < 0 {
			i = len(groups)
			groups = append(groups, HungGroup{Name: r.Group})
		}
		if groups[i].Members++; r.Hang != nil {
			groups[i].List = append(groups[i].List, *r.Hang)
		}
	}
	return groups
}

// oddMachine returns the machine of the odd member, or the given one if no member is named.
func (e AttemptEvidence) oddMachine(other berth.MachineID) berth.MachineID {
	o := e.Odd()
	if o == nil || o.Rank == nil {
		return other
	}
	at := slices.IndexFunc(e.Ranks, func(r RankEvidence) bool { return r.Rank == *o.Rank })
	return e.Ranks[at].Machine
}

// oddText continues a message with the odd member; "" without evidence about a gang.
func (e AttemptEvidence) oddText() string {
	if o := e.Odd(); o != nil {
		return "; " + o.Text()
	}
	return ""
}

// Valid returns an error for evidence beyond the bounds.
func (h HangEvidence) Valid() error {
	long := func(most int, texts ...string) bool {
		for _, t := range texts {
			if len(t) > most {
				return true
			}
		}
		return false
	}
	bad := len(h.Lines) > MaxHangLines || long(MaxHangLine, h.Lines...) || len(h.GPUs) > MaxHangGPUs ||
		len(h.Processes) > MaxHangProcesses
	for _, g := range h.GPUs {
		bad = bad || long(2*MaxHangWord, g.UUID)
	}
	for _, p := range h.Processes {
		bad = bad || long(MaxHangWord, p.Name, p.State, p.Wait) || long(MaxHangWord, p.Stack...) ||
			len(p.Stack) > MaxHangFrames
	}
	if bad {
		return berth.Errorf(berth.CodeInvalid, "evidence of a hang is too long: allowed are %d lines of %d bytes, "+
			"%d GPUs and %d processes", MaxHangLines, MaxHangLine, MaxHangGPUs, MaxHangProcesses)
	}
	return nil
}

// Text summarizes the evidence in one line, without the lines of the log.
func (h HangEvidence) Text() string {
	parts := []string{"no sign of life for " + seconds(h.QuietSeconds)}
	if h.Step != nil {
		step := fmt.Sprintf("step %d", *h.Step)
		if h.StepSeconds != nil {
			step += " since " + seconds(*h.StepSeconds)
		}
		parts = append(parts, step)
	}
	if h.CPU != nil {
		parts = append(parts, fmt.Sprintf("CPU %.2f cores", *h.CPU))
	}
	for _, g := range h.GPUs {
		parts = append(parts, g.text())
	}
	if len(h.Processes) > 0 {
		parts = append(parts, "processes "+h.states())
	}
	return strings.Join(parts, ", ")
}

// states counts the processes by state, such as "3 S, 1 T (python in futex_wait)". The name is
// the process with the most CPU time.
func (h HangEvidence) states() string {
	count := map[string]int{}
	var order []string
	for _, p := range h.Processes {
		if count[p.State] == 0 {
			order = append(order, p.State)
		}
		count[p.State]++
	}
	for i, state := range order {
		order[i] = fmt.Sprintf("%d %s", count[state], state)
	}
	text := strings.Join(order, ", ") + " (" + h.Processes[0].Name
	if w := h.Processes[0].Wait; w != "" {
		text += " in " + w
	}
	return text + ")"
}

// text returns the state of a device, such as "GPU 100 % busy, memory 1 %, 118 of 700 W".
func (g HangGPU) text() string {
	var parts []string
	if g.Busy != nil {
		parts = append(parts, fmt.Sprintf("%.0f %% busy", *g.Busy*100))
	}
	if g.MemoryBusy != nil {
		parts = append(parts, fmt.Sprintf("memory %.0f %%", *g.MemoryBusy*100))
	}
	switch {
	case g.Watts != nil && g.LimitWatts != nil:
		parts = append(parts, fmt.Sprintf("%.0f of %.0f W", *g.Watts, *g.LimitWatts))
	case g.Watts != nil:
		parts = append(parts, fmt.Sprintf("%.0f W", *g.Watts))
	}
	if len(parts) == 0 {
		return "GPU unknown"
	}
	return "GPU " + strings.Join(parts, ", ")
}

// seconds formats a time for a summary: "4.2s" below ten seconds, whole seconds above.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
