package cloud

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth"
)

// LaunchState is the state of a launch. docs/adr/0064-launches-are-rows.md has the table of states.
type LaunchState string

// The states of a launch.
const (
	LaunchRequested   LaunchState = "requested"   // committed, never sent
	LaunchSent        LaunchState = "sent"        // a request was or will be sent
	LaunchUnresolved  LaunchState = "unresolved"  // an instance may exist, and the cloud has not shown it
	LaunchRunning     LaunchState = "running"     // the instance was seen; its agent has not joined
	LaunchServing     LaunchState = "serving"     // the agent joined
	LaunchDraining    LaunchState = "draining"    // the machine gets no new work, and will be terminated
	LaunchTerminating LaunchState = "terminating" // the end of the instance is requested, and not proven
	LaunchGone        LaunchState = "gone"        // the instance was seen to be gone
	LaunchFailed      LaunchState = "failed"      // it is certain that no instance exists
)

// Settled reports whether no instance of the launch can exist, so that the machine may be launched again.
func (s LaunchState) Settled() bool { return s == LaunchGone || s == LaunchFailed }

// Record is a launch as its row holds it. The JSON names are the columns of the table launches; a
// zero time is null.
type Record struct {
	Machine  berth.MachineID `json:"machine"`
	N        int             `json:"n"`
	State    LaunchState     `json:"state"`
	Pool     string          `json:"pool"`
	Provider string          `json:"provider"`
	Offering                 // columns region, zone, type, market
	Price    float64         `json:"price"`            // US dollars an hour; 0: unknown
	Shape    Shape           `json:"shape"`            // of the offer at the request
	Tenant   berth.TenantID  `json:"tenant,omitempty"` // that pays; empty: an admin requested the launch by hand

	Incarnation int64  `json:"incarnation"` // of the database at the request
	Token       string `json:"token"`
	Hash        string `json:"request_hash"` // of the request; empty: never sent
	KeyID       string `json:"request_key"`  // of the key that the stored request is sealed with
	JoinToken   string `json:"join_token"`   // id of the token in the request

	Sends      int       `json:"sends"`
	Refusals   int       `json:"refusals"` // sends that were answered with a refusal
	SentAt     time.Time `json:"sent_at,omitzero"`
	LastSentAt time.Time `json:"last_sent_at,omitzero"`
	DoubtAt    time.Time `json:"doubt_at,omitzero"`    // earlier send of unknown outcome at the last send
	AnsweredAt time.Time `json:"answered_at,omitzero"` // of the instance, or of the last refusal before

	Instance      string    `json:"instance"` // the cloud's id
	InstanceState State     `json:"instance_state"`
	SeenAt        time.Time `json:"seen_at,omitzero"`
	JoinedAt      time.Time `json:"joined_at,omitzero"`

	StopAt       time.Time `json:"stop_at,omitzero"`       // when the end was requested
	StopDeadline time.Time `json:"stop_deadline,omitzero"` // of the work on the machine; zero: none
	StopReason   string    `json:"stop_reason"`
	StopActor    string    `json:"stop_actor"`
	// StopIncarnation is that of the database at the last request of the end; 0: not requested, or by a version that
	// did not store it.
	StopIncarnation int64 `json:"stop_incarnation"`

	Terminates  int       `json:"terminates"` // calls that requested the end
	TerminateAt time.Time `json:"terminate_at,omitzero"`
	EndedFirst  time.Time `json:"ended_first_at,omitzero"` // first read of Terminated
	EndedLast   time.Time `json:"ended_last_at,omitzero"`

	ErrorKind Kind   `json:"error_kind"` // of the last failed call; Unsent: no send has reached the cloud
	Error     string `json:"error"`
	Reason    string `json:"reason"` // for the state

	Actor     string    `json:"actor"`
	CreatedAt time.Time `json:"created_at"`
	StateAt   time.Time `json:"state_at"`
	DueAt     time.Time `json:"due_at,omitzero"` // of the next step

	// Cluster and Current are the database's identity and its incarnation now. MachineState is the state of
	// the launch's machine, and DrainDeadline the deadline of the work on it; empty and zero: it has not
	// joined. None is a column; all are read under the row's lock.
	Cluster       string             `json:"cluster"`
	Current       int64              `json:"current"`
	MachineState  berth.MachineState `json:"machine_state,omitempty"`
	DrainDeadline time.Time          `json:"drain_deadline,omitzero"`

	// Unlisted reports that a backup of the database was restored, and that the instances of the provider were not
	// listed since. It is no column.
	Unlisted bool `json:"unlisted,omitempty"`

	// OtherHost reports that the launch's machine joined, and that its name has since joined with another
	// token, perhaps on another host: the end of the instance then proves nothing about the machine.
	OtherHost bool `json:"other_host,omitempty"`
}

