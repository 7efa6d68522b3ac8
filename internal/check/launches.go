package check

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/db/history"
)

const (
	// launchSlack is the longest time for which the request of a launch may wait for the lock of the machine's
	// last one: the time of a row is the start of its transaction.
	launchSlack = 10 * time.Second
	// endProof is the least time between two reads of an ended instance.
	endProof = time.Minute
)

// settledLaunch reports whether no instance of the launch can exist.
func settledLaunch(l history.Launch) bool { return l.State == "gone" || l.State == "failed" }

// launchesAreSingle proves invariant 18 for the launches of one machine name. Only the last one may lack its end, and
// each is requested after the end of the one before. Tokens, which clouds bind to one instance, come from the
// machine and the number, so two launches never share an instance and one launch never has two.
func launchesAreSingle(c *launchCase) {
	for i, l := range c.l.Launches {
		if i+1 < len(c.l.Launches) {
			next := c.l.Launches[i+1]
			switch {
			case !settledLaunch(l):
				c.breach(rows(l, next), "launch %d is %s, and launch %d was requested after it", l.N, l.State, next.N)
			case next.N <= l.N:
				c.breach(rows(l, next), "launch %d follows launch %d", next.N, l.N)
			case l.StateAt.After(next.CreatedAt.Add(launchSlack)) && l.Incarnation == next.Incarnation:
				c.breach(rows(l, next), "launch %d was requested at %s, before launch %d ended at %s", next.N,
					next.CreatedAt, l.N, l.StateAt)
			}
		}
		if want := c.token(l); want != "" && l.Idempotency != want {
			c.breach(rows(l), "launch %d has the token %s, and its machine and number have %s", l.N, l.Idempotency,
				want)
		}
		if l.Instance == "" || settledLaunch(l) {
			continue
		}
		key := [2]string{l.Provider, l.Instance}
		if other, taken := c.v.instances[key]; taken {
			c.breach(rows(l), "instance %s of provider %s belongs to machine %s too", l.Instance, l.Provider, other)
		}
		c.v.instances[key] = l.Machine
	}
}

