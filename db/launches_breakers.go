package db

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/internal/control/cloud"
)

// breakerArgs returns the scopes and keys of breakers, and the offer whose quotas are meant; "": none.
func breakerArgs(list []cloud.Breaker, covered string) namedArgs {
	scopes, keys := make([]string, len(list)), make([]string, len(list))
	for i, b := range list {
		scopes[i], keys[i] = string(b.Scope), b.Key
	}
	return namedArgs{"scopes": scopes, "keys": keys, "covered": covered}
}

// concernArgs returns the arguments of closes for a request.
func concernArgs(r cloud.Request) namedArgs { return breakerArgs(r.Breakers(), r.Covered()) }

// closes is true for a breaker b with one of the scopes and keys, or of a quota that covers the offer, as
// cloud.Request.Concerned is.
const closes = `((b.scope, b.key) IN (SELECT * FROM unnest(@scopes::text[], @keys::text[]))
	OR b.scope = 'quota' AND @covered = ANY (b.covers))`

// Breakers returns the breakers that concern a request and have a row, open or not, and the time of the database.
func (d *Launches) Breakers(ctx context.Context, r cloud.Request) ([]cloud.Breaker, time.Time, error) {
	var now time.Time
	var list []cloud.Breaker
	err := d.readTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT to_jsonb(b)
			FROM breakers b
			WHERE `+closes+` AND `+obeyed+` AND (b.until IS NULL OR b.until > '-infinity')
			ORDER BY b.scope, b.key`, concernArgs(r))
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowTo[cloud.Breaker])
		return err
	})
	return list, now, mapError(err, "breakers")
}

// mostClosed is the greatest number of breakers that Closed returns.
const mostClosed = 50

// Closed returns the open breakers that close more than one offer of a pool, of the providers that serve the pool. The
// ones without an end come first.
func (d *Launches) Closed(ctx context.Context, pool string, providers []string) ([]cloud.Breaker, error) {
	if len(providers) == 0 {
		return nil, nil
	}
	rows, err := d.pool.Query(ctx, `
		SELECT to_jsonb(b)
		FROM breakers b
		WHERE split_part(b.key, '/', 1) = ANY (@providers)
		  AND (b.scope IN ('provider', 'quota', 'throttle') OR b.scope = 'pool' AND split_part(b.key, '/', 2) = @pool)
		  AND (b.until IS NULL OR b.until > clock_timestamp())
		ORDER BY b.until DESC NULLS FIRST, b.scope, b.key
		LIMIT @limit`, namedArgs{"providers": providers, "pool": pool, "limit": mostClosed})
	if err != nil {
		return nil, mapError(err, "breakers")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[cloud.Breaker])
	return list, mapError(err, "breakers")
}

// Trip stores the result of f for the named breaker, whose row is locked, and ends its probe. A breaker
// without a row has step 0. The offers that the named breaker covers are added to the row. The settings of the named
// breaker replace the settings of the row if f trips the breaker, or if the row has none: while the breaker is open, a
// later refusal may be of other settings, which the leader would then not try.
func (d *Launches) Trip(ctx context.Context, named cloud.Breaker,
	f func(b cloud.Breaker, now time.Time) cloud.Breaker) error {
	err := d.tx(ctx, func(tx pgx.Tx) error { return trip(ctx, tx, named, f) })
	return mapError(err, "breaker "+named.Key)
}

// trip is Trip within a transaction.
func trip(ctx context.Context, tx pgx.Tx, named cloud.Breaker,
	f func(b cloud.Breaker, now time.Time) cloud.Breaker) error {
	args := namedArgs{"scope": named.Scope, "key": named.Key}
	covers := append([]string{}, named.Covers...) // an empty array is no null
	_, err := tx.Exec(ctx, `
		INSERT INTO breakers (scope, key, until, reason)
		VALUES (@scope, @key, '-infinity', 'none yet')
		ON CONFLICT DO NOTHING`, args)
	if err != nil {
		return err
	}
	b := named
	var now, until *time.Time
	err = tx.QueryRow(ctx, `
		SELECT CASE WHEN b.until = '-infinity' OR NOT `+obeyed+` THEN 0 ELSE b.step END, b.reason,
			nullif(b.until, '-infinity'), b.at, clock_timestamp()
		FROM breakers b
		WHERE b.scope = @scope AND b.key = @key
		FOR NO KEY UPDATE`, args).Scan(&b.Step, &b.Reason, &until, &b.At, &now)
	if err != nil {
		return err
	}
	if until != nil {
		b.Until = *until
	}
	before := b
	b = f(b, *now)
	tripped := b.Step != before.Step || !b.At.Equal(before.At)
	until = &b.Until
	if b.Until.IsZero() {
		until = nil
	}
	_, err = tx.Exec(ctx, `
		UPDATE breakers
		SET until = @until, step = @step, reason = @reason, at = @at, probe = '', probe_at = NULL,
			settings = CASE WHEN @settings <> '' AND (@tripped OR settings = '') THEN @settings ELSE settings END,
			covers = covers || ARRAY(SELECT c FROM unnest(@covers::text[]) c WHERE c <> ALL (covers))
		WHERE scope = @scope AND key = @key`,
		namedArgs{"scope": b.Scope, "key": b.Key, "until": until, "step": b.Step, "reason": b.Reason,
			"at": b.At, "settings": named.Settings, "tripped": tripped, "covers": covers})
	return err
}

// tripEnds trips the breaker of joins if the change of a launch ends an instance that has not joined, and the breaker
// of the provider if it gives up a launch, at a time, for which no replica could call the cloud.
func tripEnds(ctx context.Context, tx pgx.Tx, before, after cloud.Record, now time.Time) error {
	var b cloud.Breaker
	var kind cloud.Kind
	var why string
	switch {
	case before.NeverJoined(after):
		b, kind = before.Request().JoinBreaker(), cloud.Capacity
		why = fmt.Sprintf("machine %s has not joined: %s", after.Machine, after.Reason)
	case before.NeverCalled(after, now):
		answered, err := answeredSince(ctx, tx, before)
		if err != nil || answered {
			return err
		}
		b, kind = before.Request().ProviderBreaker(), cloud.Unsent
		why = fmt.Sprintf("no berthd could call the cloud for machine %s: %s", after.Machine, after.Reason)
	default:
		return nil
	}
	return trip(ctx, tx, b, func(b cloud.Breaker, now time.Time) cloud.Breaker { return b.Trip(kind, why, now) })
}

// answeredSince reports whether the cloud has answered another launch of the provider since the first send of a launch,
// so that some replica can call the cloud. A call that was not made has the kind unsent, in a row of the version before
// the kind throttle. So a throttled call is known by its breaker, which that version does not write.
func answeredSince(ctx context.Context, tx pgx.Tx, r cloud.Record) (answered bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM launches l
			WHERE l.provider = @provider AND l.answered_at > @since
			  AND (l.instance <> '' OR l.error_kind NOT IN ('unsent', 'throttle'))
			  AND (l.machine, l.n) <> (@machine, @n))
		  OR EXISTS (
			SELECT 1
			FROM breakers b
			WHERE b.scope = 'throttle' AND split_part(b.key, '/', 1) = @provider
			  AND b.until > '-infinity' AND b.at > @since)`,
		namedArgs{"provider": r.Provider, "since": r.SentAt, "machine": r.Machine, "n": r.N}).Scan(&answered)
	return answered, err
}

