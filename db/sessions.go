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

// sessions reads the sets of machines, many in one statement, on the ordinary
// connections.
//
// A call that opens with the set last read here for it, and whose machine no hint
// has named since, will most likely be held: its reading waits up to readGather for
// others, or until a hint names the machine. Every other call reads at once. Each call
// reads at least once either way, so a lost hint costs no more than the time from one
// call to the next.
type sessions struct {
	*gather[berth.MachineID, *session]
	hub      *Hub
	patience time.Duration // readGather

	mu   sync.Mutex
	last map[berth.MachineID]reading
}

// reading is what a call must have in common with the last one to be held.
type reading struct {
	boot       string
	epoch      int64
	digest     string
	generation int64
}

const (
	readGather  = 200 * time.Millisecond
	readTimeout = 2 * time.Second
	readLanes   = 2
	clearGather = 20 * time.Millisecond // for calls that end the suspicion of machines
)

func newSessions(d *core) *sessions {
	return &sessions{
		gather: newGather(readLanes, readGather, readTimeout, d.readSessions), hub: d.hub, patience: readGather,
		last: map[berth.MachineID]reading{},
	}
}

// read returns the machine's terms and set. With hints at the machine, the reading may
// wait for others where the answer will most likely be the one that the caller has; a
// hint ends that wait. Without hints, nil, it does not wait.
func (r *sessions) read(
	ctx context.Context, machine berth.MachineID, req wire.SyncRequest, hints <-chan struct{},
) (*session, error) {
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
	s := *got
	s.generation = generation
	r.note(machine, reading{s.agentBoot, s.epoch, s.digest(), generation})
	return &s, nil
}

func (r *sessions) has(machine berth.MachineID, now reading) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[machine]
	return ok && last == now
}

func (r *sessions) note(machine berth.MachineID, now reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) > 100_000 {
		clear(r.last)
	}
	r.last[machine] = now
}

// unavailable maps an error of a call with a time limit: the end of the limit says
// that the database did not answer.
func unavailable(err error, what string) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return berth.Errorf(berth.CodeUnavailable, "%s: database did not answer in time", what)
	}
	return mapError(err, what)
}

// session reads one machine.
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

// readSessions reads the terms and sets of machines. Those that do not exist are
// left out.
func (d *core) readSessions(ctx context.Context, machines []berth.MachineID) (map[berth.MachineID]*session, error) {
	ids := make([]string, len(machines))
	for i, m := range machines {
		ids[i] = string(m)
	}
	// OFFSET 0 keeps the planner from joining whole tables: the sets are few rows
	// of each, found by index.
	rows, err := d.pool.Query(ctx, `
		SELECT m.id, m.state, m.epoch, m.agent_boot, m.engine_silent_since IS NOT NULL, `+markColumns+`,
		       s.id, coalesce(s.job::text, ''), coalesce(s.attempt, 0), coalesce(s.rank, 0),
		         coalesce(s.state, ''), s.orders,
		       coalesce(s.run_limit_ms, 0)
		FROM unnest(@machines::text[]) AS x (id)
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
		ORDER BY m.id, s.id`, pgx.NamedArgs{"machines": ids})
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
	dest := append([]any{&machine, &m.state, &m.epoch, &m.agentBoot, &m.engineSilent}, m.mark.dest()...)
	_, err = pgx.ForEachRow(rows, append(dest, &id, &a.Job, &a.Attempt, &a.Rank, &a.State, &orders, &limit),
		func() error {
			s := got[machine]
			if s == nil {
				s = &session{state: m.state, epoch: m.epoch, agentBoot: m.agentBoot,
					engineSilent: m.engineSilent, mark: m.mark}
				got[machine] = s
			}
			if id != nil {
				a.Alloc, a.Orders = berth.AllocationID(*id), berth.Orders{}
				if orders != nil {
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

// checkSession refuses a caller whose session is not the machine's current one.
func (d *core) checkSession(ctx context.Context, machine berth.MachineID, at Session) error {
	s, err := d.session(ctx, machine)
	if err != nil {
		return err
	}
	return s.check(machine, at.AgentBoot, at.Epoch)
}
