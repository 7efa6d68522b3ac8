package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

// Launches holds the rows of launches.
type Launches interface {
	// Current returns the last launch of a machine with the time of the database.
	Current(ctx context.Context, id berth.MachineID) (cloud.Record, time.Time, error)
	// Change stores the result of f for the locked row.
	Change(ctx context.Context, ref cloud.Ref,
		f func(r cloud.Record, now time.Time) (cloud.Record, error)) (cloud.Record, error)
	// Send commits that the request is about to be sent. build makes the request of the first send. Send
	// fails with cloud.ErrNotSent, with cloud.ErrTried while other launches try the offering, or with a
	// *cloud.PauseError while the cloud throttles.
	Send(ctx context.Context, ref cloud.Ref, l cloud.Limits, clock func(time.Time) time.Time,
		build func(r cloud.Record, joinSecret string) (cloud.Sealed, error)) (cloud.Record, cloud.Sealed, error)
	// Trip stores a refusal in a breaker. Change closes the breakers of a launch whose instance is seen.
	Trip(ctx context.Context, named cloud.Breaker, f func(b cloud.Breaker, now time.Time) cloud.Breaker) error
	// Due records the pause before the next step.
	Due(ctx context.Context, r cloud.Record, after time.Duration) error
}

// Machines closes and retires the machines that have joined.
type Machines interface {
	Drain(ctx context.Context, id berth.MachineID, reason string, deadline *time.Time, actor string) error
	Retire(ctx context.Context, id berth.MachineID, actor string) error
	ConfirmDead(ctx context.Context, id berth.MachineID, actor string) ([]berth.JobID, error)
}

// Sealer seals requests under keys that the database never has.
type Sealer interface {
	Seal(tenant berth.TenantID, name string, value []byte) (keyID string, sealed []byte)
	Open(tenant berth.TenantID, name, keyID string, sealed []byte) ([]byte, error)
}

// MachineDeps are the parts of MachineSteps. Zero values of Limits, Clock and Logger have defaults.
type MachineDeps struct {
	Launches Launches
	Machines Machines
	Accounts cloud.Accounts
	Sealer   Sealer // nil: nothing is sent
	Poke     func(ids ...berth.JobID)
	Limits   cloud.Limits
	Logger   *slog.Logger
	// Sent observes the time from the request of a launch to its first call of the cloud; nil: nothing does.
	Sent func(time.Duration)

	// Clock maps the time of the database. A test that maps it to a faster one sets Faster too, by which
	// the pauses between steps are divided.
	Clock  func(time.Time) time.Time
	Faster int
}

// MachineSteps are the steps of the workflows of machines. All methods may be called concurrently.
type MachineSteps struct{ MachineDeps }

// The actor of changes of machines by these steps, and bounds on a step.
const (
	cloudActor  = "cloud"
	callTimeout = 100 * time.Second // of one call to a cloud; a provider has a shorter limit of its own
	noteTimeout = 10 * time.Second  // of recording its outcome; both fit into machineStep of the workflow
	maxActs     = 10                // in one step, against a loop by a fault in Next
	triedPause  = 5 * time.Second   // before the next try of a first send that waits for other ones
	mostPause   = 5 * time.Minute   // of a wait that a cloud demands after a search or a termination
)

