package db

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// sessions reads the sessions and assignments of machines, many in one statement, on the
// ordinary connections.
//
// A call most likely has to wait for a change if its agent has the set last read here and
// no hint has named the machine since. Such a call delays its read by up to readGather, so
// that calls of other machines share the statement; a hint for the machine ends the delay.
// Every other call reads at once. Each call reads at least once in any case, so a lost hint
// delays orders by no more than the time between two calls.
type sessions struct {
	*gather[berth.MachineID, *session]
	hub      *Hub
	patience time.Duration // readGather

	mu   sync.Mutex
	last map[berth.MachineID]reading // of the last read of each machine
}

// reading is the state of a machine that decides whether a call's read may be delayed: it
// may if the state equals that of the last read.
type reading struct {
	boot       string
	epoch      int64
	digest     string // of the set of assignments
	generation int64  // of the machine's hints, see Hub.Generation
}

const (
	readGather  = 200 * time.Millisecond // longest wait for other calls to share the statement
	readTimeout = 2 * time.Second        // of one statement
	readLanes   = 2                      // statements in flight at once
	clearGather = 20 * time.Millisecond  // for calls that end the suspicion of machines
)

func newSessions(d *core) *sessions {
	return &sessions{
		gather: newGather(readLanes, readGather, readTimeout, d.readSessions), hub: d.hub, patience: readGather,
		last: map[berth.MachineID]reading{},
	}
}

// read returns the machine's session and set. If hints is not nil and the set most likely
// has not changed for the caller, the read may wait for other calls; a value from hints,
// the machine's hints, ends that wait. With hints nil, read does not wait.
func (r *sessions) read(
	ctx context.Context, machine berth.MachineID, req wire.SyncRequest, hints <-chan struct{},
) (*session, error) {
	// The generation is read before the rows: a hint that comes later is never taken as
	// covered.
	generation := r.hub.Generation(machine)
	t := r.join(machine)
	if hints != nil && r.has(machine, reading{req.AgentBoot, req.Epoch, req.Digest, generation}) {
		select {
		case <-t.batch.done:
		case <-time.After(r.patience):
		case <-hints: // the reading starts after it
		case <-ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	got, ok, err := t.answer(ctx)
	if err != nil {
		return nil, unavailable(err, "machine "+string(machine))
	}
	if !ok {
		return nil, berth.Errorf(berth.CodeNotFound, "no such machine %s", machine)
	}
	// All callers of the batch share got, so the generation is set in a copy.
	s := *got
	s.generation = generation
	r.note(machine, reading{s.agentBoot, s.epoch, s.digest(), generation})
	return &s, nil
}

// has reports whether now equals the machine's last reading.
func (r *sessions) has(machine berth.MachineID, now reading) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[machine]
	return ok && last == now
}

// note records a reading.
func (r *sessions) note(machine berth.MachineID, now reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Readings of gone machines are not removed one by one. A cleared map costs each
	// machine one read without a delay.
	if len(r.last) > 100_000 {
		clear(r.last)
	}
	r.last[machine] = now
}

// unavailable maps the error of a call with a time limit; an expired limit becomes
// CodeUnavailable.
func unavailable(err error, what string) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return berth.Errorf(berth.CodeUnavailable, "%s: database did not answer in time", what)
	}
	return mapError(err, what)
}

// session reads the session and set of one machine.
func (d *core) session(ctx context.Context, machine berth.MachineID) (*session, error) {
	got, err := d.readSessions(ctx, []berth.MachineID{machine})
	if err != nil {
		return nil, mapError(err, "machine "+string(machine))
	}
	if got[machine] == nil {
		return nil, berth.Errorf(berth.CodeNotFound, "no such machine %s", machine)
	}
	return got[machine], nil
}

