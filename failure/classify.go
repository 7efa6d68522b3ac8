package failure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/spec"
)

// MaxInfraLosses is the number of attempts lost to infrastructure, since the last new
// verified checkpoint, after which a job becomes a dead letter.
const MaxInfraLosses = 20

// Budget is the count of runs to which a failed attempt is charged.
type Budget string

// The budgets.
const (
	BudgetNone  Budget = "none"  // no charge, such as for a cancel, a preemption or a drain
	BudgetUser  Budget = "user"  // retry.max_attempts
	BudgetInfra Budget = "infra" // MaxInfraLosses
)

// RankEvidence is the evidence about one member of an ended attempt.
type RankEvidence struct {
	Rank     int
	Group    string // of a gang with unlike members; "": all members are alike
	Machine  berth.MachineID
	Orphaned bool  // its machine fell silent; its end is unknown
	Claimed  bool  // the machine has claimed the allocation
	Suspect  bool  // its machine died within PoisonMinutes of its start, and ran nothing else
	CutOff   bool  // it has ended, and its machine was given up before all its data was stored
	Exit     *Exit // nil: no machine has reported an end

	Hang *HangEvidence // collected when the attempt was judged to hang; nil: none
}

// EarlierAttempt is the record of an attempt before the present one.
type EarlierAttempt struct {
	Attempt  int
	Rule     string          // name of the rule that decided it
	Machine  berth.MachineID // of the member to blame
	LastStep *int64
	Died     bool   // its machine died soon after its start, with no other suspect
	NoHost   string // the host that does not exist by the name servers of Machine; "": none
}

// AttemptEvidence is the input of Classify. It is read from the rows in one
// transaction, so that its parts agree.
type AttemptEvidence struct {
	Job        berth.JobID
	State      berth.State
	Attempt    int
	Retry      spec.RetryPolicy
	CancelAt   time.Time // time of the cancel request; zero: none
	Preempted  bool
	Suspended  bool   // stopped on request, to be held
	DrainedBy  string // reason of the drain of the machine; "": no drain
	Failures   int    // runs charged to BudgetUser before this one
	Losses     int    // attempts charged to BudgetInfra before this one
	OOMGrown   bool   // an earlier attempt has already got more memory
	Checkpoint bool   // a verified checkpoint exists
	Progressed bool   // this attempt has stored a verified checkpoint; read only with retry.on_time_limit: requeue
	Requeues   int    // earlier attempts that ended with a requeue at the time limit
	LastStep   *int64 // the last step that its progress reported
	// OutputsLost lists declared outputs without any stored data.
	OutputsLost []spec.Output
	Ranks       []RankEvidence // one for each member; not empty
	Earlier     []EarlierAttempt
}

// Verdict is the decision about a job after an attempt.
type Verdict struct {
	Next       berth.State
	Rule       string // name of the rule that decided
	Reason     berth.Reason
	Budget     Budget
	Delay      time.Duration     // until the next attempt is eligible
	Machine    berth.MachineID   // of the member to blame
	Avoid      []berth.MachineID // not used for the next attempt while another machine fits
	Faults     []berth.MachineID // machines against which the attempt counts, see LemonFaults
	GrowMemory bool              // the next attempt asks for 1.5 times the memory
	DeadLetter bool
	ExitCode   *int // of the member to blame, for users; nil: it says nothing about the end
}

// Classify returns the verdict on an attempt, by the first of the Rules that matches the
// evidence. All members must have ended or be orphaned. Classify is pure: the same
// evidence always gives the same verdict.
func Classify(e AttemptEvidence) Verdict {
	r := e.firstBad()
	at := slices.IndexFunc(Rules, func(c Rule) bool { return c.matches(e, r) })
	c := Rules[at] // the last rule matches everything
	if slices.Contains(stalls, c.Name) {
		r.Machine = e.oddMachine(r.Machine)
	}
	return e.verdict(c, r)
}

