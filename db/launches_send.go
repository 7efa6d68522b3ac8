package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/internal/control/cloud"
)

// Pauses of sends while a cloud throttles.
const (
	throttledRest = 5 * time.Second  // while another launch tries
	throttledMost = 30 * time.Second // of one pause: the limits of the launch are looked at meanwhile
)

// admitSend decides on a send of a launch, at a time of the caller's clock. All sends wait while the cloud throttles,
// with a *cloud.PauseError. For a launch of the scaler that has certainly no instance, admitSend returns the launch as
// failed if a breaker forbids the send, and ErrTried if other launches of the offering have to be answered first: at
// its first send, and at a repeat of sends that were throttled or not made. All other sends wait for the throttling
// alone.
//
// The lock of the offering lasts until the send is committed, so two launches never both find that none is
// under way. The sends are read before the breakers: a refusal is in its breaker before its launch has the
// answer.
func admitSend(ctx context.Context, tx pgx.Tx, r cloud.Record, now time.Time) (cloud.Record, error) {
	if r.Actor == ScalerActor && r.Uncreated() {
		after, err := admitFirst(ctx, tx, r, now)
		if err != nil || after.State == cloud.LaunchFailed {
			return after, err
		}
	}
	return throttled(ctx, tx, r, now)
}

// admitFirst is admitSend for a launch of the scaler that has certainly no instance, apart from throttling.
func admitFirst(ctx context.Context, tx pgx.Tx, r cloud.Record, now time.Time) (cloud.Record, error) {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('offering ' || @key, 0))`,
		namedArgs{"key": r.Request().Breakers()[0].Key})
	if err != nil {
		return r, err
	}
	tried, err := windowFull(ctx, tx, r, now)
	if err != nil {
		return r, err
	}
	b, refused, err := refuses(ctx, tx, r)
	switch {
	case err != nil:
		return r, err
	case refused:
		return r.Withheld(b, now), nil
	case tried:
		return r, cloud.ErrTried
	}
	return r, nil
}

// forOlder begins the reason of a row that closes an offer for leaders of the version before alone, see closeForOlder.
// This version obeys the breaker for which the row stands, and ignores the row: it would outlive the breaker, and be
// half open for a day. A refusal of the offer itself replaces the row. One that the version before records while the
// row is open is lost: this version then makes one more call.
const forOlder = `for leaders of the version before: `

// obeyed is true for a breaker b that this version obeys.
const obeyed = `NOT (b.scope = 'offering' AND starts_with(b.reason, '` + forOlder + `'))`

// closeForOlder closes the offer of a launch that was withheld for a quota, a throttled region or a zone of its pool,
// for as long as these are closed. A leader of the version before knows none of them, and would request such a launch
// in each pass. Of scope pool, only zones have an end. A row of a refusal of the offer itself stays: once its time has
// passed, such a leader requests one launch in some minutes.
func closeForOlder(ctx context.Context, tx pgx.Tx, r cloud.Record) error {
	args := concernArgs(r.Request())
	args["key"], args["for"] = r.Request().Breakers()[0].Key, forOlder
	_, err := tx.Exec(ctx, `
		INSERT INTO breakers AS b (scope, key, until, reason, at)
		SELECT 'offering', @key, w.until, @for || w.reason, w.at
		FROM (
			SELECT b.until, b.reason, b.at
			FROM breakers b
			WHERE b.scope IN ('quota', 'throttle', 'pool') AND b.until > clock_timestamp() AND `+closes+`
			ORDER BY b.until DESC
			LIMIT 1) w
		ON CONFLICT (scope, key) DO UPDATE
		SET until = excluded.until, reason = excluded.reason, at = excluded.at, step = 1
		WHERE b.until < excluded.until AND (b.until = '-infinity' OR NOT `+obeyed+`)`, args)
	return err
}

// windowFull reports whether the window of the offering is full: the number of its launches that may be without an
// answer. The window is 1 without a success in cloud.FreeFor, and without a bound after a success. After a refusal for
// want of capacity the window is one more than the successes since, so it doubles with each round of successes.
func windowFull(ctx context.Context, tx pgx.Tx, r cloud.Record, now time.Time) (full bool, err error) {
	const offering = `(l.provider, l.region, l.zone, l.type, l.market) = (@provider, @region, @zone, @type, @market)`
	err = tx.QueryRow(ctx, `
		SELECT CASE WHEN refused.at IS NULL THEN asked.n > 0 AND won.n = 0 ELSE asked.n > won.n END
		FROM (
			SELECT count(*) AS n
			FROM launches l
			WHERE `+offering+`
			  AND l.state = 'sent' AND l.sends > l.refusals AND l.last_sent_at > @now::timestamptz - @tried::interval
			  AND (l.machine, l.n) <> (@machine, @n)
		) asked, (
			SELECT max(l.answered_at) AS at
			FROM launches l
			WHERE `+offering+`
			  AND l.state = 'failed' AND l.error_kind = 'capacity'
			  AND l.answered_at > @now::timestamptz - @ramp::interval
		) refused, LATERAL (
			SELECT count(*) AS n
			FROM launches l
			WHERE `+offering+`
			  AND l.instance <> '' AND l.answered_at > greatest(@now::timestamptz - @free::interval, refused.at)
		) won`,
		namedArgs{"machine": r.Machine, "n": r.N, "now": now, "provider": r.Provider, "region": r.Region,
			"zone": r.Zone, "type": r.Type, "market": r.Market, "free": cloud.FreeFor, "tried": cloud.TriedFor,
			"ramp": cloud.RampFor}).Scan(&full)
	return full, err
}

// leaveThrottle ends the probe of throttling of a launch whose call was not made, so that other launches do not wait
// for an answer of the cloud.
func leaveThrottle(ctx context.Context, tx pgx.Tx, r cloud.Record) error {
	_, err := tx.Exec(ctx, `
		UPDATE breakers
		SET probe = '', probe_at = NULL
		WHERE scope = 'throttle' AND key = @key AND probe = @probe`,
		namedArgs{"key": r.Request().ThrottleBreaker().Key, "probe": probeOf(r)})
	return err
}

// throttled lets a send pass unless the cloud throttles calls of its region. The first send after the time of the
// breaker takes its probe, and the others wait for the answer. A launch that repeats its send keeps the probe no longer
// than one that does not: its calls may never be made, or never be answered.
func throttled(ctx context.Context, tx pgx.Tx, r cloud.Record, now time.Time) (cloud.Record, error) {
	args := namedArgs{"key": r.Request().ThrottleBreaker().Key, "probe": probeOf(r), "now": now,
		"tried": cloud.TriedFor}
	var b cloud.Breaker
	err := tx.QueryRow(ctx, `
		SELECT to_jsonb(b)
		FROM breakers b
		WHERE b.scope = 'throttle' AND b.key = @key AND b.until > '-infinity'`, args).Scan(&b)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if !b.Open(now) {
		tag, err := tx.Exec(ctx, `
			UPDATE breakers b
			SET probe = @probe, probe_at = CASE WHEN b.probe = @probe THEN b.probe_at ELSE @now END
			WHERE b.scope = 'throttle' AND b.key = @key AND b.until <= @now::timestamptz
			  AND (b.probe IN ('', @probe) OR b.probe_at < @now::timestamptz - @tried::interval)`, args)
		if err == nil && tag.RowsAffected() == 0 {
			err = &cloud.PauseError{Wait: throttledRest}
		}
		return r, err
	}
	wait := b.Until.Sub(now)
	if wait > cloud.ThrottleWait && r.Actor == ScalerActor && r.State == cloud.LaunchRequested {
		return r.Withheld(b, now), nil
	}
	return r, &cloud.PauseError{Wait: min(wait, throttledMost)}
}
