package failure

import (
	"fmt"
	"slices"
	"strings"
)

// Confidence is the degree to which evidence supports a name.
type Confidence string

// The degrees of confidence.
const (
	Sure   Confidence = "sure"   // nothing but a fault of this member explains the evidence
	Likely Confidence = "likely" // the member differs from all others, which are alike
	Unsure Confidence = "unsure" // the evidence names no member, or two of them
)

// OddBy is the kind of evidence that sets one member apart.
type OddBy string

// The kinds of evidence, the strongest first.
const (
	OddByStep    OddBy = "step"    // its progress is behind that of all others
	OddByStopped OddBy = "stopped" // a process of it is stopped, and none of the others
	OddByBlocked OddBy = "blocked" // a process of it is in uninterruptible sleep, and none of the others
	OddByGPU     OddBy = "gpu"     // its GPUs are idle or at work, and the others' run a waiting kernel
	OddByCPU     OddBy = "cpu"     // it sleeps and the others spin, or it spins and the others sleep
	OddByWait    OddBy = "wait"    // it waits in the kernel for something else than all others
)

// OddMember names the member of a hung gang that holds up the others, with a confidence.
type OddMember struct {
	Confidence Confidence `json:"confidence" doc:"sure, likely or unsure"`
	Rank       *int       `json:"rank,omitempty" doc:"the member; absent if unsure"`
	By         OddBy      `json:"by,omitempty" doc:"step, stopped, blocked, gpu, cpu or wait"`
	Candidates []int      `json:"candidates,omitempty" doc:"if unsure: members that different evidence names"`
	Missing    int        `json:"missing,omitempty" doc:"members without evidence"`
	Detail     string     `json:"detail" doc:"the reason, for people"`
}

// Text names the member and the reason: "member 2 is likely to blame: it sleeps, the others use
// the CPU".
func (o OddMember) Text() string {
	if o.Rank == nil {
		return "no member can be named: " + o.Detail
	}
	if o.Confidence == Sure {
		return fmt.Sprintf("member %d holds up the others: %s", *o.Rank, o.Detail)
	}
	return fmt.Sprintf("member %d %s holds up the others: %s", *o.Rank, o.Confidence, o.Detail)
}

// A member spins from this share of a core, and sleeps up to that one; in between it does neither.
// A member with less than one core is measured by its own limit. On a machine that is short of
// CPU, a busy loop gets less than spinsFrom; its process is ready to run at each look, and a
// smaller share is enough.
const (
	spinsFrom      = 0.4
	spinsReadyFrom = 0.04
	sleepsTo       = 0.1
)

// busyKernel is the share of time from which a device counts as running a kernel all the time.
const busyKernel = 0.9

// NameOdd returns the member of a gang of so many members that differs from the others. It asks
// the kinds of evidence in the order of OddBy, the strongest first:
//
//	step     one member is behind all others                       sure; likely if the others differ
//	stopped  one member has a stopped process                      sure
//	blocked  one member has a process in uninterruptible sleep     likely
//	gpu      one member's GPUs do not run a waiting kernel         likely
//	cpu      one of three or more sleeps or spins, unlike all      likely
//	wait     one of three or more waits for something else         likely
//
// The first kind with a name decides. Further kinds with the same name turn likely into sure. One
// with another name turns sure into likely, and likely into unsure; so do step and stopped if they
// differ. Wait is too weak to lower sure. Of two members that differ by cpu or wait alone, each is as
// odd as the other.
//
// Missing evidence lowers sure to likely; with the evidence of less than half the gang, no member is
// named. With the evidence of one member there is no other to compare it with: only stopped and blocked
// name it, in a gang of one and in a pair.
//
// NameOdd is pure. The order of the list is of no consequence.
func NameOdd(list []HangEvidence, members int) OddMember { return withMissing(nameOdd(list, members)) }

// nameOdd is NameOdd before missing evidence lowers the confidence. The answer counts the members without
// evidence, and its text does not mention them.
func nameOdd(list []HangEvidence, members int) OddMember {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b HangEvidence) int { return a.Rank - b.Rank })
	missing := max(members-len(list), 0)
	switch {
	case len(list) == 0 || 2*len(list) < members:
		return tooLittle(list, members)
	case len(list) == 1:
		return oddAlone(list, members)
	}
	var found []OddMember
	for _, by := range []func([]HangEvidence) *OddMember{
		oddStep, oddStopped, oddBlocked, oddGPU, oddCPU, oddWait,
	} {
		if o := by(list); o != nil {
			found = append(found, *o)
		}
	}
	if len(found) == 0 {
		return OddMember{Confidence: Unsure, Missing: missing, Detail: "the members look alike" + among(list)}
	}
	first := found[0]
	first.Missing = missing
	agrees := false
	for _, o := range found[1:] {
		if *o.Rank == *first.Rank {
			agrees = true
			continue
		}
		if o.By == OddByWait && first.Confidence == Sure {
			continue // too weak to speak against it
		}
		if first.Confidence == Likely || first.By == OddByStep && o.By == OddByStopped {
			return OddMember{Confidence: Unsure, Missing: missing, Candidates: []int{*first.Rank, *o.Rank},
				Detail: fmt.Sprintf("member %d: %s; member %d: %s", *first.Rank, first.Detail, *o.Rank, o.Detail)}
		}
		first.Confidence = Likely
		return first
	}
	if agrees {
		first.Confidence = Sure
	}
	return first
}

