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
	"berth/wire"
)

// session is one reading of a machine: its terms and its full set of assignments.
// A reservation is in the set as long as the machine may claim it, or has been
// given orders about it; a reservation whose claim would be refused would only be
// claimed again and again.
type session struct {
	state        berth.MachineState
	epoch        int64
	agentBoot    string
	seq          int64    // of the last report; only reporting.lock reads it
	mark         markRead // as of the same moment as the assignments
	engineSilent bool     // the row says that its container engine does not answer
	assignments  []wire.Assignment
	generation   int64  // of the hints that this reading covers; see Hub.Generation
	sum          string // digest of the set; "" before the first call of digest
}

// current is check, and refuses a machine that is ahead of the database.
func (s *session) current(ctx context.Context, d *core, machine berth.MachineID, boot string, epoch int64,
	seen wire.StoredWatermark) error {
	if !s.mark.covers(seen) {
		if restored, err := vouch(ctx, d, seen); err != nil {
			return err
		} else if restored {
			return errRestored(machine)
		}
	}
	return s.check(machine, boot, epoch)
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
func (h heard) answer(r wire.SyncResponse) wire.SyncResponse {
	r.Started, r.Stale, r.Refused = h.started, h.stale, h.refused
	if h.mark != nil && (r.Watermark == nil || h.mark.Number < r.Watermark.Number) {
		r.Watermark = h.mark // the older of the two moments that the answer is of
	}
	return r
}

// response is the set of assignments, left out if the agent has it already.
func (s *session) response(digest string) wire.SyncResponse {
	r := wire.SyncResponse{TTLSeconds: ttlSeconds, Digest: s.digest(), Watermark: s.mark.now()}
	if r.Digest != digest {
		r.Changed, r.Assignments = true, s.assignments
	}
	return r
}

// digest names the set. An empty set has one too, so that an agent can tell it
// from having heard nothing.
func (s *session) digest() string {
	if s.sum != "" {
		return s.sum
	}
	h := fnv.New128a()
	e := json.NewEncoder(h)
	for _, a := range s.assignments {
		if err := e.Encode(a); err != nil {
			panic("assignment does not marshal: " + err.Error())
		}
	}
	s.sum = hex.EncodeToString(h.Sum(nil))
	return s.sum
}

// Sync renews the machine's lease, takes its reports and answers its orders as
// soon as they differ from the set it has, or after the wait.
//
// The renewal comes first and depends on nothing else: it is sent on connections
// of its own, in a statement that touches machine_leases alone. Where the rest
// cannot be read in time, because another session has locked a table or the
// connections are all in use, a call that reports nothing is answered at its end
// that the lease was renewed, without assignments, and the agent keeps its set. A
// call that reports gets an error of code unavailable, and is to be repeated.
//
// A caller whose session is not current gets ErrStaleEpoch and has changed
// nothing. Calls that report carry a seq that grows: one that was overtaken is
// ignored, and answered like any other. The answer to a brief one holds only what
// its reports came to; the set, which may be long, is read for polls only.
func (d *Agents) Sync(ctx context.Context, machine berth.MachineID, req wire.SyncRequest) (wire.SyncResponse, error) {
	c := syncCall{Agents: d, machine: machine, req: req,
		wait: min(time.Duration(req.WaitMS)*time.Millisecond, berth.SyncWait)}
	c.renewal = d.renewals.begin(leaseKey{machine, req.AgentBoot, req.Epoch})
	if c.reports() {
		if err := c.report(ctx); err != nil {
			return wire.SyncResponse{}, err
		}
		if req.Brief && c.said.known {
			return c.said.answer(wire.SyncResponse{TTLSeconds: ttlSeconds, Renewed: true, Digest: req.Digest}), nil
		}
	}
	return c.poll(ctx)
}

// syncCall is one call of Sync on its way.
type syncCall struct {
	*Agents
	machine berth.MachineID
	req     wire.SyncRequest
	wait    time.Duration
	renewal renewal
	said    heard
	cleared bool // suspicion was ended, or that was tried
	noted   bool // the condition of its container engine was compared with the row
}

func (c *syncCall) reports() bool {
	return len(c.req.Reports) > 0 || len(c.req.Gone) > 0 || len(c.req.GPUs) > 0 || c.req.Cache != nil
}

// reportTimeout is less than the time after which an agent gives the call up.
const reportTimeout = 10 * time.Second

func (c *syncCall) report(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	c.said, err = c.Agents.report(ctx, c.machine, c.req)
	if err != nil && ctx.Err() != nil {
		return berth.Errorf(berth.CodeUnavailable, "reports of machine %s: the database did not store them within %s",
			c.machine, reportTimeout)
	}
	return mapError(err, "reports of machine "+string(c.machine))
}

// readRetry is the pause before a set that could not be read is read again.
const readRetry = time.Second

// poll answers when the set differs from the caller's, when the caller must be
// told what its reports came to, or after the wait.
func (c *syncCall) poll(ctx context.Context) (wire.SyncResponse, error) {
	hints := c.hub.Subscribe(TopicMachine, string(c.machine))
	defer hints.Close()
	deadline := time.NewTimer(max(c.wait, 0))
	defer deadline.Stop()
	for first := true; ; first = false {
		var patient <-chan struct{}
		if first && c.wait >= 2*readGather {
			patient = hints.C
		}
		s, err := c.sessions.read(ctx, c.machine, c.req, patient)
		var retry <-chan time.Time
		answer := wire.SyncResponse{TTLSeconds: ttlSeconds, Digest: c.req.Digest}
		switch {
		case err != nil && berth.CodeOf(err) != berth.CodeUnavailable:
			return wire.SyncResponse{}, err
		case err != nil:
			if _, over, lost := c.renewal.result(ctx); over || lost != nil {
				return wire.SyncResponse{}, err
			}
			retry = time.After(readRetry)
			c.endSuspicion(ctx)
		default:
			if err := s.current(ctx, c.core, c.machine, c.req.AgentBoot, c.req.Epoch, c.req.Watermark); err != nil {
				return wire.SyncResponse{}, err
			}
			if s.state == berth.MachineSuspect {
				c.endSuspicion(ctx)
			}
			c.noteEngine(ctx, s)
			answer = s.response(c.req.Digest)
		}
		if answer.Changed || len(c.said.stale)+len(c.said.refused) > 0 || c.wait <= 0 {
			return c.finish(ctx, answer)
		}
		if s != nil && c.hub.Generation(c.machine) != s.generation {
			continue // the hint came while the set was read
		}
		select {
		case <-hints.C:
		case <-retry:
		case <-deadline.C:
			return c.finish(ctx, answer)
		case <-ctx.Done():
			return answer, ctx.Err()
		}
	}
}

// finish completes an answer with what became of the renewal.
func (c *syncCall) finish(ctx context.Context, answer wire.SyncResponse) (wire.SyncResponse, error) {
	renewed, over, err := c.renewal.result(ctx)
	if err != nil {
		return wire.SyncResponse{}, err
	}
	if over {
		// The session ended between the two statements: say why.
		s, err := c.sessions.read(ctx, c.machine, c.req, nil)
		if err != nil {
			return wire.SyncResponse{}, err
		}
		if err := s.current(ctx, c.core, c.machine, c.req.AgentBoot, c.req.Epoch, c.req.Watermark); err != nil {
			return wire.SyncResponse{}, err
		}
	}
	answer.Renewed = renewed
	return c.said.answer(answer), nil
}

// endSuspicion puts the machine back into service if it is suspected, since it has
// been heard. Where that cannot be written now, the next call does it.
func (c *syncCall) endSuspicion(ctx context.Context) {
	if c.cleared {
		return
	}
	c.cleared = true
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, _, _ = c.heard.join(heardFrom{c.machine, c.req.Epoch}).answer(ctx) // logged by clearSuspicion
}

// heardFrom is a machine, in its present epoch, that a call has come from.
type heardFrom struct {
	machine berth.MachineID
	epoch   int64
}

func newSuspicions(d *core) *gather[heardFrom, struct{}] {
	ask := func(ctx context.Context, heard []heardFrom) (map[heardFrom]struct{}, error) {
		return nil, clearSuspicion(ctx, d, heard)
	}
	return newGather(1, clearGather, readTimeout, ask)
}

// clearSuspicion puts machines that were heard back into service, many in one
// statement: with the table locked each machine's poll would wait on a connection of
// its own. It needs nothing but the machines' rows.
func clearSuspicion(ctx context.Context, d *core, heard []heardFrom) error {
	ids, epochs := make([]string, len(heard)), make([]int64, len(heard))
	for i, h := range heard {
		ids[i], epochs[i] = string(h.machine), h.epoch
	}
	tag, err := d.pool.Exec(ctx, `
		WITH suspected AS (
			SELECT m.id
			FROM unnest(@ids::text[], @epochs::bigint[]) AS x (id, epoch)
			JOIN machines m ON m.id = x.id AND m.epoch = x.epoch
			WHERE m.state = 'suspect'
			ORDER BY m.id
			FOR NO KEY UPDATE OF m
		)
		UPDATE machines m
		SET state = 'ready', reason = ''
		FROM suspected
		WHERE m.id = suspected.id`,
		pgx.NamedArgs{"ids": ids, "epochs": epochs})
	if err != nil {
		d.log.Warn("suspicion of machines not cleared, their next calls retry", "machines", len(heard), "err", err)
		return err
	}
	if tag.RowsAffected() > 0 {
		d.hub.Publish(TopicQueue, "")
	}
	return nil
}