// readSessions reads the sessions and sets of machines in one statement, so each set
// belongs to the same moment as its watermark. Machines that do not exist are left out. In a quarantined
// cluster a set has the work that the machine has taken up, and no orders.
func (d *core) readSessions(ctx context.Context, machines []berth.MachineID) (map[berth.MachineID]*session, error) {
	ids := make([]string, len(machines))
	for i, m := range machines {
		ids[i] = string(m)
	}
	// OFFSET 0 keeps the planner from joining whole tables: a set has few rows of each table, found by index. It also
	// lets PostgreSQL read sessions and followed members once for a machine, and not for each allocation.
	rows, err := d.pool.Query(ctx, `
		SELECT m.id, m.state, m.epoch, m.agent_boot, m.engine_silent_since IS NOT NULL, `+markColumns+`,
		       s.id, coalesce(s.job::text, ''), coalesce(s.attempt, 0), coalesce(s.rank, 0),
		         coalesce(s.state, ''), s.orders,
		       coalesce(s.run_limit_ms, 0), x.asked, x.followed
		FROM (
			SELECT y.id, (
				SELECT jsonb_agg(jsonb_build_object('id', o.id, 'nonce', o.nonce, 'alloc', o.alloc, 'job', o.job,
					'attempt', o.attempt, 'epoch', o.epoch, 'request', o.request) ORDER BY o.id)
				FROM job_sessions o
				WHERE o.machine_id = y.id AND o.state = 'waiting' AND o.expires_at > now()
			) AS asked, (
				SELECT array_agg(o.alloc ORDER BY o.alloc)
				FROM (
					SELECT f.alloc
					FROM followed_members f
					WHERE f.machine_id = y.id AND f.until > now()
					ORDER BY f.alloc
					LIMIT @followed) o
			) AS followed
			FROM unnest(@machines::text[]) AS y (id)
			OFFSET 0
		) x
		JOIN machines m ON m.id = x.id
		CROSS JOIN cluster c
		LEFT JOIN LATERAL (
			SELECT a.id, a.job, a.attempt, a.rank, a.state, a.orders, j.run_limit_ms
			FROM allocations a
			LEFT JOIN jobs j ON j.id = a.job
			WHERE a.machine_id = m.id AND a.forgotten_at IS NULL
			  AND (a.state <> 'reserved' OR a.orders <> '{}' OR `+takeable+`)
			OFFSET 0
		) s ON true
		ORDER BY m.id, s.id`, namedArgs{"machines": ids, "followed": wire.MaxFollowedMembers})
	if err != nil {
		return nil, err
	}
	got := make(map[berth.MachineID]*session, len(machines))
	var machine berth.MachineID
	var m session
	var id *int64
	var a wire.Assignment
	var orders *berth.Orders
	var limit int64
	var asked []wire.SessionOrder
	var followed []berth.AllocationID
	dest := append([]any{&machine, &m.state, &m.epoch, &m.agentBoot, &m.engineSilent}, m.mark.dest()...)
	dest = append(dest, &id, &a.Job, &a.Attempt, &a.Rank, &a.State, &orders, &limit, &asked, &followed)
	_, err = pgx.ForEachRow(rows, dest,
		func() error {
			s := got[machine]
			if s == nil {
				s = &session{state: m.state, epoch: m.epoch, agentBoot: m.agentBoot,
					engineSilent: m.engineSilent, mark: m.mark, asked: asked, followed: followed}
				got[machine] = s
			}
			asked, followed = nil, nil
			if m.mark.quarantined {
				s.asked, s.followed = nil, nil
			}
			if id != nil && (!m.mark.quarantined || a.State == berth.AllocActive || a.State == berth.AllocExited) {
				a.Alloc, a.Orders = berth.AllocationID(*id), berth.Orders{}
				if orders != nil && !m.mark.quarantined {
					a.Orders = *orders
				}
				a.RunLimit = spec.Duration(time.Duration(limit) * time.Millisecond)
				s.assignments = append(s.assignments, a)
			}
			orders = nil
			return nil
		})
	return got, err
}

// checkSession refuses a call from a session that is not the machine's current one.
func (d *core) checkSession(ctx context.Context, machine berth.MachineID, at Session) error {
	s, err := d.session(ctx, machine)
	if err != nil {
		return err
	}
	return s.check(machine, at.AgentBoot, at.Epoch)
}
