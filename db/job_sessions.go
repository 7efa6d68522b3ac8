package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Times of a session. A user connects within sessionAsked of the request, and the agent within
// SessionDial of that. The replica of an open session renews its row every SessionRenew.
const (
	sessionAsked = 30 * time.Second
	SessionDial  = 10 * time.Second
	SessionRenew = 10 * time.Second
	sessionLease = 60 * time.Second
)

// Caps on sessions that have not ended, over all replicas.
const (
	sessionsOfTenant  = 200
	sessionsOfMachine = 64
)

// SessionReplica is a process of berthd that holds the connection of a user.
type SessionReplica struct {
	ID   string // random, of the process
	URL  string // by which other replicas reach it
	Cert string // SHA-256 of its TLS certificate in hex; "": it speaks plain HTTP
}

// Asker is the caller that requests a session.
type Asker struct {
	Actor string // for records and events
	Token string // id of the token
}

// Ask records the request of a session in a running member, and returns the session. A request for a failed
// attempt that a debug job holds is a session of the debug job. Nothing
// reaches the machine before the user has connected; see Await.
func (d *JobSessions) Ask(
	ctx context.Context, tenant berth.TenantID, job berth.JobID, who Asker, req spec.NewSession,
) (made wire.JobSession, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		// One request at a time: the caps below count rows of concurrent requests.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('berth.job_sessions'))`); err != nil {
			return err
		}
		made = wire.JobSession{ID: string(berth.NewJobID(time.Now())), Kind: req.Kind, Job: job, Member: req.Member}
		target, err := sessionTarget(ctx, tx, tenant, job, req)
		if err != nil {
			return err
		}
		made.Job, made.Member = target.job, target.rank
		made.Attempt, made.Machine = target.attempt, target.machine
		if err := underSessionCaps(ctx, tx, target); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO job_sessions (id, tenant, job, attempt, rank, alloc, machine_id, epoch, token, actor, kind,
				request, nonce, expires_at)
			VALUES (@id, @tenant, @job, @attempt, @rank, @alloc, @machine, @epoch, @token, @actor, @kind, @request,
				@nonce, clock_timestamp() + @asked::interval)
			RETURNING expires_at`,
			namedArgs{
				"id": made.ID, "tenant": target.tenant, "job": target.job, "attempt": target.attempt,
				"rank":  target.rank,
				"alloc": target.alloc, "machine": target.machine, "epoch": target.epoch, "token": who.Token,
				"actor": who.Actor, "kind": string(req.Kind), "request": req, "nonce": berth.NewSecret(),
				"asked": sessionAsked,
			}).Scan(&made.ExpiresAt)
		if err != nil {
			return err
		}
		return recordAct(ctx, tx, made.ID, "asked", SessionEnd{})
	})
	return made, mapError(err, "job "+string(job))
}

// target is the member that a session is for.
type target struct {
	tenant  berth.TenantID
	job     berth.JobID // the requested one, or the debug job that holds an attempt of it
	rank    int
	attempt int
	alloc   int64
	machine berth.MachineID
	epoch   int64
}

// sessionTarget returns the running member that a request names, or the debug job that holds it, or the reason why
// there is none.
func sessionTarget(
	ctx context.Context, tx pgx.Tx, tenant berth.TenantID, job berth.JobID, req spec.NewSession,
) (target, error) {
	t, why := runningTarget(ctx, tx, tenant, job, req)
	if why == nil || berth.CodeOf(why) != berth.CodeConflict {
		return t, why
	}
	h, held, err := readHeld(ctx, tx, tenant, job, req.Attempt)
	switch {
	case err != nil:
		return t, err
	case !held:
		return t, why
	case h.rank != req.Member:
		return t, berth.Errorf(berth.CodeConflict, "of attempt %d of job %s member %d is held, and not member %d",
			h.attempt, job, h.rank, req.Member)
	case h.state != berth.Running:
		return t, berth.Errorf(berth.CodeConflict, "job %s, which holds attempt %d of job %s, is %s: try again once "+
			"it is running", h.debug, h.attempt, job, h.state)
	}
	return runningTarget(ctx, tx, tenant, h.debug, spec.NewSession{})
}

// heldAttempt is a failed attempt that a debug job holds.
type heldAttempt struct {
	debug         berth.JobID
	state         berth.State // of the debug job
	attempt, rank int
}

// readHeld returns the hold of an attempt of a job, of any attempt for 0. ok is false without a hold that has not
// ended.
func readHeld(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, job berth.JobID, attempt int) (
	h heldAttempt, ok bool, err error,
) {
	err = tx.QueryRow(ctx, `
		SELECT h.debug::text, d.state, h.attempt, h.rank
		FROM holds h
		JOIN jobs d ON d.id = h.debug
		WHERE h.job = @job AND (@tenant = '' OR d.tenant = @tenant) AND (@attempt = 0 OR h.attempt = @attempt)
		  AND d.state NOT IN ('succeeded', 'failed', 'canceled')
		ORDER BY h.attempt DESC
		LIMIT 1`, namedArgs{"job": job, "tenant": string(tenant), "attempt": attempt}).
		Scan(&h.debug, &h.state, &h.attempt, &h.rank)
	if isNoRows(err) {
		return h, false, nil
	}
	return h, err == nil, err
}

// runningTarget returns the running member that a request names, or the reason why there is
// none.
func runningTarget(
	ctx context.Context, tx pgx.Tx, tenant berth.TenantID, job berth.JobID, req spec.NewSession,
) (t target, err error) {
	t.job, t.rank = job, req.Member
	var state berth.State
	var kind berth.Kind
	var members int
	var alloc, epoch *int64
	var machine, allocState, phase *string
	err = tx.QueryRow(ctx, `
		SELECT j.tenant, j.state, j.kind, j.attempt, a.id, a.machine_id, a.state, a.phase, m.epoch,
			(SELECT count(*) FROM allocations x WHERE x.job = j.id AND x.attempt = j.attempt)
		FROM jobs j
		LEFT JOIN allocations a ON a.job = j.id AND a.attempt = j.attempt AND a.rank = @rank
		LEFT JOIN machines m ON m.id = a.machine_id
		WHERE j.id = @job AND (@tenant = '' OR j.tenant = @tenant)`,
		namedArgs{"job": job, "tenant": string(tenant), "rank": req.Member}).Scan(
		&t.tenant, &state, &kind, &t.attempt, &alloc, &machine, &allocState, &phase, &epoch, &members)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		// The caller has resolved the id, so the job may be archived.
		return t, berth.Errorf(berth.CodeConflict, "job %s has ended: only a running job can be entered", job)
	case err != nil:
		return t, err
	case kind != berth.KindJob:
		return t, berth.Errorf(berth.CodeConflict, "%s is %s: name one of its jobs", job, article(kind))
	case state != berth.Running:
		return t, berth.Errorf(berth.CodeConflict, "job %s is %s: only a running job can be entered", job, state)
	case req.Attempt > 0 && req.Attempt != t.attempt:
		return t, berth.Errorf(berth.CodeConflict, "job %s runs attempt %d and not %d", job, t.attempt, req.Attempt)
	case alloc == nil:
		return t, berth.Errorf(berth.CodeNotFound, "job %s has no member %d; it has %d, counted from 0", job,
			req.Member, members)
	case *allocState != string(berth.AllocActive) || *phase != string(berth.PhaseRunning) || epoch == nil:
		return t, berth.Errorf(berth.CodeConflict, "member %d of job %s does not run: it is %s", req.Member, job,
			*allocState)
	}
	t.alloc, t.machine, t.epoch = *alloc, berth.MachineID(*machine), *epoch
	return t, nil
}

// underSessionCaps returns an error while the tenant or the machine has as many sessions as it
// may have. The caller holds the lock of requests.
func underSessionCaps(ctx context.Context, tx pgx.Tx, t target) error {
	var ofTenant, ofMachine int
	err := tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE tenant = @tenant), count(*) FILTER (WHERE machine_id = @machine)
		FROM job_sessions
		WHERE expires_at > clock_timestamp()`,
		namedArgs{"tenant": t.tenant, "machine": t.machine}).Scan(&ofTenant, &ofMachine)
	switch {
	case err != nil:
		return err
	case ofTenant >= sessionsOfTenant:
		return berth.Errorf(berth.CodeCapacity, "tenant %s has %d sessions open; at most %d are allowed at once. "+
			"Close some, or try again later", t.tenant, ofTenant, sessionsOfTenant)
	case ofMachine >= sessionsOfMachine:
		return berth.Errorf(berth.CodeCapacity, "machine %s has %d sessions open; at most %d are allowed at once. "+
			"Close some, or try again later", t.machine, ofMachine, sessionsOfMachine)
	}
	return nil
}