// verdict applies a rule; r is the member to blame.
func (e AttemptEvidence) verdict(c Rule, r RankEvidence) Verdict {
	v := Verdict{
		Next: c.Next, Rule: c.Name, Reason: c.reason(e, r), Budget: c.Budget, Machine: r.Machine,
		GrowMemory: c.GrowMemory, DeadLetter: c.DeadLetter,
	}
	if r.Exit != nil && r.Exit.Started() && !r.Orphaned && (c.Blame != BlamePolicy || c.Next.Terminal()) {
		v.ExitCode = &r.Exit.Code
	}
	if c.Fault {
		v.Faults = []berth.MachineID{r.Machine}
	}
	if c.Next == berth.Succeeded { // the success here points at the machines of earlier failures
		v.Faults = e.cleared()
	}
	if c.Next != berth.Retrying {
		return v
	}
	if spent, why := e.spent(c); spent {
		v.Next, v.GrowMemory = berth.Failed, false
		return e.giveUp(v, why)
	}
	switch c.Wait {
	case WaitNone:
	case WaitRetry:
		v.Delay = e.Retry.Backoff.Delay(e.Job, e.Failures+1)
	case WaitLoss:
		if e.Losses > 0 {
			v.Delay = infraBackoff.Delay(e.Job, e.Losses)
		}
	case WaitInfra:
		v.Delay = infraBackoff.Delay(e.Job, e.Losses+1)
	default:
		panic("unknown wait " + string(c.Wait))
	}
	if c.Elsewhere {
		v.Avoid = []berth.MachineID{r.Machine}
	}
	return v
}

// spent reports whether the budget of a rule has no run left. The text explains this to the
// user; it is empty for a user budget of a single run and for the infrastructure budget.
func (e AttemptEvidence) spent(c Rule) (bool, string) {
	switch c.Budget {
	case BudgetNone:
		return false, ""
	case BudgetUser:
		runs := max(e.Retry.MaxAttempts, c.Tries)
		if e.Failures+1 < runs {
			return false, ""
		}
		if runs <= 1 {
			return true, ""
		}
		return true, fmt.Sprintf("attempt %d of %d", e.Failures+1, runs)
	case BudgetInfra:
		return e.Losses+1 >= MaxInfraLosses, ""
	default:
		panic("unknown budget " + string(c.Budget))
	}
}

// giveUp turns a verdict into the end of a job without budget. The job becomes a dead
// letter, unless it failed in the only run that its user allowed.
func (e AttemptEvidence) giveUp(v Verdict, why string) Verdict {
	if v.Budget == BudgetInfra {
		v.DeadLetter = true
		v.Reason = berth.Reason{
			Code: berth.ReasonBudgetSpent, Rule: v.Rule,
			Message: fmt.Sprintf("lost %d attempts to infrastructure without a new checkpoint; last loss: %s",
				e.Losses+1, v.Reason.Message),
			Hint: "ask an operator to check the machines of the lost attempts",
		}
		return v
	}
	if why != "" {
		v.DeadLetter = true
		if strings.ContainsAny(v.Reason.Message, ",;:") {
			v.Reason.Message += "; no attempts left (" + why + ")"
		} else {
			v.Reason.Message += " on " + why + "; no attempts left"
		}
	}
	return v
}

// allDone reports whether every member has done its work: see Exit.Done.
func (e AttemptEvidence) allDone() bool {
	for _, r := range e.Ranks {
		if r.Orphaned || r.Exit == nil || !r.Exit.Done() {
			return false
		}
	}
	return len(e.Ranks) > 0
}

// outputsCutOff reports whether the job has done its work, and outputs are missing because
// a machine was given up before it had stored them.
func (e AttemptEvidence) outputsCutOff(r RankEvidence) bool {
	return e.allDone() && len(e.OutputsLost) > 0 && r.CutOff && !e.outputsRefused()
}

// outputsRefused reports whether one of the missing outputs is one that no machine can
// store. Other missing outputs then do not matter, since a further run would not help.
func (e AttemptEvidence) outputsRefused() bool {
	return slices.ContainsFunc(e.OutputsLost, e.refused)
}

// outputsUnstored reports whether the job has done its work, and all missing outputs
// existed on a machine that could not store them. An output that the program did not write
// is the job's own fault, even if others were not stored.
func (e AttemptEvidence) outputsUnstored(_ RankEvidence) bool {
	return e.allDone() && len(e.OutputsLost) > 0 && !e.outputsRefused() &&
		!slices.ContainsFunc(e.OutputsLost, func(o spec.Output) bool { return !e.unstored(o) })
}

