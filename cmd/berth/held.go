package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"berth"
	"berth/spec"
	"berth/wire"
)

// addSessionFlags adds the flags that select the member of a session, and give its reason.
func addSessionFlags(f *pflag.FlagSet, req *spec.NewSession) {
	f.IntVar(&req.Member, "member", 0, "gang member, from 0")
	f.IntVar(&req.Attempt, "attempt", 0, "attempt, from 1: the present one, or one that hold_on_failure holds")
	f.StringVar(&req.Reason, "reason", "", "reason, recorded with the session")
}

// checkSession returns an error if a flag of addSessionFlags is out of range.
func checkSession(req spec.NewSession) error {
	switch {
	case req.Member < 0:
		return usagef("--member %d is out of range; allowed: 0 or more", req.Member)
	case req.Attempt < 0:
		return usagef("--attempt %d is out of range; allowed: 1 or more", req.Attempt)
	}
	return nil
}

// addHeld adds the failed attempts that are held: until when, what the hold takes, and how to enter it. A
// debug job names the attempt that it holds.
func addHeld(s *sheet, j wire.Job, now time.Time) {
	label := "held"
	for _, h := range j.HeldAttempts {
		// A hold that has ended takes no capacity any longer, and cannot be entered.
		if h.Status.Terminal() {
			continue
		}
		text := fmt.Sprintf("attempt %d, member %d on %s, %s, by job %s", h.Attempt, h.Member, h.Machine,
			heldUntil(h, now), h.Job)
		s.add(label, text)
		// One label for the whole list: the lines below it continue it.
		label = ""
		if h.Status == berth.Running {
			s.add(label, fmt.Sprintf("enter: berth exec %s --attempt %d%s --tty -- sh", handle(j), h.Attempt,
				memberFlag(h.Member)))
			s.add(label, "end: berth release "+handle(j))
		}
	}
	if h := j.HoldOf; h != nil {
		s.add("holds", fmt.Sprintf("the files of attempt %d, member %d, of job %s, %s", h.Attempt, h.Member, h.Job,
			heldUntil(*h, now)))
	}
}

// heldUntil describes the end of a hold.
func heldUntil(h wire.HeldAttempt, now time.Time) string {
	if h.Until == nil {
		return fmt.Sprintf("for %s from its start (%s)", span(time.Duration(h.Seconds)*time.Second), h.Status)
	}
	return "until " + stamp(h.Until, now)
}

// memberFlag returns the flag that selects a member, "" for the first one.
func memberFlag(member int) string {
	if member == 0 {
		return ""
	}
	return fmt.Sprintf(" --member %d", member)
}
