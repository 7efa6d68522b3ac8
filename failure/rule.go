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
	EvidencePreparation                 // a failure before the process started
	EvidenceExit                        // exit codes that name their cause
	EvidenceLog                         // the last lines of the log
	EvidenceRest                        // exit codes that name no cause
)

// String returns the title of the kind in the reference.
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

// Class is the class of a failure.
type Class string

// The classes.
const (
	ClassDone      Class = "done"      // no failure
	ClassPolicy    Class = "policy"    // Berth ended the job by an order
	ClassInfra     Class = "infra"     // the cluster failed the job
	ClassTransient Class = "transient" // a service failed, and may recover
	ClassPermanent Class = "permanent" // a further run cannot help
	ClassUser      Class = "user"      // the job failed
	ClassAmbiguous Class = "ambiguous" // the job or the machine: a run on another machine decides
	ClassHang      Class = "hang"      // the job made no progress
	ClassPoison    Class = "poison"    // the job kills machines
	ClassUnknown   Class = "unknown"   // no rule matches; an operator should look
)

// Blame is the party that has to act on a failure.
type Blame string

// The parties to blame.
const (
	BlameNobody  Blame = "nobody"
	BlamePolicy  Blame = "policy"
	BlameInfra   Blame = "infrastructure"
	BlameUser    Blame = "user"
	BlameUnknown Blame = "unknown"
)

// Wait selects the wait before the next attempt of a job.
type Wait string

// The waits.
const (
	WaitNone  Wait = "none"
	WaitRetry Wait = "retry.backoff" // the job's own; default 10 s, doubled, at most 10 min
	// WaitLoss is no wait after the first loss, since another machine is ready,
	// and 10 s, doubled, at most 10 min, from the second loss on.
	WaitLoss  Wait = "from the 2nd loss"
	WaitInfra Wait = "always" // 10 s, doubled, at most 10 min, from the first failure on
)

// Rule is one row of the failure classification: the evidence that identifies a failure,
// and the consequences. The first matching rule of Rules decides.
type Rule struct {
	Name     string // stable: stored with outcomes
	Evidence Evidence
	Signal   string                                   // description of the evidence in the reference
	Causes   []ExitCause                              // allowed causes; nil: any cause, or no exit at all
	Codes    spec.ExitCodes                           // allowed exit codes, only with Causes; "": any
	Sign     LogSign                                  // required sign in the log, only with Causes; "": any
	when     func(AttemptEvidence, RankEvidence) bool // further condition; nil: none

	Class  Class
	Reason berth.ReasonCode
	Says   string // the message, with placeholders in braces; see reason
	Hint   string // "": the hint for the exit code; none: no hint

	Next       berth.State
	Blame      Blame
	Budget     Budget // charged for a retry
	Tries      int    // with BudgetUser: least number of runs, even with a lower max_attempts
	Wait       Wait
	Elsewhere  bool // avoid the machine of the member to blame while another machine fits
	GrowMemory bool // the next attempt gets half as much memory again
	DeadLetter bool // set aside with its evidence, for an operator
	Fault      bool // the failure counts against the machine; see LemonFaults
}

// matches reports whether the rule matches the end of the attempt; r is the member to
// blame.
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

// reason returns the rule's reason, with the placeholders of Says filled in. A rule without
// a hint of its own gives the hint for the exit code.
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
			hint = "see the end of the log: berth logs JOB"
		}
	}
	if user := x.userHint(); user != "" {
		hint = strings.TrimPrefix(hint+"; ", "; ") + user
	}
	says := strings.NewReplacer(
		"{machine}", string(r.Machine), "{code}", strconv.Itoa(x.Code), "{exit}", x.Message, "{drain}", e.DrainedBy,
		"{xid}", strconv.FormatUint(x.Xid, 10), "{deaths}", e.deaths(r), "{outputs}", e.outputNames(),
		"{requeue}", e.requeueText(), "{unqueued}", e.unqueuedText(),
		"{lost}", e.lostText(), "{stalled}", e.stalledIn(), "{quota}", x.OverQuota,
		"{odd}", e.oddText(), "{checks}", strings.Join(append(e.checkMachines(), string(r.Machine)), ", "),
	).Replace(c.Says)
	return berth.Reason{Code: c.Reason, Rule: c.Name, Message: says, Hint: hint}
}

// imageUser is the advice about an image that works only with its own user, such as root.
const imageUser = "or set user: image in the job file, if the tenant may (to allow it: " +
	"berth quota set TENANT --any-user=true)"

// userHint returns the advice about the user of a container that did not run as the user of its image, "" if
// nothing shows that the user lacked a right.
func (x Exit) userHint() string {
	whose := "the user of its image"
	if x.ImageRoot {
		whose = "root, the user of its image"
	}
	ran := "the container ran as user " + x.User + " and not as " + whose + ": "
	switch {
	case x.User == "":
		return ""
	case x.Cause == CauseBadCommand, x.Cause == CauseExited && x.Code == notExecutable:
		return ran + "the image must let every user read and execute its programs, " + imageUser
	case x.Cause == CauseExited && x.Code != 0 && x.Sign == SignPermission:
		return ran + "its log shows that it lacked a right; it may write to /workspace, HOME, /tmp and its outputs, " +
			imageUser
	}
	return ""
}