// oddAlone judges the only member with evidence by its own signs, a stopped or a blocked process.
func oddAlone(list []HangEvidence, members int) OddMember {
	for _, by := range []func([]HangEvidence) *OddMember{oddStopped, oddBlocked} {
		if o := by(list); o != nil {
			o.Missing = max(members-1, 0)
			return *o
		}
	}
	if members > 1 {
		return tooLittle(list, members)
	}
	return OddMember{Confidence: Unsure, Detail: fmt.Sprintf("member %d is alone and shows no sign of its own",
		list[0].Rank)}
}

// tooLittle is the answer if the evidence of too few members arrived.
func tooLittle(list []HangEvidence, members int) OddMember {
	return OddMember{Confidence: Unsure, Missing: max(members-len(list), 0),
		Detail: fmt.Sprintf("evidence of %d of %s arrived", len(list), countMembers(members))}
}

// withMissing lowers the confidence of an answer without the evidence of some members, and counts these in the
// text. An answer that names no member and has no candidates stays as it is.
func withMissing(o OddMember) OddMember {
	if o.Missing == 0 || o.Rank == nil && len(o.Candidates) == 0 {
		return o
	}
	if o.Confidence == Sure {
		o.Confidence = Likely
	}
	o.Detail += "; no evidence of " + countMembers(o.Missing)
	return o
}

// countMembers returns a number of members for a text: "1 member", "2 members".
func countMembers(n int) string {
	if n == 1 {
		return "1 member"
	}
	return fmt.Sprintf("%d members", n)
}

// named returns the answer that names the i-th member of a list.
func named(list []HangEvidence, i int, by OddBy, c Confidence, detail string) *OddMember {
	rank := list[i].Rank
	return &OddMember{Confidence: c, Rank: &rank, By: by, Detail: detail}
}

// onlyOne returns the index of the one member that has a property, or -1.
func onlyOne(list []HangEvidence, has func(HangEvidence) bool) int {
	at := slices.IndexFunc(list, has)
	if at < 0 || slices.ContainsFunc(list[at+1:], has) {
		return -1
	}
	return at
}

// oddStep names the one member whose step is lower than all others'. Every member must have
// reported a step: in many programs only the first one does.
func oddStep(list []HangEvidence) *OddMember {
	if slices.ContainsFunc(list, func(h HangEvidence) bool { return h.Step == nil }) {
		return nil
	}
	byStep := func(a, b HangEvidence) int {
		switch {
		case *a.Step < *b.Step:
			return -1
		case *a.Step > *b.Step:
			return 1
		}
		return 0
	}
	least, most := *slices.MinFunc(list, byStep).Step, *slices.MaxFunc(list, byStep).Step
	behind := onlyOne(list, func(h HangEvidence) bool { return *h.Step == least })
	if behind < 0 || least == most {
		return nil
	}
	next := most // the least step of the others
	for i, h := range list {
		if i != behind {
			next = min(next, *h.Step)
		}
	}
	if next == most {
		return named(list, behind, OddByStep, Sure, fmt.Sprintf("it is at step %d, the others at %d", least, most))
	}
	return named(list, behind, OddByStep, Likely,
		fmt.Sprintf("it is at step %d, the others at %d to %d", least, next, most))
}

// oddStopped names the one member with a stopped process. No program of a gang stops itself to
// wait for the others, so that two members are enough.
func oddStopped(list []HangEvidence) *OddMember {
	at := onlyOne(list, func(h HangEvidence) bool { return h.has("T", "t") && !h.spins() })
	if at < 0 {
		return nil
	}
	return named(list, at, OddByStopped, Sure, "its process "+list[at].nameOf("T", "t")+" is stopped")
}

// oddBlocked names the one member with a process in uninterruptible sleep: most often it waits
// for a disk, a file server or a driver. A process that was in another state a moment before only
// reads or writes.
func oddBlocked(list []HangEvidence) *OddMember {
	at := onlyOne(list, func(h HangEvidence) bool { return h.has("D") && !h.spins() })
	if at < 0 {
		return nil
	}
	return named(list, at, OddByBlocked, Likely,
		"its process "+list[at].nameOf("D")+" waits in the kernel and cannot be interrupted")
}

