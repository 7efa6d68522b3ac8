package failure

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/spec"
)

// MaxInfraLosses is how many attempts infrastructure may spoil since the last
// new verified checkpoint before the job goes to the dead letter.
const MaxInfraLosses = 20

// Budget is which count of runs a failed attempt is charged to.
type Budget string

// The budgets.
const (
	BudgetNone  Budget = "none"  // policy: canceled, preempted, drained
	BudgetUser  Budget = "user"  // retry.max_attempts
	BudgetInfra Budget = "infra" // MaxInfraLosses
)

// RankEvidence is the evidence about one member of an ended attempt.
type RankEvidence struct {
	Rank     int
	Machine  berth.MachineID
	Orphaned bool // its machine fell silent; its end is unknown
	Claimed  bool // the machine took the work
	Suspect  bool // within PoisonMinutes of its start, and with nothing else running there, its machine died
	CutOff   bool // its end is on record, and its machine was given up before it had stored all that is left
	Exit     *Exit
}

// EarlierAttempt is the record of an attempt before the present one.
type EarlierAttempt struct {
	Attempt  int
	Rule     string          // that decided it
	Machine  berth.MachineID // of the member to blame
	LastStep *int64
	Died     bool // its machine died soon after its start, with no other suspect
}

// AttemptEvidence is all that Classify needs. It is read from the rows in one
// transaction.
type AttemptEvidence struct {
	Job        berth.JobID
	State      berth.State
	Attempt    int
	Retry      spec.RetryPolicy
	CancelAt   time.Time // when a cancel was requested; zero if it was not
	Preempted  bool
	DrainedBy  string // a drain took the machine; why
	Failures   int    // user failures before this one
	Losses     int    // infrastructure losses before this one
	OOMGrown   bool   // memory was grown once already
	Checkpoint bool   // a verified checkpoint exists
	LastStep   *int64 // the last step that its progress reported
	// OutputsLost are declared outputs of which nothing was stored.
	OutputsLost []string
	Ranks       []RankEvidence
	Earlier     []EarlierAttempt
}

// Verdict is the decision about a job after an attempt.
type Verdict struct {
	Next       berth.State
	Rule       string // that decided
	Reason     berth.Reason
	Budget     Budget
	Delay      time.Duration     // before the next attempt is eligible
	Machine    berth.MachineID   // of the member that decided
	Avoid      []berth.MachineID // not there, while another machine fits
	Faults     []berth.MachineID // this counts against them
	GrowMemory bool              // ask for 1.5 x the memory
	DeadLetter bool
	ExitCode   *int // of the member that decided, for people
}

// Classify returns the verdict on a job with only ended members, by the first of the
// Rules that matches the evidence. It is pure.
func Classify(e AttemptEvidence) Verdict {
	r := e.firstBad()
	at := slices.IndexFunc(Rules, func(c Rule) bool { return c.matches(e, r) })
	return e.verdict(Rules[at], r) // the last rule matches everything
}

// verdict carries a rule out.
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
	if c.Next == berth.Succeeded {
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

// spent reports whether the budget that a rule charges has no run left, and the text
// for it.
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
		return true, fmt.Sprintf("all %d attempts are spent", runs)
	case BudgetInfra:
		return e.Losses+1 >= MaxInfraLosses, ""
	default:
		panic("unknown budget " + string(c.Budget))
	}
}

// giveUp ends a job whose budget is spent.
func (e AttemptEvidence) giveUp(v Verdict, why string) Verdict {
	if v.Budget == BudgetInfra {
		v.DeadLetter = true
		v.Reason = berth.Reason{
			Code: berth.ReasonBudgetSpent, Rule: v.Rule,
			Message: fmt.Sprintf("lost %d attempts to infrastructure without a new checkpoint; the last: %s",
				e.Losses+1, v.Reason.Message),
			Hint: "an operator should look at the machines it ran on",
		}
		return v
	}
	if why != "" {
		v.DeadLetter = true
		v.Reason.Message += "; " + why
	}
	return v
}

// allDone: every member exited 0. After an order, trainers save and exit 0, so
// then only a progress of step = total counts.
func (e AttemptEvidence) allDone() bool {
	for _, r := range e.Ranks {
		if r.Orphaned || r.Exit == nil || !r.Exit.Done() {
			return false
		}
	}
	return len(e.Ranks) > 0
}