// closeBreakers deletes the breakers of a launch whose instance was seen, unless they were tripped after its
// last send: the cloud may have lost its room since. The breaker of joins stays, since the machine may have less than
// its offer.
func closeBreakers(ctx context.Context, tx pgx.Tx, r cloud.Record) error {
	list := slices.DeleteFunc(r.Request().Breakers(), func(b cloud.Breaker) bool { return b.Scope == cloud.ScopeJoin })
	return closeOlder(ctx, tx, r, breakerArgs(list, r.Request().Covered()))
}

// closeOlder deletes the breakers that the arguments of closes name and that were tripped before the last send of a
// launch.
func closeOlder(ctx context.Context, tx pgx.Tx, r cloud.Record, args namedArgs) error {
	args["machine"], args["n"] = r.Machine, r.N
	_, err := tx.Exec(ctx, `
		DELETE FROM breakers b
		USING launches l
		WHERE l.machine = @machine AND l.n = @n AND b.at <= l.last_sent_at AND `+closes, args)
	return err
}

// probeOf returns the name of a launch as the column probe has it.
func probeOf(r cloud.Record) string { return fmt.Sprintf("%s/%d", r.Machine, r.N) }

// unknownBefore is true for a breaker b of a quota or of a zone, which a leader of the version before does not know.
// Such a leader takes no probe of them when it requests a launch.
const unknownBefore = `(b.scope = 'quota' OR b.scope = 'pool' AND split_part(b.key, '/', 3) <> '')`

// refuses returns the breaker that forbids the first send of a launch of the scaler, since it is open or its probe is
// another launch; ok is false without one. Launches wait for the breaker of throttling, see throttled.
//
// A half-open breaker of unknownBefore forbids no send: the launch takes its probe if the probe is free, and fails with
// cloud.ErrTried otherwise.
func refuses(ctx context.Context, tx pgx.Tx, r cloud.Record) (b cloud.Breaker, ok bool, err error) {
	args := concernArgs(r.Request())
	args["probe"], args["rest"] = probeOf(r), probeRest
	rows, err := tx.Query(ctx, `
		SELECT to_jsonb(b) || jsonb_build_object('half_open', `+unknownBefore+` AND b.until <= clock_timestamp())
		FROM breakers b
		WHERE `+closes+` AND `+obeyed+` AND b.scope <> 'throttle'
		  AND (b.until IS NULL OR b.until > '-infinity' AND b.probe <> @probe)
		ORDER BY b.scope, b.key`, args)
	if err != nil {
		return b, false, err
	}
	type row struct {
		cloud.Breaker
		HalfOpen bool `json:"half_open"` // and of unknownBefore
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[row])
	if err != nil || len(list) == 0 {
		return b, false, err
	}
	for _, x := range list {
		if !x.HalfOpen {
			return x.Breaker, true, nil
		}
	}
	tag, err := tx.Exec(ctx, `
		UPDATE breakers b
		SET probe = @probe, probe_at = clock_timestamp()
		WHERE `+closes+` AND `+unknownBefore+`
		  AND b.until > '-infinity' AND b.until <= clock_timestamp() AND b.probe <> @probe AND `+freeProbe, args)
	if err == nil && tag.RowsAffected() < int64(len(list)) {
		err = cloud.ErrTried // a probe was taken; the end of the transaction gives back the others
	}
	return b, false, err
}