// Await records that the user of a session has connected to a replica, and orders the machine to
// connect as well. A session takes one connection, by the token that requested it; for every
// other caller it does not exist.
func (d *JobSessions) Await(
	ctx context.Context, id, token string, at SessionReplica,
) (s wire.JobSession, err error) {
	if _, err := berth.ParseJobID(id); err != nil {
		return s, errNoSession(id)
	}
	err = d.pool.QueryRow(ctx, `
		UPDATE job_sessions
		SET state = 'waiting', replica = @replica, replica_url = @url, replica_cert = @cert,
			expires_at = clock_timestamp() + @dial::interval
		WHERE id = @id AND token = @token AND state = 'asked' AND expires_at > clock_timestamp()
		RETURNING id::text, kind, job, attempt, rank, machine_id, expires_at`,
		namedArgs{"id": id, "token": token, "replica": at.ID, "url": at.URL, "cert": at.Cert, "dial": SessionDial},
	).Scan(&s.ID, &s.Kind, &s.Job, &s.Attempt, &s.Member, &s.Machine, &s.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, errNoSession(id)
	}
	if err != nil {
		return s, mapError(err, "session "+id)
	}
	d.hub.Publish(TopicMachine, string(s.Machine))
	return s, nil
}

// errNoSession returns the error for a session that a caller cannot connect to.
func errNoSession(id string) error {
	return berth.Errorf(berth.CodeNotFound, "no session %s waits for this connection: each is good for one "+
		"connection, within seconds, by the token that requested it", id)
}