// refused reports whether no machine can store an output. A member without a reported exit
// has refused none.
func (e AttemptEvidence) refused(o spec.Output) bool {
	return slices.ContainsFunc(e.Ranks, func(r RankEvidence) bool {
		return r.Exit != nil && slices.Contains(r.Exit.Refused, o.Name)
	})
}

// unstored reports whether an output existed and could not be stored.
func (e AttemptEvidence) unstored(o spec.Output) bool {
	return slices.ContainsFunc(e.Ranks, func(r RankEvidence) bool {
		return r.Exit != nil && slices.Contains(r.Exit.Unstored, o.Name)
	})
}

// outputNames lists the names of the lost outputs.
func (e AttemptEvidence) outputNames() string {
	names := make([]string, len(e.OutputsLost))
	for i, o := range e.OutputsLost {
		names[i] = o.Name
	}
	return strings.Join(names, ", ")
}

// lostText describes each lost output: whether it was missing or could not be stored.
func (e AttemptEvidence) lostText() string {
	texts := make([]string, len(e.OutputsLost))
	for i, o := range e.OutputsLost {
		switch {
		case e.refused(o):
			texts[i] = fmt.Sprintf("output %s cannot be stored", o.Name)
		case e.unstored(o):
			texts[i] = fmt.Sprintf("output %s was not stored", o.Name)
		default:
			texts[i] = fmt.Sprintf("output %s was not found at %s", o.Name, o.Path)
		}
	}
	return strings.Join(texts, "; ")
}

// firstBad returns the member to blame: an orphan first, then the earliest failure of the
// lowest weight, which caused the other ends. If all members ended well, it is a member
// with an interrupted upload, or else one with outputs that were not stored.
func (e AttemptEvidence) firstBad() RankEvidence {
	return slices.MinFunc(e.Ranks, func(a, b RankEvidence) int {
		if a.weight() != b.weight() {
			return a.weight() - b.weight()
		}
		if a.Exit != nil && b.Exit != nil {
			if c := a.Exit.FinishedAt.Compare(b.Exit.FinishedAt); c != 0 {
				return c
			}
		}
		return a.Rank - b.Rank
	})
}

// weight ranks a member's end as a cause of the attempt's end, the most likely cause first.
// An exit by order or with code 0 is most likely an effect of another member's failure.
func (r RankEvidence) weight() int {
	switch {
	case r.Orphaned:
		return 0
	case r.Exit == nil:
		return 1
	case r.Exit.Cause != CauseExited && r.Exit.Cause != CauseOrdered && r.Exit.Cause != CauseNotStarted:
		return 2
	case r.Exit.Cause == CauseExited && r.Exit.Code != 0:
		return 3
	case r.Exit.Code != 0:
		return 4
	case r.CutOff:
		return 5
	case len(r.Exit.Unstored) > 0 || len(r.Exit.Refused) > 0:
		return 6
	default:
		return 7
	}
}

// died reports whether the member ended together with its machine.
func (r RankEvidence) died() bool {
	return r.Orphaned || r.Exit != nil && r.Exit.Cause == CauseBoot
}

// ruled returns a condition for Rule.when: the first of the user's own rules that contains
// the exit code has this action.
func ruled(action string) func(AttemptEvidence, RankEvidence) bool {
	return func(e AttemptEvidence, r RankEvidence) bool {
		at := slices.IndexFunc(e.Retry.Rules, func(rule spec.RetryRule) bool {
			return rule.ExitCodes.Contains(r.Exit.Code)
		})
		return at >= 0 && e.Retry.Rules[at].Action == action
	}
}

// requeueText returns the number of the next requeue at the time limit, such as "3 of 10".
func (e AttemptEvidence) requeueText() string {
	return fmt.Sprintf("%d of %d", e.Requeues+1, e.Retry.Requeues())
}

// unqueuedText explains why a job with on_time_limit: requeue fails at its time limit; "" for
// other jobs.
func (e AttemptEvidence) unqueuedText() string {
	switch most := e.Retry.Requeues(); {
	case most == 0:
		return ""
	case e.Requeues >= most:
		return fmt.Sprintf(" after %d of %d requeues", e.Requeues, most)
	default:
		return ", and this attempt stored no checkpoint from which a requeue could continue"
	}
}