// Request is a request for launches, by an admin or by the scaler: the offering, its price, and the pool of
// the machines.
type Request struct {
	Pool     string
	Provider string // the name of the provider in the configuration
	Offering
	Price float64 // US dollars an hour; 0: unknown
	// Tenant is the tenant for whose jobs the scaler launches, and whose burst policy must permit the launch.
	// Empty: an admin requests the launch, which no policy bounds.
	Tenant berth.TenantID
	// Estimate is the time for which the machine is expected to live. Money is reserved for an hour at least.
	Estimate time.Duration
}

// LeastReserved is the least time for which a launch reserves money.
const LeastReserved = time.Hour

// Reserve returns the amount that each launch of the request reserves, in micro-dollars.
func (r Request) Reserve() int64 {
	return int64(math.Ceil(r.Price * 1e6 * max(r.Estimate, LeastReserved).Hours()))
}

// Ref names a launch.
type Ref struct {
	Machine berth.MachineID
	N       int
}

// Ref returns the name of the launch.
func (r Record) Ref() Ref { return Ref{r.Machine, r.N} }

// InDoubt reports whether a send may have created an instance that was never seen.
func (r Record) InDoubt() bool { return r.doubts() > 0 }

// doubts returns the number of sends of unknown outcome. Calls that were throttled or not made are not among them: such
// a call must not take the place of a repeat.
func (r Record) doubts() int { return r.Sends - r.Refusals }

// Uncreated reports whether it is certain that no send of a launch has created an instance: none was made, or each was
// answered with a refusal. A restored database may lack sends.
func (r Record) Uncreated() bool {
	return (r.State == LaunchRequested || r.State == LaunchSent) && !r.InDoubt() && !r.Restored()
}

// ScalerActor is the actor of the leader's scaler, in launches and in requests to end them.
const ScalerActor = "scaler"

// stops reports whether the machine is to end. A restored database may lack jobs that were placed after the
// scaler has found the machine empty, so the scaler's own request to end it needs an admin's then.
func (r Record) stops() bool {
	return !r.StopAt.IsZero() && !(r.Restored() && r.StopActor == ScalerActor)
}

// Restored reports whether the launch is older than the database's present incarnation: calls
// that a lost tail of the database recorded are unknown.
func (r Record) Restored() bool { return r.Incarnation != r.Current }

// KeepsRequest reports whether the stored request may still be sent.
func (r Record) KeepsRequest() bool { return r.State == LaunchRequested || r.State == LaunchSent }

// Admits reports whether the instance may still join with the launch's join token.
func (r Record) Admits() bool {
	return r.State != LaunchTerminating && !r.State.Settled()
}

// Errors of calls that contradict the row of the launch.
var (
	// ErrLate reports an instance of a settled launch. The row does not change; the instance must be
	// terminated.
	ErrLate = errors.New("the instance belongs to a settled launch")
	// ErrSecond reports an instance of a launch whose row has another instance.
	ErrSecond = errors.New("a second instance for one launch")
	// ErrNotSent reports a send where Next decides otherwise, or that a breaker forbids.
	ErrNotSent = errors.New("the launch is not to be sent now")
	// ErrTried reports a first send that waits for the answers of other launches of the offering.
	ErrTried = errors.New("other launches of the offering have no answer yet")
)

// PauseError reports a call that waits, since the cloud throttles such calls.
type PauseError struct{ Wait time.Duration }

// Error returns the wait.
func (e *PauseError) Error() string {
	return fmt.Sprintf("the cloud throttles such calls: wait %s", e.Wait)
}