// Holder returns the replica that holds the user's connection of a session that waits for this
// machine.
func (d *JobSessions) Holder(ctx context.Context, id string, machine berth.MachineID) (r SessionReplica, err error) {
	if _, err := berth.ParseJobID(id); err != nil {
		return r, errNoSession(id)
	}
	err = d.pool.QueryRow(ctx, `
		SELECT replica, replica_url, replica_cert
		FROM job_sessions
		WHERE id = @id AND machine_id = @machine AND state = 'waiting' AND expires_at > clock_timestamp()`,
		namedArgs{"id": id, "machine": machine}).Scan(&r.ID, &r.URL, &r.Cert)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, errNoSession(id)
	}
	return r, mapError(err, "session "+id)
}

// Join records that the agent of a session has connected to the replica that holds the user's
// connection. It succeeds once, for the machine of the session in the epoch of the request, with
// the nonce of the order, and while the member still runs there. From then on the job counts as
// entered: the event names the user, and the result of a step is not reused.
func (d *JobSessions) Join(ctx context.Context, id string, machine berth.MachineID, nonce, replica string) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		job, attempt, event, err := enteredEvent(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := addEvent(ctx, tx, job, event); err != nil { // jobs are locked first
			return err
		}
		tag, err := tx.Exec(ctx, `
			UPDATE job_sessions s
			SET state = 'open', expires_at = clock_timestamp() + @lease::interval
			WHERE s.id = @id AND s.machine_id = @machine AND s.nonce = @nonce AND s.replica = @replica
			  AND s.state = 'waiting' AND s.expires_at > clock_timestamp()
			  AND EXISTS (SELECT 1 FROM machines m WHERE m.id = s.machine_id AND m.epoch = s.epoch)
			  AND `+sessionRuns,
			namedArgs{"id": id, "machine": machine, "nonce": nonce, "replica": replica, "lease": sessionLease})
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errNoSession(id)
		}
		_, err = tx.Exec(ctx, `DELETE FROM step_results WHERE job = $1 AND attempt IS NULL`, job)
		if err != nil {
			return fmt.Errorf("forget the result of attempt %d: %w", attempt, err)
		}
		return recordAct(ctx, tx, id, "began", SessionEnd{})
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return errNoSession(id)
	}
	return mapError(err, "session "+id)
}

// sessionRuns reports whether the member of a session s still runs.
const sessionRuns = `EXISTS (
				SELECT 1
				FROM allocations a
				JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
				WHERE a.id = s.alloc AND a.job = s.job AND a.state = 'active' AND a.phase = 'running')`

// enteredEvent reads a session and returns its job with the event of its begin.
func enteredEvent(ctx context.Context, tx pgx.Tx, id string) (job berth.JobID, attempt int, e wire.Event, err error) {
	var rank int
	var machine berth.MachineID
	var actor string
	var req spec.NewSession
	err = tx.QueryRow(ctx, `SELECT job, attempt, rank, machine_id, actor, request FROM job_sessions WHERE id = $1`, id).
		Scan(&job, &attempt, &rank, &machine, &actor, &req)
	e = wire.Event{
		Kind: wire.EventEntered, Attempt: attempt, Actor: actor, Detail: sessionText(req, rank),
		Facts: &wire.EventFacts{Rank: &rank, Machine: machine},
	}
	return job, attempt, e, err
}

// sessionText describes a session in an event.
func sessionText(req spec.NewSession, rank int) string {
	text := fmt.Sprintf("%s in member %d", req.Kind, rank)
	if command := req.Text(); command != "" {
		text += ": " + command
	}
	return text
}

// Renew extends the lease of an open session, and reports whether its member still runs there.
func (d *JobSessions) Renew(ctx context.Context, id string) (runs bool, err error) {
	err = d.pool.QueryRow(ctx, `
		UPDATE job_sessions s
		SET expires_at = clock_timestamp() + @lease::interval
		WHERE s.id = @id AND s.state = 'open'
		RETURNING `+sessionRuns, namedArgs{"id": id, "lease": sessionLease}).Scan(&runs)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return runs, mapError(err, "session "+id)
}