// token returns the idempotency token that a launch must have, or "" for an adopted one: its instance brought the
// token along, which may be that of an incarnation that the database has lost.
func (c *launchCase) token(l history.Launch) string {
	if l.Incarnation == 0 {
		return ""
	}
	text := fmt.Sprintf("%s\x00%d\x00%s\x00%d", c.v.clusterRow.ID, l.Incarnation, l.Machine, l.N)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// sendsComeFirst proves invariant 18 for the way of one launch: each instance comes from a send that was recorded
// with its request, except where a restore has lost the record.
func sendsComeFirst(c *launchCase) {
	for _, l := range c.l.Launches {
		lost := l.Incarnation < c.v.clusterRow.Incarnation
		switch {
		case l.Sends < 0 || l.Refusals < 0 || l.Refusals > l.Sends:
			c.breach(rows(l), "launch %d has %d sends and %d refusals", l.N, l.Sends, l.Refusals)
		case l.Sends > 0 && (l.RequestHash == "" || l.JoinToken == "" || l.SentAt == nil || l.LastSentAt == nil):
			c.breach(rows(l), "launch %d was sent, and its row lacks the request or the time", l.N)
		case l.Sends > 0 && l.LastSentAt.Before(*l.SentAt):
			c.breach(rows(l), "launch %d was sent last at %s, before it was sent first at %s", l.N, l.LastSentAt,
				l.SentAt)
		case l.Sends == 0 && l.Instance != "" && !lost:
			c.breach(rows(l), "launch %d was never sent, and has instance %s", l.N, l.Instance)
		case l.Sends > 0 && l.State == "requested":
			c.breach(rows(l), "launch %d is requested, and was sent %d times", l.N, l.Sends)
		}
	}
}

// endsAreProved proves invariant 18 for the end of launches. Gone is an instance that was read as ended twice. A
// launch has failed without an instance if each send was refused, or if a refusal for lack of capacity shows that no
// earlier send took effect; otherwise a person has confirmed that none exists. The machine of the last launch is
// retired then. A restored database may lack the retirement, or the join of a later launch of the name.
func endsAreProved(c *launchCase) {
	for i, l := range c.l.Launches {
		confirmed := strings.HasPrefix(l.Reason, "confirmed absent by ")
		switch {
		case l.State == "gone" && (l.Instance == "" || l.EndedFirst == nil || l.EndedLast == nil):
			c.breach(rows(l), "launch %d is gone, and no read has shown the end of its instance", l.N)
		case l.State == "gone" && l.EndedLast.Sub(*l.EndedFirst) < endProof:
			c.breach(rows(l), "launch %d is gone by reads that are %s apart", l.N, l.EndedLast.Sub(*l.EndedFirst))
		case l.State == "failed" && l.Instance != "" && !confirmed:
			c.breach(rows(l), "launch %d has failed, and its instance is %s", l.N, l.Instance)
		case l.State == "failed" && l.Sends > l.Refusals && l.ErrorKind != "capacity" && !confirmed:
			c.breach(rows(l), "launch %d has failed, and %d of %d sends have no answer", l.N, l.Sends-l.Refusals,
				l.Sends)
		case settledLaunch(l) && i == len(c.l.Launches)-1 && l.Incarnation == c.v.clusterRow.Incarnation &&
			c.ownsMachine(l) && c.l.State != "retired":
			c.breach(rows(l, c.l.State), "launch %d is %s, and its machine is %s", l.N, l.State, c.l.State)
		case (l.State == "serving" || l.State == "draining") && c.l.State == "":
			c.breach(rows(l), "launch %d is %s, and there is no such machine", l.N, l.State)
		case l.Terminates > 0 && l.JoinedAt != nil && l.StopAt == nil && !endedByItself(l):
			c.breach(rows(l), "launch %d was terminated, and nobody requested the end of its machine: %s", l.N,
				l.Reason)
		}
	}
}

// ownsMachine reports whether the row of the machine is the one that the instance of the launch has made. An admin's
// token may have admitted another host under the name.
func (c *launchCase) ownsMachine(l history.Launch) bool {
	return l.JoinedAt != nil && l.JoinToken != "" && c.l.Token == l.JoinToken
}

// endedByItself reports whether an instance was terminated for another reason than a request: its machine was retired
// before, the cloud has taken the instance back, or the machine joined when it was already too late.
func endedByItself(l history.Launch) bool {
	return slices.ContainsFunc([]string{
		"the machine was retired", "the cloud ended the instance", "the instance did not join", "confirmed absent by ",
	}, func(reason string) bool { return strings.HasPrefix(l.Reason, reason) })
}

// Longest times for which a refusal of a cloud closes a scope, and for which a probe may lack its time.
const (
	offeringClosed = time.Hour
	quotaClosed    = 30 * time.Minute
)

// refusalsPass proves invariant 33. A refusal for capacity lasts an hour at most, and the scope is tried by one
// launch; a scope that is closed for good is opened by other settings, a success or a person.
func refusalsPass(c *clusterCase) {
	for _, b := range c.c.Breakers {
		most := quotaClosed
		if b.Scope == "offering" || b.Scope == "join" || b.Scope == "throttle" {
			most = offeringClosed
		}
		switch {
		case b.Key == "" || !strings.Contains(b.Key, "/") && b.Scope != "provider":
			c.breach(rows(b), "a breaker of scope %s has the key %q", b.Scope, b.Key)
		case b.Step < 1 && !b.Unset:
			c.breach(rows(b), "breaker %s has refused %d times", b.Key, b.Step)
		case b.Unset && b.Probe != "":
			c.breach(rows(b), "breaker %s has refused nothing, and launch %s tries it", b.Key, b.Probe)
		case b.Until != nil && b.Until.Sub(b.At) > most+c.v.o.Skew:
			c.breach(rows(b), "breaker %s is closed for %s after a refusal", b.Key, b.Until.Sub(b.At))
		case b.Until == nil && !b.Unset && b.Scope != "provider" && b.Scope != "pool":
			c.breach(rows(b), "scope %s of %s is closed for good", b.Scope, b.Key)
		case b.Scope == "quota" && !b.Unset && len(b.Covers) == 0:
			c.breach(rows(b), "quota %s has refused no offer", b.Key)
		case (b.Probe == "") != (b.ProbeAt == nil):
			c.breach(rows(b), "breaker %s is tried by launch %q, and the time is %v", b.Key, b.Probe, b.ProbeAt)
		}
	}
}
