package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
)

// launchDocument is row l of launches as a cloud.Record, next to row c of cluster.
//
// A machine that is not retired has joined after the launch was requested, if not with the launch's join
// token then with one of an admin. A retired one belongs to the launch only if the launch has seen its
// join.
const launchDocument = `(to_jsonb(l) - 'request') || jsonb_build_object('cluster', c.id, 'current', c.incarnation,
		'unlisted', c.incarnation > 1 AND NOT EXISTS (
			SELECT 1 FROM cloud_listings s WHERE s.provider = l.provider AND s.incarnation = c.incarnation)) ||
	coalesce((
		SELECT jsonb_strip_nulls(jsonb_build_object('machine_state', m.state, 'drain_deadline', m.drain_deadline,
			'other_host', l.joined_at IS NOT NULL AND m.joined_token NOT IN ('', l.join_token)))
		FROM machines m
		WHERE m.id = l.machine
		  AND (m.state <> 'retired' OR l.joined_at IS NOT NULL OR l.state IN ('serving', 'draining'))), '{}')`

// Request creates launches and returns them, in the order of the machines. A repeated call with the
// same request id creates nothing more. A machine whose last launch is not settled, and a name that
// a machine in service has, are conflicts. After a restore, a provider is unavailable until its
// instances were listed.
//
// The launch reserves its money in the same transaction. A launch for a tenant is refused unless the burst
// policies of the tenant permit it and have the money: see SlugBurstForbidden and SlugBurstLimit.
func (d *Launches) Request(ctx context.Context, r cloud.Request, machines []berth.MachineID, requestID,
	actor string) ([]cloud.Record, error) {
	var list []cloud.Record
	err := d.tx(ctx, func(tx pgx.Tx) error {
		list = list[:0]
		if err := lockBurst(ctx, tx, r.Tenant); err != nil {
			return err
		}
		for _, m := range machines {
			l, err := requestLaunch(ctx, tx, r, m, requestID, actor)
			if err != nil {
				return err
			}
			list = append(list, l)
		}
		if r.Tenant == "" {
			return nil
		}
		return keepTenant(ctx, tx, r.Tenant)
	})
	if err != nil {
		return nil, mapError(err, "launch")
	}
	for _, l := range list {
		d.hub.Publish(TopicLaunch, string(l.Machine))
	}
	return list, nil
}

// requestLaunch creates the next launch of a machine, or returns the last one if the call is a
// repeat. Two calls for one machine at once meet at the primary key.
func requestLaunch(ctx context.Context, tx pgx.Tx, r cloud.Request, m berth.MachineID, requestID,
	actor string) (cloud.Record, error) {
	args := namedArgs{"machine": m, "request": requestID}
	last, err := lockLaunch(ctx, tx, cloud.Ref{Machine: m})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		return last, err
	default:
		var same bool
		err := tx.QueryRow(ctx, `
			SELECT request_id = @request AND @request <> ''
			FROM launches
			WHERE machine = @machine AND n = @n`,
			namedArgs{"machine": m, "n": last.N, "request": requestID}).Scan(&same)
		if err != nil || same {
			return last, err
		}
		if !last.State.Settled() {
			return last, berth.Errorf(berth.CodeConflict, "launch %d of machine %s is %s; the machine can be launched "+
				"again once that launch is gone or failed", last.N, m, last.State)
		}
	}
	var state berth.MachineState
	err = tx.QueryRow(ctx, `SELECT state FROM machines WHERE id = @machine`, args).Scan(&state)
	if err == nil && state != berth.MachineRetired {
		return last, &berth.Error{Code: berth.CodeConflict, Slug: SlugMachineExists,
			Message: fmt.Sprintf("machine %s exists and is %s; choose another name", m, state)}
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return last, err
	}
	var cluster string
	var incarnation int64
	if err := tx.QueryRow(ctx, `SELECT id, incarnation FROM cluster`).Scan(&cluster, &incarnation); err != nil {
		return last, err
	}
	if err := awaitListing(ctx, tx, r.Provider, incarnation); err != nil {
		return last, err
	}
	if err := admitLaunch(ctx, tx, r); err != nil {
		return last, err
	}
	n := last.N + 1
	_, err = tx.Exec(ctx, `
		INSERT INTO launches (machine, n, pool, provider, region, zone, type, market, price, tenant, reserved,
			incarnation, token, request_id, actor, shape)
		SELECT @machine, @n, @pool, @provider, @region, @zone, @type, @market, @price, @tenant, @reserved,
			@incarnation, @token, @request, @actor, coalesce((
				SELECT jsonb_build_object('cpus', o.cpus, 'memory_mib', o.memory_mib, 'gpus', o.gpus,
					'gpu_type', o.gpu_type)
				FROM offers o
				WHERE (o.provider, o.region, o.zone, o.type, o.market) = (@provider, @region, @zone, @type, @market)
			), '{}')`,
		namedArgs{"machine": m, "n": n, "pool": r.Pool, "provider": r.Provider, "region": r.Region, "zone": r.Zone,
			"type": r.Type, "market": r.Market, "price": r.Price, "tenant": string(r.Tenant), "reserved": r.Reserve(),
			"incarnation": incarnation, "request": requestID,
			"token": cloud.Token(cluster, fmt.Sprint(incarnation), m, n), "actor": actor})
	if err != nil {
		return last, err
	}
	return lockLaunch(ctx, tx, cloud.Ref{Machine: m, N: n})
}