// SessionEnd is the end of a session, as its replica saw it.
type SessionEnd struct {
	BytesIn  int64 // from the user to the container
	BytesOut int64
	Exit     *int // of the command
	Cause    wire.SessionCause
}

// End deletes a session and records its end. A session that has ended already stays as it is. The
// end of a session that outlasts its job is recorded in the acts alone: a job that has ended has no
// further events.
func (d *JobSessions) End(ctx context.Context, id string, end SessionEnd) error {
	err := d.movedTx(ctx, func(tx pgx.Tx) error {
		job, _, event, err := enteredEvent(ctx, tx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		var state string
		err = tx.QueryRow(ctx, `SELECT state FROM job_sessions WHERE id = $1`, id).Scan(&state)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		live, err := lockLive(ctx, tx, job) // jobs are locked first
		if err != nil {
			return err
		}
		if state == "open" && live {
			event.Kind = wire.EventLeft
			event.Detail += "; " + end.text()
			if err := addEvent(ctx, tx, job, event); err != nil {
				return err
			}
		}
		if err := recordAct(ctx, tx, id, "ended", end); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM job_sessions WHERE id = $1 AND state = $2`, id, state)
		if err == nil && tag.RowsAffected() == 0 {
			return errMoved // another call has ended it, or the agent has joined
		}
		return err
	})
	return mapError(err, "session "+id)
}

// lockLive locks the row of a job, and reports whether the job has not ended.
func lockLive(ctx context.Context, tx pgx.Tx, job berth.JobID) (live bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT state NOT IN ('succeeded', 'failed', 'canceled')
		FROM jobs
		WHERE id = $1
		FOR NO KEY UPDATE`, job).Scan(&live)
	if isNoRows(err) { // it is archived
		return false, nil
	}
	return live, err
}

// text describes an end in an event.
func (e SessionEnd) text() string {
	if e.Exit != nil {
		return fmt.Sprintf("exit %d", *e.Exit)
	}
	return "ended: " + string(e.Cause)
}

// recordAct appends an entry to the acts, of a session whose row still exists.
func recordAct(ctx context.Context, tx pgx.Tx, id, event string, end SessionEnd) error {
	var req spec.NewSession
	if err := tx.QueryRow(ctx, `SELECT request FROM job_sessions WHERE id = $1`, id).Scan(&req); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO acts (event, session, tenant, actor, token, kind, job, attempt, member, machine_id, command, reason,
			bytes_in, bytes_out, exit, cause)
		SELECT @event, id, tenant, actor, token, kind, job, attempt, rank, machine_id, @command, @reason,
			@in, @out, @exit, @cause
		FROM job_sessions
		WHERE id = @id`,
		namedArgs{
			"id": id, "event": event, "command": req.Text(), "reason": req.Reason,
			"in": end.BytesIn, "out": end.BytesOut, "exit": end.Exit, "cause": string(end.Cause),
		})
	return err
}

// PruneActs deletes at most limit entries of the acts that are older than retention, the oldest first,
// and returns their number. The database keeps acts of the last day in any case.
func (d *JobSessions) PruneActs(ctx context.Context, term Term, retention time.Duration, limit int) (n int, err error) {
	err = d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		var before time.Time
		if err := tx.QueryRow(ctx, `
			SELECT set_config('berth.prune_acts_before', (now() - @retention::interval)::text, true)::timestamptz`,
			namedArgs{"retention": retention}).Scan(&before); err != nil {
			return err
		}
		// Ids ascend with time, almost: the oldest rows are read by id, and no others.
		tag, err := tx.Exec(ctx, `
			DELETE FROM acts
			WHERE id IN (SELECT id FROM acts ORDER BY id LIMIT @limit)
			  AND at < @before AND at < now() - interval '1 day'`, namedArgs{"before": before, "limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "acts")
}

// EndExpired ends the sessions whose users never connected, whose agents never did, or whose
// replica no longer renews them: at most limit. It returns the number of ended sessions.
func (d *JobSessions) EndExpired(ctx context.Context, limit int) (int, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT id::text, CASE state WHEN 'asked' THEN 'expired' WHEN 'waiting' THEN 'no_agent' ELSE 'replica_lost' END
		FROM job_sessions
		WHERE expires_at < clock_timestamp() - interval '5 seconds' -- a replica ends its own first
		ORDER BY expires_at
		LIMIT $1`, limit)
	if err != nil {
		return 0, mapError(err, "expired sessions")
	}
	type expired struct {
		ID    string
		Cause wire.SessionCause
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[expired])
	if err != nil {
		return 0, mapError(err, "expired sessions")
	}
	for i, s := range list {
		if err := d.End(ctx, s.ID, SessionEnd{Cause: s.Cause}); err != nil {
			return i, err
		}
	}
	return len(list), nil
}
