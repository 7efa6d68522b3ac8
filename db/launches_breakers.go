package db

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/internal/control/cloud"
)

// breakerArgs returns the scopes and keys of breakers.
func breakerArgs(list []cloud.Breaker) pgx.NamedArgs {
	scopes, keys := make([]string, len(list)), make([]string, len(list))
	for i, b := range list {
		scopes[i], keys[i] = string(b.Scope), b.Key
	}
	return pgx.NamedArgs{"scopes": scopes, "keys": keys}
}

// Breakers returns the named breakers that have a row, open or not, and the time of the database.
func (d *Launches) Breakers(ctx context.Context, named []cloud.Breaker) ([]cloud.Breaker, time.Time, error) {
	var now time.Time
	var list []cloud.Breaker
	err := d.readTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT to_jsonb(b)
			FROM breakers b
			WHERE (b.scope, b.key) IN (SELECT * FROM unnest(@scopes::text[], @keys::text[]))
			ORDER BY b.scope, b.key`, breakerArgs(named))
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowTo[cloud.Breaker])
		return err
	})
	return list, now, mapError(err, "breakers")
}

// Trip stores the result of f for the named breaker, whose row is locked, and ends its probe. A breaker
// without a row has step 0.
func (d *Launches) Trip(ctx context.Context, named cloud.Breaker,
	f func(b cloud.Breaker, now time.Time) cloud.Breaker) error {
	err := d.tx(ctx, func(tx pgx.Tx) error { return trip(ctx, tx, named, f) })
	return mapError(err, "breaker "+named.Key)
}

// trip is Trip within a transaction.
func trip(ctx context.Context, tx pgx.Tx, named cloud.Breaker,
	f func(b cloud.Breaker, now time.Time) cloud.Breaker) error {
	args := pgx.NamedArgs{"scope": named.Scope, "key": named.Key}
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
		SELECT CASE WHEN until = '-infinity' THEN 0 ELSE step END, reason, nullif(until, '-infinity'), at,
			clock_timestamp()
		FROM breakers
		WHERE scope = @scope AND key = @key
		FOR NO KEY UPDATE`, args).Scan(&b.Step, &b.Reason, &until, &b.At, &now)
	if err != nil {
		return err
	}
	if until != nil {
		b.Until = *until
	}
	b = f(b, *now)
	until = &b.Until
	if b.Until.IsZero() {
		until = nil
	}
	_, err = tx.Exec(ctx, `
		UPDATE breakers
		SET until = @until, step = @step, reason = @reason, at = @at, probe = '', probe_at = NULL
		WHERE scope = @scope AND key = @key`,
		pgx.NamedArgs{"scope": b.Scope, "key": b.Key, "until": until, "step": b.Step, "reason": b.Reason,
			"at": b.At})
	return err
}

// closeBreakers deletes the breakers of a launch whose instance was seen, unless they were tripped after its
// last send: the cloud may have lost its room since. The breaker of joins stays, since the machine may have less than
// its offer.
func closeBreakers(ctx context.Context, tx pgx.Tx, r cloud.Record) error {
	list := slices.DeleteFunc(r.Request().Breakers(), func(b cloud.Breaker) bool { return b.Scope == cloud.ScopeJoin })
	return closeOlder(ctx, tx, r, list)
}

// closeOlder deletes the breakers of a list that were tripped before the last send of a launch.
func closeOlder(ctx context.Context, tx pgx.Tx, r cloud.Record, list []cloud.Breaker) error {
	args := breakerArgs(list)
	args["machine"], args["n"] = r.Machine, r.N
	_, err := tx.Exec(ctx, `
		DELETE FROM breakers b
		USING launches l
		WHERE l.machine = @machine AND l.n = @n AND b.at <= l.last_sent_at
		  AND (b.scope, b.key) IN (SELECT * FROM unnest(@scopes::text[], @keys::text[]))`, args)
	return err
}

// refuses returns the open breaker that forbids the first send of a launch of the scaler, or whose probe
// is another launch; ok is false if the launch may be sent.
func refuses(ctx context.Context, tx pgx.Tx, r cloud.Record) (b cloud.Breaker, ok bool, err error) {
	args := breakerArgs(r.Request().Breakers())
	args["probe"] = fmt.Sprintf("%s/%d", r.Machine, r.N)
	err = tx.QueryRow(ctx, `
		SELECT to_jsonb(b)
		FROM breakers b
		WHERE (b.scope, b.key) IN (SELECT * FROM unnest(@scopes::text[], @keys::text[]))
		  AND (b.until IS NULL OR b.until > '-infinity' AND b.probe <> @probe)
		ORDER BY b.scope, b.key
		LIMIT 1`, args).Scan(&b)
	if errors.Is(err, pgx.ErrNoRows) {
		return b, false, nil
	}
	return b, err == nil, err
}

// admitSend decides on the first send of a launch of the scaler, at a time of the caller's clock. It returns
// the launch as failed if a breaker forbids the send, and ErrTried if another launch of the offering is to
// be answered first. Launches of other actors are always sent.
//
// The lock of the offering lasts until the send is committed, so two launches never both find that none is
// under way. The sends are read before the breakers: a refusal is in its breaker before its launch has the
// answer.
func admitSend(ctx context.Context, tx pgx.Tx, r cloud.Record, now time.Time) (cloud.Record, error) {
	if r.Actor != ScalerActor || r.State != cloud.LaunchRequested {
		return r, nil
	}
	args := pgx.NamedArgs{"key": r.Request().Breakers()[0].Key, "machine": r.Machine, "n": r.N, "now": now,
		"provider": r.Provider, "region": r.Region, "zone": r.Zone, "type": r.Type, "market": r.Market,
		"free": cloud.FreeFor, "tried": cloud.TriedFor}
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('offering ' || @key, 0))`, args)
	if err != nil {
		return r, err
	}
	var tried bool
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM launches l
			WHERE (l.provider, l.region, l.zone, l.type, l.market) = (@provider, @region, @zone, @type, @market)
			  AND l.state = 'sent' AND l.sends > l.refusals AND l.last_sent_at > @now::timestamptz - @tried::interval
			  AND (l.machine, l.n) <> (@machine, @n)
		) AND NOT EXISTS (
			SELECT 1
			FROM launches l
			WHERE (l.provider, l.region, l.zone, l.type, l.market) = (@provider, @region, @zone, @type, @market)
			  AND l.instance <> '' AND l.answered_at > @now::timestamptz - @free::interval)`, args).Scan(&tried)
	if err != nil {
		return r, err
	}
	b, refused, err := refuses(ctx, tx, r)
	switch {
	case err != nil:
		return r, err
	case refused:
		return r.Withheld(b), nil
	case tried:
		return r, cloud.ErrTried
	}
	return r, nil
}
