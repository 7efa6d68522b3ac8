package db

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
	"berth/wire"
)

// takeNotice stores the cloud's notice of the machine's end that the call carries, before the reports of
// the call: an exit that the notice has caused is then one of a draining machine. It returns the
// confirmation for the answer. A notice that cannot be stored now is not confirmed, and the agent repeats
// it; it must not fail the reports, nor the renewal of the lease.
func (c *syncCall) takeNotice(ctx context.Context) (confirmed string, err error) {
	n := c.req.CloudNotice
	if n == nil {
		return "", nil
	}
	err = c.Agents.takeNotice(ctx, c.machine, c.req, *n)
	switch {
	case err == nil:
		return n.String(), nil
	case berth.IsSlug(err, berth.SlugStaleEpoch), berth.IsSlug(err, berth.SlugMachineRetired):
		return "", err
	}
	c.log.Warn("cannot store a cloud's notice, the agent repeats it", "machine_id", c.machine, "notice", n, "err", err)
	return "", nil
}

// takeNotice drains the machine until the notice's StopBy, notifies its jobs, orders the end of its
// launch and trips the breaker of the launch's offering, in one transaction. A drain with an earlier
// deadline stays as it is. A repeated call changes nothing.
//
// The jobs are notified here and not by the leader (AnnounceDrains), since the agent has already signaled
// them to save: the leader would order a second checkpoint.
func (d *Agents) takeNotice(ctx context.Context, machine berth.MachineID, req wire.SyncRequest,
	n wire.CloudNotice) error {
	var t noticeTx
	err := d.tx(ctx, func(tx pgx.Tx) error {
		t = noticeTx{tx: tx, machine: machine, actor: AgentActor(machine), notice: n}
		for _, step := range []func(context.Context) error{
			func(ctx context.Context) error { return t.checkSession(ctx, req) },
			t.lock, t.drain, t.announce, t.stopLaunch,
		} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return mapError(err, "machine "+string(machine))
	}
	for _, job := range t.notified {
		d.hub.Publish(TopicJob, string(job))
	}
	if t.drained {
		d.hub.Publish(TopicQueue, "")
		d.hub.Publish(TopicMachine, string(machine))
	}
	if t.stopped {
		d.hub.Publish(TopicLaunch, string(machine))
	}
	return nil
}

// noticeTx is the state of one transaction of takeNotice. Its methods run in the lock order.
type noticeTx struct {
	tx      pgx.Tx
	machine berth.MachineID
	actor   string
	notice  wire.CloudNotice

	held   []holding
	launch *cloud.Record // nil: the machine is not one of a launch

	reason   string // of the drain of the machine after the transaction, with its deadline
	deadline *time.Time

	drained  bool // by this call
	stopped  bool // the launch, by this call
	notified []berth.JobID
}

// checkSession returns an error unless the call belongs to the machine's current session.
func (t *noticeTx) checkSession(ctx context.Context, req wire.SyncRequest) error {
	var s session
	err := t.tx.QueryRow(ctx, `SELECT state, epoch, agent_boot FROM machines WHERE id = @id`,
		namedArgs{"id": t.machine}).Scan(&s.state, &s.epoch, &s.agentBoot)
	if err != nil {
		return err
	}
	return s.check(t.machine, req.AgentBoot, req.Epoch)
}

// lock locks the jobs on the machine, their allocations there, and the machine's launch. Work that is
// placed after this is found by the leader's pass, and its container is newer than the notice.
func (t *noticeTx) lock(ctx context.Context) error {
	jobs, err := lockJobsOn(ctx, t.tx, t.machine)
	if err != nil {
		return err
	}
	if t.held, err = lockHeldBy(ctx, t.tx, t.machine, jobs); err != nil {
		return err
	}
	r, err := lockLaunch(ctx, t.tx, cloud.Ref{Machine: t.machine})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil && !r.State.Settled() && !r.OtherHost {
		t.launch = &r
	}
	return err
}

// drain sets the machine draining, unless it drains until an earlier time.
func (t *noticeTx) drain(ctx context.Context) error {
	if err := actAs(ctx, t.tx, t.actor); err != nil {
		return err
	}
	tag, err := t.tx.Exec(ctx, `
		UPDATE machines
		SET state = 'draining', reason = @reason, drain_reason = @reason, drain_deadline = @deadline
		WHERE id = @id AND state IN ('joining', 'ready', 'suspect', 'draining')
		  AND (state <> 'draining' OR drain_deadline IS NULL OR drain_deadline > @deadline)`,
		namedArgs{"id": t.machine, "reason": t.notice.Reason(), "deadline": t.notice.StopBy()})
	if err != nil {
		return err
	}
	t.drained = tag.RowsAffected() > 0
	return t.tx.QueryRow(ctx, `SELECT coalesce(drain_reason, ''), drain_deadline FROM machines WHERE id = @id`,
		namedArgs{"id": t.machine}).Scan(&t.reason, &t.deadline)
}

// announce notifies the jobs on the machine of a new drain.
func (t *noticeTx) announce(ctx context.Context) error {
	if !t.drained {
		return nil
	}
	slices.SortFunc(t.held, func(a, b holding) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Attempt, b.Attempt))
	})
	held := slices.CompactFunc(t.held, func(a, b holding) bool { return a.Job == b.Job && a.Attempt == b.Attempt })
	for _, h := range held {
		var current bool
		err := t.tx.QueryRow(ctx, `
			SELECT attempt = @attempt AND state IN ('scheduled', 'running') FROM jobs WHERE id = @job`,
			namedArgs{"job": h.Job, "attempt": h.Attempt}).Scan(&current)
		if err != nil {
			return err
		}
		if !current {
			continue
		}
		// The jobs' other machines have drains of their own, if any: the leader announces those.
		a := announcement{job: h.Job, attempt: h.Attempt, actor: t.actor, only: t.machine}
		if hints, err := a.write(ctx, t.tx); err != nil {
			return err
		} else if len(hints.machines) > 0 {
			t.notified = append(t.notified, h.Job)
		}
	}
	return nil
}

// stopLaunch orders the end of the machine's launch with the deadline of the drain, and closes its
// offering for a while: the cloud is short of it. A launch of an earlier incarnation of the database is
// terminated by an admin alone.
func (t *noticeTx) stopLaunch(ctx context.Context) error {
	if t.launch == nil {
		return nil
	}
	r := *t.launch
	deadline := time.Time{}
	if t.deadline != nil {
		deadline = *t.deadline
	}
	t.stopped = !r.Restored() && (r.StopAt.IsZero() || !r.StopDeadline.Equal(deadline))
	if !t.drained && !t.stopped {
		return nil
	}
	var now time.Time
	if err := t.tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return err
	}
	if t.stopped {
		after, err := r.WithStop(cloud.Stop{
			Actor: cmp.Or(r.StopActor, t.actor), Reason: t.reason, Deadline: deadline,
		}, now)
		if err != nil {
			return err
		}
		if err := storeLaunch(ctx, t.tx, after); err != nil {
			return err
		}
	}
	b, ok := r.Request().Trips(&cloud.Error{Kind: cloud.Capacity})
	if !ok {
		return nil
	}
	return trip(ctx, t.tx, b, func(b cloud.Breaker, now time.Time) cloud.Breaker {
		return b.Trip(cloud.Capacity, "machine "+string(t.machine)+": "+t.notice.Reason(), now)
	})
}