// earlier returns the number of earlier attempts that one of the rules decided.
func (e AttemptEvidence) earlier(rules ...string) int {
	n := 0
	for _, a := range e.Earlier {
		if slices.Contains(rules, a.Rule) {
			n++
		}
	}
	return n
}

// stalledThere reports whether an earlier attempt stalled at the same step. Two attempts
// without a reported step count as stalled at the same step.
func (e AttemptEvidence) stalledThere(_ RankEvidence) bool {
	return slices.ContainsFunc(e.Earlier, e.stalledAlike)
}

// stalledAlike reports whether an earlier attempt stalled at the step of this one.
func (e AttemptEvidence) stalledAlike(a EarlierAttempt) bool {
	if !slices.Contains(stalls, a.Rule) || (a.LastStep == nil) != (e.LastStep == nil) {
		return false
	}
	return a.LastStep == nil || *a.LastStep == *e.LastStep
}

// stalledIn returns the number of the first attempt that stalled at the same step, or "".
func (e AttemptEvidence) stalledIn() string {
	at := slices.IndexFunc(e.Earlier, e.stalledAlike)
	if at < 0 {
		return ""
	}
	return strconv.Itoa(e.Earlier[at].Attempt)
}

// killsMachines reports whether this is the second machine that died under the job without
// another explanation.
func (e AttemptEvidence) killsMachines(r RankEvidence) bool {
	return r.Suspect && r.died() && slices.ContainsFunc(e.Earlier,
		func(a EarlierAttempt) bool { return a.Died && a.Machine != r.Machine })
}

// hostMissing reports whether two witnesses found that the host of an input does not exist: the
// member's machine and either the control plane or another machine, in this attempt or before.
func (e AttemptEvidence) hostMissing(r RankEvidence) bool {
	if r.Exit.Unresolved == nil {
		return false
	}
	host := r.Exit.Unresolved.Host
	return r.Exit.Unresolved.Confirmed ||
		slices.ContainsFunc(e.Earlier, func(a EarlierAttempt) bool {
			return a.NoHost == host && a.Machine != r.Machine
		}) ||
		slices.ContainsFunc(e.Ranks, func(o RankEvidence) bool {
			return o.Machine != r.Machine && o.Exit != nil && o.Exit.Unresolved != nil && o.Exit.Unresolved.Host == host
		})
}

// deaths renders the machines that died under the job, with their attempts.
func (e AttemptEvidence) deaths(r RankEvidence) string {
	var list []string
	for _, a := range e.Earlier {
		if a.Died {
			list = append(list, fmt.Sprintf("%s in attempt %d", a.Machine, a.Attempt))
		}
	}
	list = append(list, fmt.Sprintf("%s in attempt %d", r.Machine, e.Attempt))
	return strings.Join(list, ", ") +
		fmt.Sprintf("; each within %d min of the start, with no other job there", PoisonMinutes)
}

// checkMachines returns the machines on which the operator's check failed in the attempts
// directly before this one, each once, the oldest first.
func (e AttemptEvidence) checkMachines() (list []string) {
	for _, a := range slices.Backward(e.Earlier) {
		if a.Rule != RuleCheckFailed && a.Rule != RuleCheckFailedAgain {
			break
		}
		if m := string(a.Machine); !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	slices.Reverse(list)
	return list
}

// cleared returns the machines of earlier attempts with a doubtful end, now that the same
// job has succeeded on other machines: the success clears the job and accuses them.
func (e AttemptEvidence) cleared() []berth.MachineID {
	var list []berth.MachineID
	for _, a := range e.Earlier {
		elsewhere := !slices.ContainsFunc(e.Ranks, func(r RankEvidence) bool { return r.Machine == a.Machine })
		if elsewhere && slices.Contains(doubtful, a.Rule) && !slices.Contains(list, a.Machine) {
			list = append(list, a.Machine)
		}
	}
	return list
}

// doubtful lists the rules that leave open whether job or machine is to blame.
var doubtful = []string{"crash", "illegal_access", "gpu_application_error"}

// infraBackoff is the backoff of retries for which infrastructure is to blame.
var infraBackoff = spec.Backoff{
	Initial: spec.Duration(10 * time.Second), Factor: 2, Max: spec.Duration(10 * time.Minute),
}