// oddGPU names the one member whose GPUs do not run the kernel in which all others wait: a
// collective operation waits at full utilization, with little power.
func oddGPU(list []HangEvidence) *OddMember {
	for _, h := range list {
		if !h.gpusKnown() {
			return nil
		}
	}
	at := onlyOne(list, func(h HangEvidence) bool { return !h.gpusWait() })
	switch {
	case at < 0:
		return nil
	case slices.ContainsFunc(list[at].GPUs, func(g HangGPU) bool { return g.Works }):
		return named(list, at, OddByGPU, Likely, "its GPUs work, the others' run a kernel that waits")
	default:
		return named(list, at, OddByGPU, Likely, "its GPUs are idle, the others' run a kernel that waits")
	}
}

// oddCPU names the one member of three or more that sleeps while all others spin, or spins while
// all others sleep.
func oddCPU(list []HangEvidence) *OddMember {
	if len(list) < 3 {
		return nil
	}
	if slices.ContainsFunc(list, func(h HangEvidence) bool { return !h.spins() && !h.sleeps() }) {
		return nil
	}
	if at := onlyOne(list, HangEvidence.sleeps); at >= 0 {
		return named(list, at, OddByCPU, Likely, "it sleeps, the others use the CPU")
	}
	if at := onlyOne(list, HangEvidence.spins); at >= 0 {
		return named(list, at, OddByCPU, Likely, "it uses the CPU, the others sleep")
	}
	return nil
}

// oddWait names the one member of three or more whose busiest process waits for something else
// than the busiest processes of all others.
func oddWait(list []HangEvidence) *OddMember {
	if len(list) < 3 || slices.ContainsFunc(list, func(h HangEvidence) bool { return h.wait() == "" }) {
		return nil
	}
	for i := range list {
		others := slices.Concat(list[:i:i], list[i+1:])
		common := others[0].wait()
		if list[i].wait() != common &&
			!slices.ContainsFunc(others, func(h HangEvidence) bool { return h.wait() != common }) {
			return named(list, i, OddByWait, Likely,
				fmt.Sprintf("it waits in %s, the others in %s", list[i].wait(), common))
		}
	}
	return nil
}

// eventWaits are parts of the names of kernel functions that wait for an event of another thread or
// process. A program that waits for its peers may be in any of them.
var eventWaits = []string{"futex", "epoll", "poll_schedule", "select"}

// wait returns the kernel function in which the process with the most CPU time waits, or "". All
// eventWaits count as one.
func (h HangEvidence) wait() string {
	if len(h.Processes) == 0 {
		return ""
	}
	w := h.Processes[0].Wait
	if slices.ContainsFunc(eventWaits, func(part string) bool { return strings.Contains(w, part) }) {
		return "a wait for an event"
	}
	return w
}

// has reports whether a process stays in one of these states.
func (h HangEvidence) has(states ...string) bool { return h.nameOf(states...) != "" }

// nameOf returns the name of the first process that stays in one of these states, or "".
func (h HangEvidence) nameOf(states ...string) string {
	at := slices.IndexFunc(h.Processes, func(p HangProcess) bool {
		return !p.Changed && slices.Contains(states, p.State)
	})
	if at < 0 {
		return ""
	}
	return fmt.Sprintf("%d (%s)", h.Processes[at].PID, h.Processes[at].Name)
}

// spins reports whether the member uses most of a core, or all that its machine gives it.
func (h HangEvidence) spins() bool {
	if h.CPU == nil {
		return false
	}
	return *h.CPU >= spinsFrom*h.core() || *h.CPU >= spinsReadyFrom*h.core() && h.has("R")
}

// sleeps reports whether the member uses next to no CPU.
func (h HangEvidence) sleeps() bool { return h.CPU != nil && *h.CPU <= sleepsTo*h.core() && !h.spins() }

// core returns the CPU use of one busy thread: one core, or the member's limit if that is less.
func (h HangEvidence) core() float64 {
	if h.CPULimit > 0 {
		return min(1, h.CPULimit)
	}
	return 1
}

// gpusKnown reports whether the utilization of every device is known, and there is a device.
func (h HangEvidence) gpusKnown() bool {
	return len(h.GPUs) > 0 && !slices.ContainsFunc(h.GPUs, func(g HangGPU) bool { return g.Busy == nil })
}

// gpusWait reports whether every device runs a kernel without doing work.
func (h HangEvidence) gpusWait() bool {
	return !slices.ContainsFunc(h.GPUs, func(g HangGPU) bool { return *g.Busy < busyKernel || g.Works })
}

// among describes the common properties of members that cannot be distinguished: ": all use the
// CPU".
func among(list []HangEvidence) string {
	var common []string
	all := func(name string, has func(HangEvidence) bool) {
		if !slices.ContainsFunc(list, func(h HangEvidence) bool { return !has(h) }) {
			common = append(common, name)
		}
	}
	all("all use the CPU", HangEvidence.spins)
	all("all sleep", HangEvidence.sleeps)
	all("all GPUs run a kernel that waits", func(h HangEvidence) bool { return h.gpusKnown() && h.gpusWait() })
	if len(common) == 0 {
		return ", or differ too much"
	}
	return ": " + strings.Join(common, ", ")
}