// move changes the state with its reason.
func (r Record) move(to LaunchState, reason string) Record {
	r.State, r.Reason = to, reason
	return r
}

// Take records that a step was carried out: the record changes to the state of the step, if it names
// one. ok is false, and nothing changes, if Next now decides otherwise.
func (r Record) Take(s Step, l Limits, now time.Time) (Record, bool) {
	if s.To == "" {
		return r, false
	}
	if again := Next(r, l, now); again.Act != s.Act || again.To != s.To {
		return r, false
	}
	return r.move(s.To, s.Reason), true
}

// Launch returns the launch for a call of Find: without the bootstrap and the settings, which only the
// stored request has.
func (r Record) Launch() Launch {
	return Launch{Token: r.Token, Cluster: r.Cluster, Pool: r.Pool, Machine: r.Machine, N: r.N, Offering: r.Offering}
}

// At returns the instance of the launch for a call of Terminate.
func (r Record) At() Instance {
	return Instance{ID: r.Instance, Token: r.Token, Cluster: r.Cluster, Pool: r.Pool, Machine: r.Machine, N: r.N,
		State: r.InstanceState, Offering: r.Offering}
}

// Send records that the request is about to be sent. The first send fixes hash, key and join token.
// It fails with ErrNotSent unless Next asks for a send.
func (r Record) Send(hash, keyID, joinToken string, l Limits, now time.Time) (Record, error) {
	if s := Next(r, l, now); s.Act != ActSend {
		return r, ErrNotSent
	}
	if r.Hash == "" {
		r.Hash, r.KeyID, r.JoinToken, r.SentAt = hash, keyID, joinToken, now
	}
	if r.Hash != hash {
		return r, fmt.Errorf("launch %d of machine %s: the request has hash %.12s and was sent with %.12s",
			r.N, r.Machine, hash, r.Hash)
	}
	if r.State != LaunchSent {
		r = r.move(LaunchSent, "")
	}
	if r.InDoubt() {
		r.DoubtAt = r.LastSentAt
	}
	if r.ErrorKind == Unsent { // this call may reach the cloud
		r.ErrorKind, r.Error = "", ""
	}
	r.Sends++
	r.LastSentAt = now
	return r, nil
}

// Withheld records that the launch is not sent, since at this time a breaker forbids it: it is open, or another launch
// tries its part of the cloud. A launch that may have an instance stays as it is.
func (r Record) Withheld(b Breaker, now time.Time) Record {
	if !r.Uncreated() {
		return r
	}
	what := "not sent"
	if r.Sends > 0 {
		what = "not sent again"
	}
	ends := b.Ends()
	if !b.Open(now) {
		ends = "one launch at a time tries it"
	}
	return r.move(LaunchFailed, fmt.Sprintf("%s, since no such launch is sent now (closed: %s, %s): %s", what,
		b.What(), ends, b.Reason))
}

// LeastUnserved is the age of a launch of the scaler from which it fails if no replica can send it, see Unserved.
const LeastUnserved = 15 * time.Minute

// Unserved records that a replica cannot send the launch, at an age: the replica has no such provider, or no secret
// keys. Another one may have them. But a launch that none has sent for LeastUnserved fails, so that its job can have
// another offer; it is certain that nothing was sent. A launch of an admin waits until the admin ends it.
func (r Record) Unserved(why string, age time.Duration) Record {
	if r.State != LaunchRequested || r.Sends > 0 || r.Restored() || r.Actor != ScalerActor || age < LeastUnserved {
		return r
	}
	return r.move(LaunchFailed, fmt.Sprintf("not sent for %s: %s", age.Truncate(time.Minute), why))
}