// outputsCutOff: its work is done, and no program is to blame for missing outputs.
func (e AttemptEvidence) outputsCutOff(r RankEvidence) bool {
	return e.allDone() && len(e.OutputsLost) > 0 && r.CutOff && !e.outputsRefused()
}

// outputsRefused: an output is missing that no machine can store. Other missing
// outputs then do not matter, since a further run would not help.
func (e AttemptEvidence) outputsRefused() bool {
	return slices.ContainsFunc(e.OutputsLost, func(name string) bool {
		return slices.ContainsFunc(e.Ranks, func(r RankEvidence) bool { return slices.Contains(r.Exit.Refused, name) })
	})
}

// outputsUnstored: its work is done, and all missing outputs existed. An output that
// the program did not write is its user's fault, even if others were not stored.
func (e AttemptEvidence) outputsUnstored(_ RankEvidence) bool {
	return e.allDone() && len(e.OutputsLost) > 0 && !e.outputsRefused() &&
		!slices.ContainsFunc(e.OutputsLost, func(name string) bool {
			return !slices.ContainsFunc(e.Ranks,
				func(r RankEvidence) bool { return slices.Contains(r.Exit.Unstored, name) })
		})
}

// firstBad returns the member to blame: an orphan first, then the earliest failure,
// which caused the other ends. If all members ended well, it is a member with an
// interrupted upload, or else one with outputs that were not stored.
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

// died: the member's machine ended, and took it along.
func (r RankEvidence) died() bool {
	return r.Orphaned || r.Exit != nil && r.Exit.Cause == CauseBoot
}

// ruled matches the exit codes that the user's own rules send this way.
func ruled(action string) func(AttemptEvidence, RankEvidence) bool {
	return func(e AttemptEvidence, r RankEvidence) bool {
		at := slices.IndexFunc(e.Retry.Rules, func(rule spec.RetryRule) bool {
			return rule.ExitCodes.Contains(r.Exit.Code)
		})
		return at >= 0 && e.Retry.Rules[at].Action == action
	}
}

// earlier counts the earlier attempts that one of the rules decided.
func (e AttemptEvidence) earlier(rules ...string) int {
	n := 0
	for _, a := range e.Earlier {
		if slices.Contains(rules, a.Rule) {
			n++
		}
	}
	return n
}

// stalledThere: an earlier attempt stalled at the same step. A job without reported
// steps counts as one that stalls at the same step.
func (e AttemptEvidence) stalledThere(_ RankEvidence) bool {
	return slices.ContainsFunc(e.Earlier, func(a EarlierAttempt) bool {
		if !slices.Contains(stalls, a.Rule) || (a.LastStep == nil) != (e.LastStep == nil) {
			return false
		}
		return a.LastStep == nil || *a.LastStep == *e.LastStep
	})
}

// killsMachines: two machines died under it, and nothing else explains it.
func (e AttemptEvidence) killsMachines(r RankEvidence) bool {
	return r.Suspect && r.died() && slices.ContainsFunc(e.Earlier,
		func(a EarlierAttempt) bool { return a.Died && a.Machine != r.Machine })
}

// deaths lists the machines that died under it.
func (e AttemptEvidence) deaths(r RankEvidence) string {
	var list []string
	for _, a := range e.Earlier {
		if a.Died {
			list = append(list, fmt.Sprintf("%s in attempt %d", a.Machine, a.Attempt))
		}
	}
	list = append(list, fmt.Sprintf("%s in attempt %d", r.Machine, e.Attempt))
	return strings.Join(list, ", ") +
		fmt.Sprintf("; each within %d min of its start, with nothing else running there", PoisonMinutes)
}

// cleared are the machines where an ambiguous end is explained, now that the
// same job has succeeded elsewhere.
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

// doubtful are the rules that leave open whether job or machine is to blame.
var doubtful = []string{"crash", "illegal_access", "gpu_application_error"}

// infraBackoff spaces retries that the machine is to blame for.
var infraBackoff = spec.Backoff{
	Initial: spec.Duration(10 * time.Second), Factor: 2, Max: spec.Duration(10 * time.Minute),
}
