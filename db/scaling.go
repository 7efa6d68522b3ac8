package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
)

// ScalerActor is the actor of the leader's scaler in launches and in drains of machines. Launches of
// other actors are not changed by the scaler.
const ScalerActor = cloud.ScalerActor

// FleetMachine is a launch of the scaler that is not settled, with the facts about its machine.
type FleetMachine struct {
	cloud.Record
	EmptySince time.Time `json:"empty_since,omitzero"` // zero: used, or not yet joined
	// DrainActor is the author of the machine's drain, and DrainedAt its time; zero: it does not drain.
	DrainActor string    `json:"drain_actor"`
	DrainedAt  time.Time `json:"drained_at,omitzero"`
}

// unusedMachine is true for a machine m without use: no allocation counts against it, and none has
// results to store there.
const unusedMachine = `(m.cpu_m_used = 0 AND m.mem_mb_used = 0 AND m.disk_mb_used = 0 AND m.gpu_milli_used = 0
	AND NOT EXISTS (SELECT 1 FROM allocations a WHERE a.machine_id = m.id AND ` + heldThere + `))`

// emptyMachine is true for a machine m without use whose rows are the whole truth: its launch l is of the
// present incarnation of the database, row c of cluster, its agent is not silent, and it has no container
// that the database does not know. After a restore, jobs of the lost tail may run on a machine that has no
// use in the rows; a machine whose launch is older than the restore is therefore left to an admin.
const emptyMachine = `(` + unusedMachine + ` AND l.incarnation = c.incarnation AND m.pending_kills = '{}'
	AND NOT EXISTS (SELECT 1 FROM machine_leases s WHERE s.machine_id = m.id AND s.until < clock_timestamp()))`

// Fleet records since when machines of the scaler are empty, and requests the ends of the launches that
// unfitLaunches selects. It returns the launches of the scaler that are not settled, by name, and the time of
// the database.
func (d *Scaling) Fleet(ctx context.Context, term Term) (list []FleetMachine, now time.Time, err error) {
	args := namedArgs{"actor": ScalerActor}
	var ended []berth.MachineID
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		if ended, err = endUnfit(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			UPDATE launches l
			SET empty_since = CASE WHEN `+emptyMachine+` THEN clock_timestamp() END
			FROM machines m, cluster c
			WHERE m.id = l.machine AND l.actor = @actor AND l.state = 'serving'
			  AND (l.empty_since IS NULL) = `+emptyMachine, args)
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT `+launchDocument+` || coalesce((
				SELECT jsonb_build_object('drain_actor', m.drain_actor, 'drained_at', m.state_at)
				FROM machines m
				WHERE m.id = l.machine AND m.state = 'draining'), '{}')
			FROM launches l, cluster c
			WHERE l.actor = @actor AND l.state NOT IN ('gone', 'failed')
			ORDER BY l.machine`, args)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowTo[FleetMachine])
		return err
	})
	if err == nil {
		for _, id := range ended {
			d.hub.Publish(TopicLaunch, string(id))
		}
	}
	return list, now, mapError(err, "launches of the scaler")
}

// Adopted is a machine that a restored database had lost, see Launches.Adopt.
type Adopted struct {
	Pool, Type string // the type of the offering
}

// Adopted returns the adopted machines that take work, or may take it, by name. No tenant pays for them, since the tags
// of an instance name none.
func (d *Scaling) Adopted(ctx context.Context) ([]Adopted, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT l.pool, l.type
		FROM launches l
		WHERE l.actor = @actor AND l.tenant = '' AND l.stop_at IS NULL
		  AND l.state IN ('requested', 'sent', 'unresolved', 'running', 'serving')
		  AND NOT EXISTS (
			SELECT 1 FROM machines m WHERE m.id = l.machine AND m.state IN ('draining', 'lost', 'retired'))
		ORDER BY l.machine`, namedArgs{"actor": adopter})
	if err != nil {
		return nil, mapError(err, "adopted machines")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Adopted])
	return list, mapError(err, "adopted machines")
}

// Grown is a launch of the scaler that counts as growth.
type Grown struct {
	Tenant berth.TenantID
	At     time.Time
}

// Growth returns the launches of the scaler since a time that count as growth.
func (d *Scaling) Growth(ctx context.Context, since time.Time) ([]Grown, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT tenant, created_at
		FROM launches l
		WHERE actor = @actor AND created_at > @since AND `+grows+`
		ORDER BY created_at`,
		namedArgs{"actor": ScalerActor, "since": since})
	if err != nil {
		return nil, mapError(err, "launches of the scaler")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Grown])
	return list, mapError(err, "launches of the scaler")
}