// Refused records that the send of that time failed. An error of kind Unknown leaves the send in
// doubt, as does Mismatch: another request with the token may have created an instance. Of the other
// kinds only Capacity says something about earlier sends: the cloud answers a repeat of a request that
// took effect with its instance, but checks credentials, quotas and the form of a request before that.
func (r Record) Refused(e *Error, sentAt, now time.Time) Record {
	if r.State != LaunchSent {
		return r // another send has its answer
	}
	called := r.ErrorKind != "" && r.ErrorKind != Unsent
	r.ErrorKind, r.Error = e.Kind, e.Error()
	if e.Kind == Unknown || e.Kind == Mismatch {
		return r
	}
	r.Refusals++
	r.AnsweredAt = now
	if e.Kind == Throttle {
		if e.Unsent && !called && !r.InDoubt() {
			r.ErrorKind = Unsent
		}
		return r // the call had no effect: it is repeated
	}
	if r.Restored() {
		return r // the lost tail may have sent it once more
	}
	earlier := r.DoubtAt.IsZero() || now.Sub(r.DoubtAt) >= SettleTime
	if r.Sends == r.Refusals || e.Kind == Capacity && r.LastSentAt.Equal(sentAt) && earlier {
		return r.move(LaunchFailed, r.Error)
	}
	return r
}

// See records an instance as the cloud showed it for the launch. With ErrLate or ErrSecond the
// record is unchanged.
func (r Record) See(i Instance, now time.Time) (Record, error) {
	switch {
	case r.Instance != "" && i.ID != r.Instance || i.Token != "" && i.Token != r.Token:
		return r, fmt.Errorf("%w: machine %s, launch %d has instance %s with token %s, the cloud showed %s with %s",
			ErrSecond, r.Machine, r.N, r.Instance, r.Token, i.ID, i.Token)
	case r.State.Settled():
		return r, fmt.Errorf("%w: machine %s, launch %d is %s, instance %s is %s", ErrLate, r.Machine, r.N, r.State,
			i.ID, i.State)
	}
	if r.AnsweredAt.IsZero() || r.Instance == "" { // a call may have been throttled before
		r.AnsweredAt = now
	}
	r.Instance, r.InstanceState, r.SeenAt = i.ID, i.State, now
	r.ErrorKind, r.Error = "", ""
	if i.State == Terminated {
		if r.EndedFirst.IsZero() {
			r.EndedFirst = now
		}
		r.EndedLast = now
	} else {
		r.EndedFirst, r.EndedLast = time.Time{}, time.Time{}
	}
	ends := i.State == Ending || i.State == Terminated
	switch {
	case ends && r.State != LaunchTerminating:
		reason := cloudEnded
		if i.Reason != "" {
			reason += ": " + i.Reason
		}
		r = r.move(LaunchTerminating, reason)
	case !ends && (r.State == LaunchRequested || r.State == LaunchSent || r.State == LaunchUnresolved):
		r = r.move(LaunchRunning, "")
	}
	return r, nil
}

// cloudEnded is the reason of a launch whose instance the cloud has shown as ending; the cloud's own reason follows.
const cloudEnded = "the cloud ended the instance"

// ownEnds are the beginnings of reasons of clouds for an end by the owner of the instance, or by the instance itself:
// EC2's for a stop in its console, its API or the guest, GCE's for a delete, and that of the provider local.
var ownEnds = []string{"Client.", "delete", "ended by itself", "terminated"}

// Preempted reports whether the change of the record to after shows that the cloud has taken a spot instance back, and
// that Berth had no notice of this end. A cloud that gives no reason counts as one that has.
func (r Record) Preempted(after Record) bool {
	ends := after.InstanceState == Ending || after.InstanceState == Terminated
	if r.Market != Spot || !r.StopAt.IsZero() || r.State == after.State || after.State != LaunchTerminating || !ends {
		return false
	}
	why := strings.TrimPrefix(after.Reason, cloudEnded+": ")
	return !slices.ContainsFunc(ownEnds, func(own string) bool { return strings.HasPrefix(why, own) })
}

// NeverJoined reports whether the change of the record to after ends an instance whose agent has not joined, although
// nobody requested its end: it did not join in time, or ended by itself before. The end of a preempted instance says
// nothing about its join, and a restored database may have lost the join.
func (r Record) NeverJoined(after Record) bool {
	return r.State != LaunchServing && r.State != LaunchDraining && r.State != after.State &&
		after.State == LaunchTerminating && r.JoinedAt.IsZero() && r.MachineState == "" && r.StopAt.IsZero() &&
		!r.Restored() && !r.Preempted(after)
}

