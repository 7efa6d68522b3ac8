package db

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	"berth"
	"berth/wire"
)

// session is one reading of a machine: its session and its full set of assignments. A
// reservation is in the set while the machine may claim it, or if it has orders. A
// reservation whose claim would be refused is left out, because the agent would claim it
// again and again.
type session struct {
	state        berth.MachineState
	epoch        int64
	agentBoot    string
	seq          int64    // of the last stored report; only reporting.lock reads it
	mark         markRead // from the same moment as the assignments
	engineSilent bool     // the row says that the container engine does not answer
	assignments  []wire.Assignment
	asked        []wire.SessionOrder  // sessions of users that wait for the machine
	followed     []berth.AllocationID // members whose unfinished line is to be read
	generation   int64                // of the hints that this reading includes; see Hub.Generation
	sum          string               // digest of the set; "" before the first call of digest
}

// current is check, and additionally refuses a machine that is ahead of the database.
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

// check returns an error unless boot and epoch identify the machine's current session.
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

// errRetired returns the error for the agent of a removed machine.
func errRetired(machine berth.MachineID) error {
	return &berth.Error{Code: berth.CodeForbidden, Slug: berth.SlugMachineRetired,
		Message: fmt.Sprintf("machine %s was removed from the cluster; join it again to use it", machine)}
}

// Session identifies the session in which a caller writes.
type Session struct {
	AgentBoot string // identifies the agent process
	Epoch     int64
}

const ttlSeconds = int(berth.MachineLeaseTTL / time.Second)

// answer adds the results of the reports to a response.
func (h heard) answer(r wire.SyncResponse) wire.SyncResponse {
	r.Started, r.Stale, r.Refused = h.started, h.stale, h.refused
	if h.quarantined { // the next registration judges each container
		r.Started, r.Stale = nil, nil
	}
	if h.mark != nil && (r.Watermark == nil || h.mark.Number < r.Watermark.Number) {
		r.Watermark = h.mark // the older of the two, since the answer is from both moments
	}
	return r
}

// response returns the machine's set of assignments. It leaves the assignments out if
// digest, the agent's, is the digest of the same set.
func (s *session) response(digest string) wire.SyncResponse {
	r := wire.SyncResponse{TTLSeconds: ttlSeconds, Digest: s.digest(), Watermark: s.mark.now()}
	if r.Digest != digest {
		r.Changed, r.Assignments, r.Sessions, r.Followed = true, s.assignments, s.asked, s.followed
	}
	return r
}

// digest identifies the set by its content. An empty set also has a digest, so that an
// agent can distinguish an empty set from no answer.
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
	for _, o := range s.asked {
		if err := e.Encode(o); err != nil {
			panic("session order does not marshal: " + err.Error())
		}
	}
	// No followed member adds nothing, so that the digest stays the one of the version before.
	for _, id := range s.followed {
		fmt.Fprintf(h, "followed %d\n", id)
	}
	s.sum = hex.EncodeToString(h.Sum(nil))
	return s.sum
}

// Sync renews the machine's lease, stores its reports, and returns its assignments as soon
// as they differ from the agent's set, or after the wait.
//
// The renewal starts first and depends on nothing else: it has its own connections, and its
// statement touches only machine_leases. If the other statements cannot be executed in
// time, because another session has locked a table or all connections are in use, a call
// without reports still learns at its end that the lease was renewed. It then gets no
// assignments, and the agent keeps its set. A call with reports gets an error of code
// unavailable, and must be repeated.
//
// A caller whose session is not current gets ErrStaleEpoch and has changed nothing. Calls
// with reports carry an increasing seq; a call that was overtaken by a later one is
// ignored, and answered like any other. The answer to a brief call contains only the
// results of its reports; the set, which may be long, is read only for polls.
func (d *Agents) Sync(ctx context.Context, machine berth.MachineID, req wire.SyncRequest) (wire.SyncResponse, error) {
	c := syncCall{Agents: d, machine: machine, req: req, arrived: time.Now(),
		wait: min(time.Duration(req.WaitMS)*time.Millisecond, berth.SyncWait)}
	c.renewal = d.renewals.begin(leaseKey{machine, req.AgentBoot, req.Epoch})
	var done context.CancelFunc
	c.bounded, done = context.WithDeadline(ctx, c.arrived.Add(c.limit()))
	defer done()
	noticed, err := c.takeFirst()
	if err != nil {
		return wire.SyncResponse{}, err
	}
	answer, err := c.run(ctx)
	answer.Noticed = noticed
	return answer, err
}