// Request creates launches for the scaler, all or none, in the term of the leader. It is Launches.Request
// with three more refusals, each a conflict: admission is paused, a breaker of the request is open, or
// another launch probes a half-open one. The first launch becomes the probe of a half-open breaker. Launches wait for
// the end of short throttling, see cloud.Breaker.Waits.
func (d *Scaling) Request(ctx context.Context, term Term, r cloud.Request, machines []berth.MachineID,
	requestID string) ([]cloud.Record, error) {
	var list []cloud.Record
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		list = list[:0]
		if err := lockBurst(ctx, tx, r.Tenant); err != nil {
			return err
		}
		a, err := readAdmission(ctx, tx)
		if err != nil {
			return err
		}
		if a.Paused {
			return berth.Errorf(berth.CodeConflict, "admission is paused: %s", a.Reason)
		}
		for _, m := range machines {
			l, err := requestLaunch(ctx, tx, r, m, requestID, ScalerActor)
			if err != nil {
				return err
			}
			list = append(list, l)
		}
		if err := probe(ctx, tx, r, list); err != nil || r.Tenant == "" {
			return err
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

// probeRest is the least time between two probes of a breaker whose first one ended without an answer.
const probeRest = 3 * time.Minute

// probes is true for a launch l that still probes breaker b. The breaker of joins is probed until the registration of
// the machine was compared with the offer. This takes no longer than the join token is valid, and the machine no longer
// than that to register, unless the launch is in doubt or its agent is broken; then another launch may probe.
const probes = `l.state IN ('requested', 'sent') OR b.scope = 'join' AND (l.state = 'running'
	OR l.state = 'unresolved' AND l.created_at > clock_timestamp() - interval '30 minutes'
	OR l.state = 'serving' AND l.joined_at > clock_timestamp() - interval '30 minutes' AND EXISTS (
		SELECT 1 FROM machines m WHERE m.id = l.machine AND m.host_boot = ''))`

// freeProbe is true for a breaker b whose probe a launch may take: it has none, or the launch that took it no longer
// tries and has had its time.
const freeProbe = `(b.probe IN ('', @probe) OR b.probe_at < clock_timestamp() - @rest::interval AND NOT EXISTS (
	SELECT 1
	FROM launches l
	WHERE l.machine || '/' || l.n = b.probe AND (` + probes + `)))`

// probe takes the probes of all breakers that concern a request, or fails with a conflict. The probe of throttling is
// left to the first send, see throttled: a launch that is not sent would hold all others back. Breakers are locked
// after launches.
func probe(ctx context.Context, tx pgx.Tx, r cloud.Request, list []cloud.Record) error {
	if len(list) == 0 {
		return nil
	}
	args := concernArgs(r)
	args["probe"], args["rest"], args["waits"] = probeOf(list[0]), probeRest, cloud.ThrottleWait
	rows, err := tx.Query(ctx, `
		SELECT b.key
		FROM breakers b
		WHERE `+closes+` AND `+obeyed+`
		  AND (b.until IS NULL OR b.until > '-infinity')
		  AND (b.scope <> 'throttle' OR b.until >= clock_timestamp() + @waits::interval)
		ORDER BY b.scope, b.key
		FOR NO KEY UPDATE`, args)
	if err != nil {
		return err
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(keys) == 0 {
		return err
	}
	tag, err := tx.Exec(ctx, `
		UPDATE breakers b
		SET probe = @probe, probe_at = clock_timestamp()
		WHERE `+closes+` AND `+obeyed+` AND b.scope <> 'throttle'
		  AND b.until > '-infinity' AND b.until <= clock_timestamp() AND `+freeProbe, args)
	if err != nil {
		return err
	}
	if tag.RowsAffected() < int64(len(keys)) || len(list) > 1 {
		return &berth.Error{Code: berth.CodeConflict, Slug: SlugProbed, Message: "the cloud refused such a launch a " +
			"short time ago or could not be called, and is not tried again yet"}
	}
	return nil
}

// SlugProbed is the slug of a conflict with an open breaker, or with the probe of a half-open one.
const SlugProbed = "breaker-closed"

// Breakers returns all breakers that have refused and that this version obeys, with the launch that probes each, as
// machine/n.
func (d *Scaling) Breakers(ctx context.Context) ([]ProbedBreaker, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT to_jsonb(b) || jsonb_build_object('probing', b.probe <> '' AND (
			b.probe_at >= clock_timestamp() - @rest::interval OR EXISTS (
				SELECT 1 FROM launches l WHERE l.machine || '/' || l.n = b.probe AND (`+probes+`))))
		FROM breakers b
		WHERE (b.until IS NULL OR b.until > '-infinity') AND `+obeyed+`
		ORDER BY b.scope, b.key`, namedArgs{"rest": probeRest})
	if err != nil {
		return nil, mapError(err, "breakers")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[ProbedBreaker])
	return list, mapError(err, "breakers")
}

// Reopen makes the breakers half open whose settings are other ones now, see cloud.Breaker.Corrected, or that may be
// tried with the refused ones, see cloud.Breaker.Retried, and returns them. Each named breaker has the hash of its
// present settings.
// A breaker without a hash gets it, and stays open: which settings the cloud refused is not known. A reopening has a
// least distance from the refusal, which doubles with each step, so that replicas with different files do not reopen
// each other's breakers in each pass.
func (d *Scaling) Reopen(ctx context.Context, term Term, named []cloud.Breaker) (list []cloud.Breaker, err error) {
	args := breakerArgs(named, "")
	marks := make([]string, len(named))
	for i, b := range named {
		marks[i] = b.Settings
	}
	args["marks"], args["least"], args["most"] = marks, cloud.ReopenLeast, cloud.ReopenMost
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE breakers b
			SET settings = m.mark
			FROM unnest(@scopes::text[], @keys::text[], @marks::text[]) m (scope, key, mark)
			WHERE (b.scope, b.key) = (m.scope, m.key) AND `+corrected+` AND b.settings = ''`, args)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			UPDATE breakers b
			SET `+halfOpen+`, settings = m.mark
			FROM unnest(@scopes::text[], @keys::text[], @marks::text[]) m (scope, key, mark)
			WHERE (b.scope, b.key) = (m.scope, m.key) AND `+corrected+`
			  AND CASE
				WHEN b.settings <> m.mark
				THEN b.at <= clock_timestamp() - least(@least::interval * 2 ^ least(b.step - 1, 10), @most::interval)
				ELSE b.scope = 'provider' AND b.until IS NULL AND b.at <= clock_timestamp() - @most::interval
			  END
			RETURNING to_jsonb(b)`, args)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowTo[cloud.Breaker])
		return err
	})
	return list, mapError(err, "breakers")
}

// corrected is true for a breaker b of which cloud.Breaker.Corrected is true.
const corrected = `(b.until IS NULL
	OR b.scope = 'pool' AND split_part(b.key, '/', 3) <> '' AND b.until > clock_timestamp())`

// halfOpen makes a breaker half open from now on. The refusals in a row stay.
const halfOpen = `until = clock_timestamp(), at = clock_timestamp(), probe = '', probe_at = NULL`

// reopenPool makes the breakers of a pool and of its zones half open, whose settings an operator has changed.
func reopenPool(ctx context.Context, tx pgx.Tx, pool string) error {
	_, err := tx.Exec(ctx, `
		UPDATE breakers b
		SET `+halfOpen+`
		WHERE b.scope = 'pool' AND split_part(b.key, '/', 2) = @pool AND `+corrected, namedArgs{"pool": pool})
	return err
}

// wonFor is the time for which a success of an offering counts.
const wonFor = 24 * time.Hour

// Won returns when each offering last gave an instance, within wonFor, by provider and offering. A cloud may be named
// here that is no longer configured.
func (d *Scaling) Won(ctx context.Context) (map[string]time.Time, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT concat_ws('/', provider, region, zone, type, market), max(answered_at)
		FROM launches
		WHERE instance <> '' AND answered_at > clock_timestamp() - @for::interval
		GROUP BY provider, region, zone, type, market`, namedArgs{"for": wonFor})
	if err != nil {
		return nil, mapError(err, "launches")
	}
	won := map[string]time.Time{}
	var key string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&key, &at}, func() error {
		won[key] = at
		return nil
	})
	return won, mapError(err, "launches")
}

// ProbedBreaker is a breaker with the state of its probe.
type ProbedBreaker struct {
	cloud.Breaker
	Probing bool `json:"probing"` // a launch tries the scope, or did so less than probeRest ago
}