// awaitListing fails while the instances of a provider were not listed since a restore of the database.
func awaitListing(ctx context.Context, tx pgx.Tx, provider string, incarnation int64) error {
	var restored bool
	err := tx.QueryRow(ctx, `
		SELECT @incarnation > 1 AND NOT EXISTS (
			SELECT 1 FROM cloud_listings WHERE provider = @provider AND incarnation = @incarnation)`,
		namedArgs{"provider": provider, "incarnation": incarnation}).Scan(&restored)
	if err == nil && restored {
		return berth.Errorf(berth.CodeUnavailable, "a backup of the database was restored, and the instances of "+
			"provider %s were not listed since; try again in a minute", provider)
	}
	return err
}

// lockLaunch locks a launch and then its join token, and returns the row with the join of the token.
// A join is therefore in the record, or waits until this transaction has ended. N 0 means the last
// launch of the machine. A missing row is pgx.ErrNoRows.
func lockLaunch(ctx context.Context, tx pgx.Tx, ref cloud.Ref) (r cloud.Record, err error) {
	args := namedArgs{"machine": ref.Machine, "n": ref.N}
	var token string
	var joined *time.Time
	err = tx.QueryRow(ctx, `
		SELECT n, join_token, joined_at
		FROM launches
		WHERE machine = @machine AND (n = @n OR @n = 0)
		ORDER BY n DESC
		LIMIT 1
		FOR NO KEY UPDATE`, args).Scan(&ref.N, &token, &joined)
	if err != nil {
		return r, err
	}
	if token != "" && joined == nil {
		err := tx.QueryRow(ctx, `SELECT used_at FROM join_tokens WHERE id = @id FOR NO KEY UPDATE`,
			namedArgs{"id": token}).Scan(&joined)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return r, err
		}
		if joined != nil {
			_, err := tx.Exec(ctx, `UPDATE launches SET joined_at = @joined WHERE machine = @machine AND n = @n`,
				namedArgs{"machine": ref.Machine, "n": ref.N, "joined": joined})
			if err != nil {
				return r, err
			}
		}
	}
	err = tx.QueryRow(ctx, `
		SELECT `+launchDocument+`
		FROM launches l, cluster c
		WHERE l.machine = @machine AND l.n = @n`,
		namedArgs{"machine": ref.Machine, "n": ref.N}).Scan(&r)
	return r, err
}

// Current returns the last launch of a machine with the time of the database.
func (d *Launches) Current(ctx context.Context, machine berth.MachineID) (r cloud.Record, now time.Time, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if r, err = lockLaunch(ctx, tx, cloud.Ref{Machine: machine}); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	})
	return r, now, mapError(err, "launch of machine "+string(machine))
}

// Change locks a launch, calls f with the row and the time of the database, and stores its result.
// f may run more than once; if it fails, nothing is stored. Change returns the stored row. The first
// sight of an instance closes the breakers of its launch, apart from the breaker of joins, see tripEnds. Each answer
// to a send but throttling closes the breaker of throttling.
func (d *Launches) Change(ctx context.Context, ref cloud.Ref,
	f func(r cloud.Record, now time.Time) (cloud.Record, error)) (cloud.Record, error) {
	var after cloud.Record
	poke := false
	err := d.tx(ctx, func(tx pgx.Tx) error {
		before, err := lockLaunch(ctx, tx, ref)
		if err != nil {
			return err
		}
		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		if after, err = f(before, now); err != nil {
			return err
		}
		if before.Instance == "" && after.Instance != "" {
			if err := closeBreakers(ctx, tx, before); err != nil {
				return err
			}
		}
		if err := tripEnds(ctx, tx, before, after, now); err != nil {
			return err
		}
		poke = !after.StopAt.Equal(before.StopAt) || !after.StopDeadline.Equal(before.StopDeadline)
		if err := storeLaunch(ctx, tx, after); err != nil {
			return err
		}
		switch {
		case after.Refusals == before.Refusals, after.ErrorKind == cloud.Throttle:
			return nil
		case after.ErrorKind == cloud.Unsent:
			return leaveThrottle(ctx, tx, before)
		}
		// The cloud has treated the call.
		return closeOlder(ctx, tx, before, breakerArgs([]cloud.Breaker{before.Request().ThrottleBreaker()}, ""))
	})
	if err != nil {
		return after, mapError(err, "launch of machine "+string(ref.Machine))
	}
	if poke {
		d.hub.Publish(TopicLaunch, string(ref.Machine))
	}
	return after, nil
}