// NewMachines returns the steps. Their failpoints lie around the calls of the cloud.
func NewMachines(d MachineDeps) *MachineSteps {
	if d.Limits == (cloud.Limits{}) {
		d.Limits = cloud.DefaultLimits
	}
	if d.Clock == nil {
		d.Clock = func(t time.Time) time.Time { return t }
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	d.Faster = max(d.Faster, 1)
	return withMachineFailpoints(MachineSteps{d})
}

// Step carries out the acts that are due for the last launch of a machine. It may run twice at once:
// each act is repeatable, and its outcome is applied to the row as the row is then.
func (m *MachineSteps) Step(ctx context.Context, in wire.MachineInput) (wire.MachineStepResult, error) {
	for range maxActs {
		r, now, err := m.Launches.Current(ctx, in.Machine)
		if berth.CodeOf(err) == berth.CodeNotFound {
			return wire.MachineStepResult{Settled: true}, nil // the database was restored
		}
		if err != nil {
			return wire.MachineStepResult{}, err
		}
		s := cloud.Next(r, m.Limits, m.Clock(now))
		after, err := m.act(ctx, r, s)
		if errors.Is(err, cloud.ErrTried) {
			return m.rest(ctx, r, triedPause)
		}
		if pause, ok := errors.AsType[*cloud.PauseError](err); ok {
			return m.rest(ctx, after, pause.Wait)
		}
		if err != nil {
			return wire.MachineStepResult{}, err
		}
		if s.Act == cloud.ActSend || after.State != r.State && !after.State.Settled() {
			continue
		}
		return m.rest(ctx, after, s.Wait)
	}
	return wire.MachineStepResult{}, fmt.Errorf("machine %s: no rest after %d acts", in.Machine, maxActs)
}

// rest records the pause and returns it to the workflow.
func (m *MachineSteps) rest(ctx context.Context, r cloud.Record, wait time.Duration) (wire.MachineStepResult, error) {
	result := wire.MachineStepResult{State: string(r.State), Reason: r.Reason, Settled: r.State.Settled()}
	if result.Settled {
		return result, nil
	}
	wait = max(wait/time.Duration(m.Faster), 10*time.Millisecond)
	result.Wait = spec.Duration(wait)
	return result, m.Launches.Due(ctx, r, wait)
}

// act carries out one act, and returns the row after it.
func (m *MachineSteps) act(ctx context.Context, r cloud.Record, s cloud.Step) (cloud.Record, error) {
	switch s.Act {
	case cloud.ActMove:
		return m.take(ctx, r, s)
	case cloud.ActSend:
		return m.send(ctx, r)
	case cloud.ActFind:
		return m.find(ctx, r)
	case cloud.ActTerminate:
		return m.terminate(ctx, r)
	case cloud.ActDrain:
		var deadline *time.Time
		if !r.StopDeadline.IsZero() {
			deadline = &r.StopDeadline
		}
		err := m.Machines.Drain(ctx, r.Machine, s.Reason, deadline, cloudActor)
		if err != nil && berth.CodeOf(err) != berth.CodeConflict { // lost or retired: it gets no new work either
			return r, err
		}
		return m.take(ctx, r, s)
	case cloud.ActRetire:
		return m.retire(ctx, r, s)
	case cloud.ActRelease:
		jobs, err := m.Machines.ConfirmDead(ctx, r.Machine, cloudActor)
		if m.Poke != nil {
			m.Poke(jobs...)
		}
		if err != nil {
			return r, except(err, berth.CodeConflict) // its lease is valid for some seconds more
		}
		return m.retire(ctx, r, s)
	}
	return r, nil
}

// retire retires the machine. One that has work is left, and tried again later.
func (m *MachineSteps) retire(ctx context.Context, r cloud.Record, s cloud.Step) (cloud.Record, error) {
	err := m.Machines.Retire(ctx, r.Machine, cloudActor)
	if berth.CodeOf(err) == berth.CodeConflict && s.Else == cloud.ActFind {
		return m.find(ctx, r)
	}
	if err != nil {
		return r, except(err, berth.CodeConflict)
	}
	return m.take(ctx, r, s)
}

// except returns err, or nil if it is of that code.
func except(err error, code berth.Code) error {
	if berth.CodeOf(err) == code {
		return nil
	}
	return err
}

// take stores the state after a step, unless the row has changed so that another step is due.
func (m *MachineSteps) take(ctx context.Context, r cloud.Record, s cloud.Step) (cloud.Record, error) {
	moved := false
	after, err := m.Launches.Change(ctx, r.Ref(), func(now cloud.Record, at time.Time) (cloud.Record, error) {
		at = m.Clock(at)
		next, ok := now.Take(s, m.Limits, at)
		moved = ok
		return next, nil
	})
	if err == nil && moved {
		m.Logger.Info("launch changed", "machine", r.Machine, "launch", r.N, "from", r.State, "to", after.State,
			"reason", after.Reason)
	}
	return after, err
}

// send commits a send, calls the cloud with the stored request, and records the answer.
func (m *MachineSteps) send(ctx context.Context, r cloud.Record) (cloud.Record, error) {
	account, err := m.account(r)
	if err == nil && m.Sealer == nil {
		err = berth.Errorf(berth.CodeUnavailable, "launches need --secret-key-file, and this berthd runs without it")
	}
	if err != nil {
		return m.unserved(ctx, r, err)
	}
	sent, sealed, err := m.Launches.Send(ctx, r.Ref(), m.Limits, m.Clock, m.seal)
	if errors.Is(err, cloud.ErrNotSent) {
		m.changed(r, sent)
		return sent, nil
	}
	if err != nil {
		return r, err
	}
	if sent.Sends == 1 && m.Sent != nil {
		m.Sent(sent.SentAt.Sub(m.Clock(sent.CreatedAt)))
	}
	l, err := m.open(sent, sealed)
	if err != nil {
		return r, err
	}
	// Hash before the call: an operator may correct the files meanwhile.
	marked := m.Accounts.SettingsHashes(r.Request(), l.Settings)
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	i, err := account.Create(call, l)
	if err == nil {
		m.Logger.Info("instance created", "machine", r.Machine, "launch", r.N, "instance", i.ID, "sends", sent.Sends)
		return m.see(ctx, account, r, i)
	}
	fault := asError(err)
	m.refused(ctx, r, fault, marked)
	m.Logger.Warn("cannot create an instance", "machine", r.Machine, "launch", r.N, "kind", fault.Kind, "err", err)
	return m.note(ctx, r, func(now cloud.Record, at time.Time) cloud.Record {
		return now.Refused(fault, sent.LastSentAt, at)
	})
}

// unserved returns the error for which this replica cannot send a launch. A launch that no replica could send for long
// fails.
func (m *MachineSteps) unserved(ctx context.Context, r cloud.Record, cause error) (cloud.Record, error) {
	after, err := m.note(ctx, r, func(now cloud.Record, at time.Time) cloud.Record {
		return now.Unserved(cause.Error(), at.Sub(m.Clock(now.CreatedAt)))
	})
	if err == nil && !after.State.Settled() {
		err = cause
	}
	return after, err
}

// refused closes the part of the cloud that the failure of a call of Create concerns. marked has the hashes of the
// settings of the call.
func (m *MachineSteps) refused(ctx context.Context, r cloud.Record, fault *cloud.Error, marked cloud.SettingsHashes) {
	b, ok := r.Request().Trips(fault)
	if !ok {
		return
	}
	b.Settings = marked.Of(b)
	m.trip(ctx, b, func(b cloud.Breaker, now time.Time) cloud.Breaker { return b.Refused(fault, now) })
}

// trip changes a breaker. The failure of the write is only logged: it costs another try of the cloud.
func (m *MachineSteps) trip(ctx context.Context, b cloud.Breaker,
	f func(b cloud.Breaker, now time.Time) cloud.Breaker) {
	err := m.Launches.Trip(context.WithoutCancel(ctx), b, func(b cloud.Breaker, at time.Time) cloud.Breaker {
		return f(b, m.Clock(at))
	})
	if err != nil {
		m.Logger.Warn("cannot record the refusal of a cloud", "scope", b.Scope, "key", b.Key, "err", err)
	}
}

// seal builds the request of a launch and seals it.
func (m *MachineSteps) seal(r cloud.Record, joinSecret string) (cloud.Sealed, error) {
	l, err := m.Accounts.Request(r, joinSecret)
	if err != nil {
		return cloud.Sealed{}, err
	}
	body, err := json.Marshal(l)
	if err != nil {
		return cloud.Sealed{}, err
	}
	s := cloud.Sealed{Hash: l.Hash()}
	if l.Bootstrap.Identity != nil {
		s.Identity = l.Bootstrap.Identity.Source
	}
	s.KeyID, s.Request = m.Sealer.Seal("", "launch/"+r.Token, body)
	return s, nil
}

// open returns the stored request. It fails unless the request is the one whose hash the row has: a
// cloud binds the token to the first request.
func (m *MachineSteps) open(r cloud.Record, s cloud.Sealed) (l cloud.Launch, err error) {
	body, err := m.Sealer.Open("", "launch/"+r.Token, s.KeyID, s.Request)
	if err != nil {
		return l, fmt.Errorf("launch %d of machine %s: open the stored request: %w", r.N, r.Machine, err)
	}
	if err := json.Unmarshal(body, &l); err != nil {
		return l, fmt.Errorf("launch %d of machine %s: read the stored request: %w", r.N, r.Machine, err)
	}
	if hash := l.Hash(); hash != r.Hash || l.Token != r.Token {
		return l, fmt.Errorf("launch %d of machine %s: the stored request has hash %.12s, its row %.12s: nothing is "+
			"sent", r.N, r.Machine, hash, r.Hash)
	}
	return l, nil
}

// account returns the provider of a launch. A provider that is not configured here is no verdict about
// the launch: another replica may have it, or the next start of this one.
func (m *MachineSteps) account(r cloud.Record) (cloud.Account, error) {
	account, err := m.Accounts.Account(r.Provider)
	if err != nil {
		return account, berth.Errorf(berth.CodeUnavailable, "launch %d of machine %s: %v", r.N, r.Machine, err)
	}
	return account, nil
}

// find looks for the instance of a launch.
func (m *MachineSteps) find(ctx context.Context, r cloud.Record) (cloud.Record, error) {
	account, err := m.account(r)
	if err != nil {
		after, noted := m.note(ctx, r, func(now cloud.Record, at time.Time) cloud.Record {
			return now.Unsearched(err.Error(), m.Limits, at)
		})
		return after, errors.Join(err, noted)
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	i, err := account.Find(call, r.Launch())
	if err == nil && r.Instance != "" && i.ID != r.Instance {
		i = ownInstance(call, account, r, i)
	}
	if err == nil {
		return m.see(ctx, account, r, i)
	}
	fault := asError(err)
	after, err := m.note(ctx, r, func(now cloud.Record, at time.Time) cloud.Record {
		return now.Missed(fault, m.Limits, at)
	})
	if err != nil {
		return after, err
	}
	return after, pause(fault)
}

// pause returns the error for a call that the cloud has throttled, if it demanded a wait. Only the launch of the call
// waits: clouds limit searches and terminations apart from creations.
func pause(e *cloud.Error) error {
	if e == nil || e.Kind != cloud.Throttle || e.RetryAfter <= 0 {
		return nil
	}
	return &cloud.PauseError{Wait: min(e.RetryAfter, mostPause)}
}

// ownInstance returns the instance that the row of a launch names, after Find has shown another one: a cloud may have
// booted two for one token. If the cloud does not list the named instance, the result is the other one. The sweep ends
// the other one.
func ownInstance(ctx context.Context, account cloud.Account, r cloud.Record, other cloud.Instance) cloud.Instance {
	list, err := account.List(ctx, r.Cluster, []string{r.Region})
	n := slices.IndexFunc(list, func(i cloud.Instance) bool { return i.ID == r.Instance && i.Token == r.Token })
	if err != nil || n < 0 {
		return other
	}
	return list[n]
}

// terminate requests the end of an instance.
func (m *MachineSteps) terminate(ctx context.Context, r cloud.Record) (cloud.Record, error) {
	account, err := m.account(r)
	if err != nil {
		return r, err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var fault *cloud.Error
	if err := account.Terminate(call, r.At()); err != nil {
		fault = asError(err)
		m.Logger.Warn("cannot terminate an instance", "machine", r.Machine, "launch", r.N, "instance", r.Instance,
			"calls", r.Terminates+1, "err", err)
	}
	after, err := m.note(ctx, r, func(now cloud.Record, at time.Time) cloud.Record { return now.Asked(fault, at) })
	if err != nil {
		return after, err
	}
	return after, pause(fault)
}

// see records an instance that the cloud showed. An instance of a settled launch is terminated. A spot instance that
// the cloud has taken back without a notice closes its offering for a while, as a notice does.
func (m *MachineSteps) see(ctx context.Context, account cloud.Account, r cloud.Record,
	i cloud.Instance) (cloud.Record, error) {
	var refused error
	preempted := false
	after, err := m.note(ctx, r, func(now cloud.Record, at time.Time) cloud.Record {
		next, err := now.See(i, at)
		refused, preempted = err, now.Preempted(next)
		return next
	})
	if err == nil && preempted {
		why := fmt.Sprintf("machine %s: %s, without a notice", r.Machine, after.Reason)
		offering, _ := r.Request().Trips(&cloud.Error{Kind: cloud.Capacity})
		m.trip(ctx, offering, func(b cloud.Breaker, now time.Time) cloud.Breaker {
			return b.Trip(cloud.Capacity, why, now)
		})
	}
	if err != nil || refused == nil {
		return after, err
	}
	m.Logger.Error("instance does not belong to its launch", "machine", r.Machine, "launch", r.N, "instance", i.ID,
		"err", refused)
	if errors.Is(refused, cloud.ErrLate) && i.State != cloud.Terminated && i.Machine == r.Machine && i.N == r.N {
		return after, account.Terminate(ctx, i)
	}
	return after, nil
}

// note stores the outcome of a call, also if the step is being canceled.
func (m *MachineSteps) note(ctx context.Context, r cloud.Record,
	f func(now cloud.Record, at time.Time) cloud.Record) (cloud.Record, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	after, err := m.Launches.Change(ctx, r.Ref(), func(now cloud.Record, at time.Time) (cloud.Record, error) {
		return f(now, m.Clock(at)), nil
	})
	if err == nil {
		m.changed(r, after)
	}
	return after, err
}

// changed logs a change of the state of a launch.
func (m *MachineSteps) changed(r, after cloud.Record) {
	if after.State != r.State {
		m.Logger.Info("launch changed", "machine", r.Machine, "launch", r.N, "from", r.State, "to", after.State,
			"reason", after.Reason)
	}
}

// asError returns the typed error of a provider. An untyped one leaves the outcome unknown.
func asError(err error) *cloud.Error {
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		return e
	}
	return &cloud.Error{Kind: cloud.Unknown, Err: err}
}