// lastTry is the longest time between the last answer to a send and the end of the repeats by which the repeats were
// tried to their end. The pause between two of them is half of it at most.
const lastTry = time.Minute

// NeverCalled reports whether the change of the record to after, at a time, gives the launch up because none of its
// sends has reached the cloud: during Limits.Patience no replica could make the call. A launch whose repeats have
// waited, for a cloud that throttles or for replicas that did not run, was tried for a part of this time only, and
// shows nothing. Nor does a launch that was withdrawn.
func (r Record) NeverCalled(after Record, now time.Time) bool {
	return r.State == LaunchSent && after.State == LaunchFailed && after.ErrorKind == Unsent && r.StopAt.IsZero() &&
		now.Sub(r.AnsweredAt) <= lastTry
}

// Missed records that a search showed no instance of the launch. This moves a launch that is in doubt
// for longer than the limit to unresolved, and proves nothing else.
func (r Record) Missed(e *Error, l Limits, now time.Time) Record {
	if e.Kind != NotFound {
		r.ErrorKind, r.Error = e.Kind, e.Error()
	}
	return r.unseen(r.Error, l, now)
}

// Unsearched records that a replica cannot look for the instance of the launch, for a reason such as a missing
// provider. Another replica may be able to. But an admin can settle only a launch that is unresolved, so a launch in
// doubt becomes unresolved after the limit as after a search.
func (r Record) Unsearched(why string, l Limits, now time.Time) Record { return r.unseen(why, l, now) }

// unseen moves a launch that is in doubt for longer than the limit to unresolved, with the last error or "".
func (r Record) unseen(last string, l Limits, now time.Time) Record {
	if r.State != LaunchSent || !r.InDoubt() || now.Sub(r.SentAt) < l.Patience {
		return r
	}
	reason := fmt.Sprintf("no instance was seen in %s, and it may exist", l.Patience)
	if last != "" {
		reason += "; last error: " + last
	}
	return r.move(LaunchUnresolved, reason)
}

// Asked records a call of Terminate, with its error or nil. A call that was not made is repeated without a longer
// pause: another replica may be able to make it.
func (r Record) Asked(e *Error, now time.Time) Record {
	r.ErrorKind, r.Error = "", ""
	if e != nil {
		r.ErrorKind, r.Error = e.Kind, e.Error()
		if e.Unsent {
			return r
		}
	}
	r.Terminates++
	r.TerminateAt = now
	return r
}

// Stop is a request to end a machine.
type Stop struct {
	Actor, Reason string
	Deadline      time.Time // of the work on the machine; zero: the work runs to its end
}

// WithStop records a request to end the machine. A later request changes the deadline. A settled
// launch is a conflict.
func (r Record) WithStop(s Stop, now time.Time) (Record, error) {
	if r.State.Settled() {
		return r, berth.Errorf(berth.CodeConflict, "launch %d of machine %s is %s: nothing is left to terminate",
			r.N, r.Machine, r.State)
	}
	if r.StopAt.IsZero() {
		r.StopAt = now
	}
	r.StopActor, r.StopReason, r.StopDeadline, r.DueAt = s.Actor, s.Reason, s.Deadline, now
	r.StopIncarnation = r.Current
	return r, nil
}

// Absent records the confirmation of an admin that the cloud has no instance of the launch. Only a
// launch that Berth cannot settle by itself may be confirmed: an unresolved one, or one whose
// instance the cloud no longer shows while it is terminating.
func (r Record) Absent(actor string) (Record, error) {
	if r.State != LaunchUnresolved && r.State != LaunchTerminating {
		return r, berth.Errorf(berth.CodeConflict, "launch %d of machine %s is %s; only an unresolved or a "+
			"terminating launch can be confirmed absent", r.N, r.Machine, r.State)
	}
	if r.MachineState != "" && r.MachineState != berth.MachineRetired && !r.OtherHost {
		return r, berth.Errorf(berth.CodeConflict, "machine %s is %s; retire it first, after confirm-dead if its "+
			"agent is silent", r.Machine, r.MachineState)
	}
	return r.move(LaunchFailed, "confirmed absent by "+actor), nil
}