// storeLaunch writes the columns of a launch that change. It deletes a request that is not sent
// again, and revokes a join token whose instance may not join.
func storeLaunch(ctx context.Context, tx pgx.Tx, r cloud.Record) error {
	if r.State.Settled() {
		r.DueAt = time.Time{}
	}
	document, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE launches l
		SET (state, request_hash, request_key, join_token, sends, refusals, sent_at, last_sent_at, doubt_at,
			answered_at, instance, instance_state, seen_at, stop_at, stop_deadline, stop_reason, stop_actor,
			stop_incarnation, terminates, terminate_at, ended_first_at, ended_last_at, error_kind, error, reason,
			due_at, request)
		  = (d.state, d.request_hash, d.request_key, d.join_token, d.sends, d.refusals, d.sent_at, d.last_sent_at,
			d.doubt_at, d.answered_at, d.instance, d.instance_state, d.seen_at, d.stop_at, d.stop_deadline,
			d.stop_reason, d.stop_actor, d.stop_incarnation, d.terminates, d.terminate_at, d.ended_first_at,
			d.ended_last_at, d.error_kind, d.error, d.reason, d.due_at, CASE WHEN @keeps THEN l.request END)
		FROM jsonb_populate_record(NULL::launches, @document) d
		WHERE l.machine = d.machine AND l.n = d.n`,
		namedArgs{"document": document, "keeps": r.KeepsRequest()})
	if err != nil || r.JoinToken == "" || r.Admits() {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE join_tokens
		SET expires_at = least(expires_at, now())
		WHERE id = @id AND used_at IS NULL`,
		namedArgs{"id": r.JoinToken})
	return err
}

// Send commits that the request of a launch is about to be sent, and returns the request. The first
// send creates the join token, and build makes the request from its secret; every further send
// returns the stored request. It fails with cloud.ErrNotSent if the launch is not to be sent now, which has
// failed if a breaker forbids it, with cloud.ErrTried if other launches of the offering have to be
// answered first, and with a *cloud.PauseError while the cloud throttles; see admitSend.
func (d *Launches) Send(ctx context.Context, ref cloud.Ref, l cloud.Limits, clock func(time.Time) time.Time,
	build func(r cloud.Record, joinSecret string) (cloud.Sealed, error)) (r cloud.Record, s cloud.Sealed, err error) {
	withheld := false
	err = d.tx(ctx, func(tx pgx.Tx) error {
		s = cloud.Sealed{} // of a try before, whose transaction did not commit
		if r, err = lockLaunch(ctx, tx, ref); err != nil {
			return err
		}
		var now time.Time
		err := tx.QueryRow(ctx, `
			SELECT clock_timestamp(), l.request
			FROM launches l
			WHERE l.machine = @machine AND l.n = @n`,
			namedArgs{"machine": ref.Machine, "n": ref.N}).Scan(&now, &s.Request)
		if err != nil {
			return err
		}
		if r, err = admitSend(ctx, tx, r, clock(now)); err != nil {
			return err
		}
		if withheld = r.State == cloud.LaunchFailed; withheld {
			if err := storeLaunch(ctx, tx, r); err != nil {
				return err
			}
			return closeForOlder(ctx, tx, r)
		}
		s.Hash, s.KeyID = r.Hash, r.KeyID
		id := r.JoinToken
		if r.Hash == "" {
			var text string
			if id, text, err = launchToken(ctx, tx, r); err != nil {
				return err
			}
			if s, err = build(r, text); err != nil {
				return err
			}
		}
		if r, err = r.Send(s.Hash, s.KeyID, id, l, clock(now)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE launches
			SET request = @request, request_hash = @hash, join_token = @join
			WHERE machine = @machine AND n = @n AND request IS NULL`,
			namedArgs{"machine": ref.Machine, "n": ref.N, "request": s.Request, "hash": s.Hash, "join": id})
		if err != nil {
			return err
		}
		if err := demandIdentity(ctx, tx, id, s.Identity); err != nil {
			return err
		}
		return storeLaunch(ctx, tx, r)
	})
	if err == nil && withheld {
		err = cloud.ErrNotSent
	}
	if _, waits := errors.AsType[*cloud.PauseError](err); waits ||
		errors.Is(err, cloud.ErrNotSent) || errors.Is(err, cloud.ErrTried) {
		return r, s, err
	}
	return r, s, mapError(err, "launch of machine "+string(ref.Machine))
}

// launchToken creates the join token of a launch, which admits its machine alone. The admin who ordered
// the launch has approved the machine.
func launchToken(ctx context.Context, tx pgx.Tx, r cloud.Record) (id, text string, err error) {
	id, text, sum := mintToken(joinTokenPrefix)
	_, err = tx.Exec(ctx, `
		INSERT INTO join_tokens (id, sha256, pool, labels, machines, approves, created_by, expires_at)
		VALUES (@id, @sha256, @pool, @labels, @machine, true, @actor,
			now() + @ttl_ms::bigint * interval '1 millisecond')`,
		namedArgs{"id": id, "sha256": sum, "pool": r.Pool, "machine": r.Machine, "actor": r.Actor,
			"labels": map[string]string{},
			"ttl_ms": cloud.JoinTokenTTL.Milliseconds()})
	return id, text, err
}
