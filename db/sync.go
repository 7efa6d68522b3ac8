package db

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// session is what one read tells of a machine: its terms and the full set of
// what it is concerned with. A reservation is in it as long as the machine may
// take it up, or has been told something about it; one that its claim would
// refuse would only be asked for again and again.
type session struct {
	state       berth.MachineState
	epoch       int64
	agentBoot   string
	seq         int64
	assignments []berth.Assignment
}

func (d *DB) session(ctx context.Context, machine berth.MachineID) (*session, error) {
	rows, err := d.vital.Query(ctx, `
		SELECT m.state, m.epoch, m.agent_boot, coalesce(l.seq, 0),
		       a.id, coalesce(a.job::text, ''), coalesce(a.attempt, 0), coalesce(a.rank, 0), coalesce(a.state, ''), a.orders,
		       coalesce(j.run_limit_ms, 0)
		FROM machines m
		LEFT JOIN machine_leases l ON l.machine_id = m.id
		LEFT JOIN (allocations a LEFT JOIN jobs j ON j.id = a.job)
		    ON a.machine_id = @machine AND a.forgotten_at IS NULL
		    AND (a.state <> 'reserved' OR a.orders <> '{}' OR `+takeable+`)
		WHERE m.id = @machine
		ORDER BY a.id`, pgx.NamedArgs{"machine": machine})
	if err != nil {
		return nil, mapError(err, "machine "+string(machine))
	}
	s := &session{}
	var id *int64
	var a berth.Assignment
	var orders *berth.Orders
	var limit int64
	_, err = pgx.ForEachRow(rows, []any{&s.state, &s.epoch, &s.agentBoot, &s.seq, &id, &a.Job, &a.Attempt, &a.Rank, &a.State, &orders, &limit}, func() error {
		if id != nil {
			a.Alloc, a.Orders = berth.AllocationID(*id), berth.Orders{}
			if orders != nil {
				a.Orders = *orders
			}
			a.RunLimit = berth.Duration(time.Duration(limit) * time.Millisecond)
			s.assignments = append(s.assignments, a)
		}
		orders = nil
		return nil
	})
	if err != nil {
		return nil, mapError(err, "machine "+string(machine))
	}
	if s.state == "" {
		return nil, berth.Errorf(berth.CodeNotFound, "no such machine %s", machine)
	}
	return s, nil
}

// check refuses a caller whose session is not the machine's current one.
func (s *session) check(machine berth.MachineID, boot string, epoch int64) error {
	switch {
	case s.state == berth.MachineRetired:
		return errRetired(machine)
	case s.state == berth.MachineLost:
		return berth.ErrStaleEpoch("machine %s was declared lost: register again", machine)
	case s.agentBoot != boot:
		return berth.ErrStaleEpoch("machine %s has registered another agent process since", machine)
	case s.epoch != epoch:
		return berth.ErrStaleEpoch("machine %s is at epoch %d, not %d: register again", machine, s.epoch, epoch)
	}
	return nil
}

// errRetired is the answer to the agent of a machine that was removed.
func errRetired(machine berth.MachineID) error {
	return &berth.Error{Code: berth.CodeForbidden, Slug: berth.SlugMachineRetired,
		Message: fmt.Sprintf("machine %s was removed from the cluster; join again to bring it back", machine)}
}

// Session is what a caller says of the session it writes in.
type Session struct {
	AgentBoot string
	Epoch     int64
}

const ttlSeconds = int(berth.MachineLeaseTTL / time.Second)

// answer adds what the reports came to.
func (h heard) answer(r berth.SyncResponse) berth.SyncResponse {
	r.Started, r.Stale, r.Refused = h.started, h.stale, h.refused
	return r
}

// response is the set of assignments, left out if the agent has it already.
func (s *session) response(digest string) berth.SyncResponse {
	r := berth.SyncResponse{TTLSeconds: ttlSeconds, Digest: s.digest()}
	if r.Digest != digest {
		r.Changed, r.Assignments = true, s.assignments
	}
	return r
}

// digest names the set. An empty set has one too, so that an agent can tell it
// from having heard nothing.
func (s *session) digest() string {
	h := fnv.New128a()
	e := json.NewEncoder(h)
	for _, a := range s.assignments {
		if err := e.Encode(a); err != nil {
			panic("assignment does not marshal: " + err.Error())
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Sync renews the machine's lease, takes its reports and answers its orders as
// soon as they differ from what it has, or after the wait.
//
// A caller whose session is not current gets ErrStaleEpoch and has changed
// nothing. Calls that report something carry a seq that grows: one that was
// overtaken is ignored, and answered like any other. The answer to a brief one
// tells what its reports came to; the set, which may be long, is read for those
// that poll.
func (d *DB) Sync(ctx context.Context, machine berth.MachineID, req berth.SyncRequest) (berth.SyncResponse, error) {
	wait := min(time.Duration(req.WaitMS)*time.Millisecond, berth.SyncWait)
	var said heard
	var renewed bool
	reports := len(req.Reports) > 0 || len(req.Gone) > 0 || len(req.GPUs) > 0 || req.Cache != nil
	if reports {
		var err error
		if said, err = d.report(ctx, machine, req); err != nil {
			return berth.SyncResponse{}, mapError(err, "reports of machine "+string(machine))
		}
		if req.Brief && said.known {
			return said.answer(berth.SyncResponse{TTLSeconds: ttlSeconds, Renewed: true, Digest: req.Digest}), nil
		}
	}
	hints := d.hub.Subscribe(TopicMachine, string(machine))
	defer hints.Close()
	deadline := time.NewTimer(max(wait, 0))
	defer deadline.Stop()
	for first := true; ; first = false {
		s, err := d.session(ctx, machine)
		if err != nil {
			return berth.SyncResponse{}, err
		}
		if err := s.check(machine, req.AgentBoot, req.Epoch); err != nil {
			return berth.SyncResponse{}, err
		}
		if first {
			if renewed, err = d.renew(ctx, machine, s); err != nil {
				return berth.SyncResponse{}, err
			}
		}
		answer := said.answer(s.response(req.Digest))
		answer.Renewed = renewed
		if answer.Changed || len(said.stale)+len(said.refused) > 0 || wait <= 0 {
			return answer, nil
		}
		select {
		case <-hints.C:
		case <-deadline.C:
			return answer, nil
		case <-ctx.Done():
			return answer, ctx.Err()
		}
	}
}

// renew renews the lease, unless that was done a moment ago, and ends suspicion,
// since the machine has been heard.
func (d *DB) renew(ctx context.Context, machine berth.MachineID, s *session) (renewed bool, err error) {
	if renewed, err = d.renewals.renew(ctx, d, machine, s.epoch); err != nil {
		return false, mapError(err, "lease of machine "+string(machine))
	}
	if s.state != berth.MachineSuspect {
		return renewed, nil
	}
	tag, err := d.vital.Exec(ctx, `
		UPDATE machines
		SET state = 'ready', reason = ''
		WHERE id = @machine AND state = 'suspect' AND epoch = @epoch`,
		pgx.NamedArgs{"machine": machine, "epoch": s.epoch})
	if err != nil {
		return false, mapError(err, "machine "+string(machine))
	}
	if tag.RowsAffected() > 0 {
		d.hub.Publish(TopicQueue, "")
	}
	return renewed, nil
}
