package failure

import (
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/spec"
)

// Evidence is a kind of evidence about the end of an attempt. Kinds are examined in
// the order of their values: an exit code means nothing while the machine is the
// better explanation.
type Evidence int

// The kinds of evidence, in order.
const (
	EvidenceIntent      Evidence = iota // an end that Berth ordered itself
	EvidenceMachine                     // the machine, its engine, its boot
	EvidenceDevice                      // its GPUs
	EvidenceMemory                      // the kernel killed a process for memory
	EvidencePreparation                 // a failure before the process began
	EvidenceExit                        // exit codes that name their cause
	EvidenceLog                         // the last lines of the log
	EvidenceRest                        // exit codes that only say that it failed
)

// String names the kind, for people.
func (e Evidence) String() string {
	switch e {
	case EvidenceIntent:
		return "our own intent"
	case EvidenceMachine:
		return "machine, engine, boot"
	case EvidenceDevice:
		return "GPU"
	case EvidenceMemory:
		return "memory"
	case EvidencePreparation:
		return "preparation"
	case EvidenceExit:
		return "exit code that names a cause"
	case EvidenceLog:
		return "last lines of the log"
	case EvidenceRest:
		return "any other exit code"
	default:
		panic("unknown evidence " + strconv.Itoa(int(e)))
	}
}

// Class is the sort of a failure.
type Class string

// The classes.
const (
	ClassDone      Class = "done"      // no failure
	ClassPolicy    Class = "policy"    // we ended it ourselves
	ClassInfra     Class = "infra"     // the cluster failed the job
	ClassTransient Class = "transient" // a service failed it, and may be back
	ClassPermanent Class = "permanent" // trying again cannot help
	ClassUser      Class = "user"      // the job failed
	ClassAmbiguous Class = "ambiguous" // the job or the machine: a run on another machine decides
	ClassHang      Class = "hang"      // it stood still
	ClassPoison    Class = "poison"    // machines die of it
	ClassUnknown   Class = "unknown"   // no rule knows it; a human should look
)

// Blame is who has to do something about a failure.
type Blame string

// Who is to blame.
const (
	BlameNobody  Blame = "nobody"
	BlamePolicy  Blame = "policy"
	BlameInfra   Blame = "infrastructure"
	BlameUser    Blame = "user"
	BlameUnknown Blame = "unknown"
)

// Wait is how long a job pauses before its next attempt.
type Wait string

// The pauses.
const (
	WaitNone  Wait = "none"
	WaitRetry Wait = "retry.backoff" // the job's own; 10 s x 2, at most 10 min, unless it says otherwise
	// WaitLoss is nothing after the first loss, since another machine is ready,
	// and 10 s x 2, at most 10 min, from the second on.
	WaitLoss  Wait = "from the 2nd loss"
	WaitInfra Wait = "always" // 10 s x 2, at most 10 min, after the first one too
)

// Rule is one row of the failure classification: the evidence that it knows a
// failure by, and all that follows. Among the rules the first that matches
// decides.
type Rule struct {
	Name     string // stable: outcomes carry it
	Evidence Evidence
	Signal   string         // the evidence, for people
	Causes   []ExitCause    // the agent's word is one of these; nil: any, or none
	Codes    spec.ExitCodes // and the exit code one of these; "": any
	Sign     LogSign        // and this stands in its last lines; "": anything
	when     func(AttemptEvidence, RankEvidence) bool

	Class  Class
	Reason berth.ReasonCode
	Says   string // the message; names in braces are filled in, see reason
	Hint   string // "": what the exit code says

	Next       berth.State
	Blame      Blame
	Budget     Budget // charged for a retry
	Tries      int    // with the user's budget: least number of runs, even with a lower max_attempts
	Wait       Wait
	Elsewhere  bool // not on the machine of the member to blame, while another fits
	GrowMemory bool // the next attempt gets half as much memory again
	DeadLetter bool // set aside with its evidence, for a human
	Fault      bool // it counts against the machine; see LemonFaults
}

// matches reports whether the rule knows how the attempt ended, r being the
// member to blame.
func (c Rule) matches(e AttemptEvidence, r RankEvidence) bool {
	if c.Causes != nil && (r.Exit == nil || !slices.Contains(c.Causes, r.Exit.Cause)) {
		return false
	}
	if c.Codes != "" && !c.Codes.Contains(r.Exit.Code) {
		return false
	}
	if c.Sign != "" && c.Sign != r.Exit.Sign {
		return false
	}
	return c.when == nil || c.when(e, r)
}

// reason fills in the rule's message.
func (c Rule) reason(e AttemptEvidence, r RankEvidence) berth.Reason {
	if c.Reason == "" {
		return berth.Reason{}
	}
	var x Exit
	if r.Exit != nil {
		x = *r.Exit
	}
	hint := c.Hint
	switch hint {
	case none:
		hint = ""
	case "":
		if hint = exitHints[x.Code]; hint == "" {
			hint = "see the last lines of its log"
		}
	}
	says := strings.NewReplacer(
		"{machine}", string(r.Machine), "{code}", strconv.Itoa(x.Code), "{exit}", x.Message, "{drain}", e.DrainedBy,
		"{xid}", strconv.FormatUint(x.Xid, 10), "{deaths}", e.deaths(r), "{outputs}", strings.Join(e.OutputsLost, ", "),
		"{quota}", x.OverQuota,
	).Replace(c.Says)
	return berth.Reason{Code: c.Reason, Rule: c.Name, Message: says, Hint: hint}
}