// takeFirst stores the parts of the call that precede its reports, within half of the call's limit: while they
// wait for a locked table, the reports and the set may need other tables. For the same reason a cloud's notice
// has half of that time if members are stuck as well. takeFirst returns the confirmation of the notice.
func (c *syncCall) takeFirst() (noticed string, err error) {
	if !c.precedes() {
		return "", nil
	}
	half, cancel := context.WithTimeout(c.bounded, c.limit()/2)
	defer cancel()
	forNotice := half
	if len(c.req.Stuck) > 0 {
		forNotice, cancel = context.WithTimeout(half, c.limit()/4)
		defer cancel()
	}
	if noticed, err = c.takeNotice(forNotice); err != nil {
		return "", err
	}
	return noticed, c.takeUnkillable(half)
}

// run stores the reports of the call and returns its answer.
func (c *syncCall) run(ctx context.Context) (wire.SyncResponse, error) {
	if c.reports() {
		if err := c.report(); err != nil {
			return wire.SyncResponse{}, err
		}
		if c.req.Brief && c.said.known {
			return c.said.answer(wire.SyncResponse{TTLSeconds: ttlSeconds, Renewed: true, Digest: c.req.Digest}), nil
		}
	}
	return c.poll(ctx)
}

// syncCall is the state of one Sync call.
type syncCall struct {
	*Agents
	machine berth.MachineID
	req     wire.SyncRequest
	arrived time.Time
	wait    time.Duration   // counted from arrived
	bounded context.Context // ends after limit; the context of all statements before finish
	renewal renewal
	said    heard // results of the reports
	cleared bool  // an end of the suspicion was already requested
	noted   bool  // the condition of the container engine was already compared with the row
}

// reports reports whether the call has anything to store besides the renewal.
func (c *syncCall) reports() bool {
	return len(c.req.Reports) > 0 || len(c.req.Gone) > 0 || len(c.req.GPUs) > 0 || c.req.Cache != nil
}

// precedes reports whether the call has anything to store before its reports.
func (c *syncCall) precedes() bool { return c.req.CloudNotice != nil || len(c.req.Stuck) > 0 }

// Time limits of a call, counted from its arrival.
const (
	// reportTimeout bounds the storing of reports, and of what precedes them. It is shorter than the agent's own
	// time limit, so that the agent gets an error instead of a lost connection.
	reportTimeout = 10 * time.Second

	// readOver is the time after the wait in which a last read may end.
	readOver = 500 * time.Millisecond
)

// limit returns the time within which all statements of the call end, except for the renewal and for the
// statements of finish. An agent sends its next poll, and with it the next renewal, after the answer to this
// one. Without a common limit, each table that cannot be read would delay the renewal by one more time limit.
// No poll waits for the answer to a brief call, so a notice that comes with one has as much time as reports: a
// slow database stores it nevertheless.
func (c *syncCall) limit() time.Duration {
	if c.reports() || c.req.Brief && c.precedes() {
		return reportTimeout + readTimeout
	}
	return max(c.wait+readOver, readTimeout)
}

// report stores the reports, readTimeout before the end of the call's limit at the latest.
func (c *syncCall) report() (err error) {
	end, _ := c.bounded.Deadline()
	ctx, cancel := context.WithDeadline(c.bounded, end.Add(-readTimeout))
	defer cancel()
	c.said, err = c.Agents.report(ctx, c.machine, c.req)
	if err != nil && ctx.Err() != nil {
		return berth.Errorf(berth.CodeUnavailable, "reports of machine %s: the database did not store them in time",
			c.machine)
	}
	return mapError(err, "reports of machine "+string(c.machine))
}

// readRetry is the pause before the next read after a failed read of a set.
const readRetry = time.Second

// poll returns an answer when the set differs from the caller's, when the caller must learn
// the results of its reports, or after the wait.
func (c *syncCall) poll(ctx context.Context) (wire.SyncResponse, error) {
	// The subscription precedes the first read, so a change after the read ends the wait.
	hints := c.hub.Subscribe(TopicMachine, string(c.machine))
	defer hints.Close()
	// A part of the wait may have passed in the statements before.
	deadline := time.NewTimer(time.Until(c.arrived.Add(c.wait)))
	defer deadline.Stop()
	for first := true; ; first = false {
		// Only the first read may wait for other calls: later ones follow a hint.
		var patient <-chan struct{}
		if first && c.wait >= 2*readGather {
			patient = hints.C
		}
		s, err := c.sessions.read(c.bounded, c.machine, c.req, patient)
		var retry <-chan time.Time
		answer := wire.SyncResponse{TTLSeconds: ttlSeconds, Digest: c.req.Digest}
		switch {
		case err != nil && berth.CodeOf(err) != berth.CodeUnavailable:
			return wire.SyncResponse{}, err
		case err != nil:
			// Without the set, the renewal is the only proof that the session is current.
			if _, over, lost := c.renewal.result(ctx); over || lost != nil {
				return wire.SyncResponse{}, err
			}
			retry = time.After(readRetry)
			c.endSuspicion()
		default:
			err := s.current(c.bounded, c.core, c.machine, c.req.AgentBoot, c.req.Epoch, c.req.Watermark)
			if err != nil {
				return wire.SyncResponse{}, err
			}
			if s.state == berth.MachineSuspect {
				c.endSuspicion()
			}
			c.noteEngine(s)
			answer = s.response(c.req.Digest)
		}
		if answer.Changed || len(c.said.stale)+len(c.said.refused) > 0 || c.wait <= 0 {
			return c.finish(ctx, answer)
		}
		if s != nil && c.hub.Generation(c.machine) != s.generation {
			continue // a hint came while the set was read
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

// finish adds the result of the renewal to an answer.
func (c *syncCall) finish(ctx context.Context, answer wire.SyncResponse) (wire.SyncResponse, error) {
	renewed, over, err := c.renewal.result(ctx)
	if err != nil {
		return wire.SyncResponse{}, err
	}
	if over {
		// The session ended between the two statements; check returns the reason.
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
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

// endSuspicion returns a suspect machine to service, since it has called. If that cannot be
// written now, the next call tries again. The statement runs even if the call's limit leaves no time to wait
// for it.
func (c *syncCall) endSuspicion() {
	if c.cleared {
		return
	}
	c.cleared = true
	_, _, _ = c.heard.join(heardFrom{c.machine, c.req.Epoch}).answer(c.bounded) // clearSuspicion logs the error
}

// heardFrom identifies a machine that has called, with its epoch.
type heardFrom struct {
	machine berth.MachineID
	epoch   int64
}

// newSuspicions returns the gatherer for clearSuspicion.
func newSuspicions(d *core) *gather[heardFrom, struct{}] {
	ask := func(ctx context.Context, heard []heardFrom) (map[heardFrom]struct{}, error) {
		return nil, clearSuspicion(ctx, d, heard)
	}
	return newGather(1, clearGather, readTimeout, ask)
}

// clearSuspicion returns suspect machines that have called to service, many in one
// statement: if the table is locked, only one connection waits, instead of one per machine.
// It reads no table but machines.
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
		namedArgs{"ids": ids, "epochs": epochs})
	if err != nil {
		d.log.Warn("cannot clear the suspicion of machines, their next calls retry", "machines", len(heard), "err", err)
		return err
	}
	if tag.RowsAffected() > 0 {
		d.hub.Publish(TopicQueue, "")
	}
	return nil
}
