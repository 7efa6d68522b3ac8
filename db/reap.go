package db

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Silence configures the time that a machine may be silent, without a renewed lease.
type Silence struct {
	Suspect time.Duration // a longer silence stops new work; no verdict comes sooner, see least
	Lost    time.Duration // a longer silence makes an idle machine lost; lost_after of a job overrides it
	Margin  time.Duration // for at_most_one jobs, in addition to fence and grace; see berth.FenceMargin

	// Share is the part of the machines that may be declared lost within a minute; one
	// machine always may. More at once are more likely a fault of the network, or of the
	// control plane. Zero means a tenth.
	Share float64
}

// Beacon returns the lifetime of the API replicas' beacon. It is never longer than Suspect:
// an outage of the API shorter than this lifetime leaves the beacon valid, so it must not
// make any machine overdue.
func (s Silence) Beacon() time.Duration { return min(BeaconTTL, s.Suspect) }

// callsApart is longer than the time between two renewals of a machine that is well, also while tables are locked
// (adr/0110).
const callsApart = berth.SyncWait + 2*time.Second

// least returns the silence before which no verdict comes. Machines that fall silent at the
// same moment made their last calls up to callsApart before. Before a verdict on the first of
// them, the others must count as silent too, since their number may freeze verdicts.
func (s Silence) least() time.Duration { return s.Suspect + callsApart }

// Grace returns the time without verdicts after a gap of the API, a freeze or a time without
// counts: want, but no less than the silence before which no verdict comes. A machine that
// could not renew its lease then has as much time to call as a machine that always could.
func (s Silence) Grace(want time.Duration) time.Duration { return max(want, s.least()) }

func (s Silence) args() namedArgs {
	return namedArgs{
		"suspect": s.Suspect, "least": s.least(), "lost": max(s.Lost, s.least()),
		"margin_ms": s.Margin.Milliseconds(), "grace": leaseGrace, "api": leaseAPI, "freeze": leaseFreeze,
		"ahead": beaconAhead, "count": leaseCount, "recent": countedFor,
	}
}

// silentFor is the time since the last contact of a machine (lease l).
const silentFor = `clock_timestamp() - l.seen_at`

// patience is how long job j waits for its member a on a silent machine m. The container of
// an at_most_one job must have been killed for certain by the machine's fencing watchdog,
// so the wait is the longer of two fence times: at the claim, and now. If the machine no
// longer promises a fence time, silence never proves the end; only the machine itself, its
// next boot or an operator does. A member without a claim has no container yet, and an
// ended member has none left, so both wait only as long as lost_after.
const patience = `
	greatest(@least::interval, interval '1 millisecond' * CASE
		WHEN j.execution <> 'at_most_one' OR a.state <> 'active' THEN j.lost_after_ms
		WHEN m.fence_ms = 0 THEN 1e15
		ELSE greatest(j.lost_after_ms, greatest(a.fence_ms, m.fence_ms) + j.grace_ms + @margin_ms::bigint)
	END)`

// unproven is true while silence proves nothing: API replicas cannot renew leases, or could
// not until a short while ago; see RenewBeacon.
const unproven = `
	EXISTS (SELECT 1 FROM leases WHERE name = @grace AND expires_at > clock_timestamp())
	OR EXISTS (SELECT 1 FROM leases WHERE name = @api AND ` + lapsed + `)`

// held is true during a freeze of verdicts, while no leader counts the silent machines, and
// for a grace after both; see HoldVerdicts and RecordCount. It concerns silent machines only:
// machines that call report what happens on them.
const held = `
	EXISTS (SELECT 1 FROM leases WHERE name = @freeze AND expires_at > clock_timestamp())
	OR EXISTS (SELECT 1 FROM leases WHERE name = @count
		AND NOT expires_at BETWEEN clock_timestamp() - @recent::interval AND clock_timestamp() + @recent::interval)`

// unjudged is true while no verdict may be passed on any machine.
const unjudged = unproven + ` OR ` + held

// MarkSuspect excludes silent machines from placement and returns their ids. Their members
// keep all capacity.
func (d *Machines) MarkSuspect(ctx context.Context, term Term, s Silence) ([]berth.MachineID, error) {
	// The check without locks spares the usual call a transaction of the leader.
	var silent bool
	err := d.pool.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM machines m
			JOIN machine_leases l ON l.machine_id = m.id
			WHERE m.state = 'ready' AND `+silentFor+` > @suspect::interval)`,
		s.args()).Scan(&silent)
	if err != nil || !silent {
		return nil, mapError(err, "machines")
	}
	var ids []berth.MachineID
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			WITH silent AS (
				SELECT m.id
				FROM machines m
				JOIN machine_leases l ON l.machine_id = m.id
				WHERE m.state = 'ready' AND `+silentFor+` > @suspect::interval
				ORDER BY m.id
				FOR NO KEY UPDATE OF m
			)
			UPDATE machines m
			SET state = 'suspect', reason = 'silent'
			FROM silent
			WHERE m.id = silent.id
			RETURNING m.id`, s.args())
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
		return err
	})
	return ids, mapError(err, "machines")
}

// SilenceProves reports whether missing reports mean anything at present: API replicas can
// renew leases, and could for a while. A freeze of verdicts does not matter here, since
// machines that call can report.
func (d *Machines) SilenceProves(ctx context.Context) (bool, error) {
	var proves bool
	err := d.pool.QueryRow(ctx, `SELECT NOT (`+unproven+`)`, Silence{}.args()).Scan(&proves)
	return proves, mapError(err, "beacon")
}

// Overdue is a silent machine that is due for a verdict.
type Overdue struct {
	Machine berth.MachineID
	Ranks   bool // members are to be orphaned; otherwise the machine itself is lost
}

// Fleet counts the machines except for retired ones, and among these the silent machines
// that are not yet lost.
type Fleet struct {
	Machines, Silent int
	Held             bool // verdicts are held: see HoldVerdicts and RecordCount

	// At is the time of this count, and Before the time of the last one that a leader has
	// recorded; see RecordCount. Both are by the database's clock. Before is zero if none is.
	At, Before time.Time
}

// frozenAt is the least number of silent machines that freezes verdicts.
const frozenAt = 3

// Frozen reports whether so many machines are silent at once that the control plane or the
// network is the likelier cause: more than a third, and at least frozenAt. No verdict is
// then passed on any machine until more machines are heard, or an operator has confirmed
// that some are dead, nor in the grace after that; see HoldVerdicts.
func (f Fleet) Frozen() bool { return f.Silent >= frozenAt && 3*f.Silent > f.Machines }

const (
	// countedFor is how long verdicts may follow a count of the silent machines. A usual
	// change of leader takes less.
	countedFor = BeaconTTL
	// countEvery is the time after which a leader records a count again.
	countEvery = countedFor / 4
)

// Uncounted returns the time since the last count on record if it is longer than countedFor,
// and else 0: a freeze may have begun and ended since, of which nothing is on record. The time
// also counts if the last count lies in the future: the database's clock was set back.
func (f Fleet) Uncounted() time.Duration {
	if d := f.At.Sub(f.Before).Abs(); !f.Before.IsZero() && d > countedFor {
		return d
	}
	return 0
}

// RecordCount records the time of a count of the silent machines. Without a leader, and while
// its counts fail, no process notices a freeze: no verdict is passed then, and the leader holds
// verdicts at the next count. It must do so before it calls RecordCount. Most calls write
// nothing: a count soon after a recorded one is not recorded.
func (d *Machines) RecordCount(ctx context.Context, term Term, f Fleet) error {
	if d := f.At.Sub(f.Before); d >= 0 && d < countEvery {
		return nil
	}
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO leases (name, holder, expires_at)
			VALUES (@count, @holder, @at)
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at`,
			namedArgs{"count": leaseCount, "holder": term.Holder, "at": f.At})
		return err
	})
	return mapError(err, "count of silent machines")
}

// HoldVerdicts keeps every machine from being declared lost for the time grace. The leader
// calls it as long as verdicts are frozen. When the network is back, the machines call one
// after the other, within the agents' longest pause: soon fewer than a third are silent,
// although the others are about to call. The leader also calls it after a time in which no
// leader counted the silent machines; see Fleet.Uncounted. A later call replaces an earlier
// one, so a shorter grace takes effect at once.
func (d *Machines) HoldVerdicts(ctx context.Context, term Term, grace time.Duration) error {
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO leases AS l (name, holder, expires_at)
			VALUES (@freeze, @holder, clock_timestamp() + @length::interval)
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at`,
			namedArgs{"freeze": leaseFreeze, "holder": term.Holder, "length": grace})
		return err
	})
	return mapError(err, "freeze")
}

// countFleet implements Machines.Fleet for other stores, which share functions over core.
func countFleet(ctx context.Context, d *core, s Silence) (Fleet, error) {
	var f Fleet
	var before *time.Time
	err := d.pool.QueryRow(ctx, `
		SELECT count(*), count(*) FILTER (WHERE m.state <> 'lost' AND `+silentFor+` > @suspect::interval), `+held+`,
		       clock_timestamp(), (SELECT expires_at FROM leases WHERE name = @count)
		FROM machines m
		LEFT JOIN machine_leases l ON l.machine_id = m.id
		WHERE m.state <> 'retired'`, s.args()).Scan(&f.Machines, &f.Silent, &f.Held, &f.At, &before)
	if before != nil {
		f.Before = *before
	}
	return f, mapError(err, "machines")
}

// Fleet counts all machines and the silent ones.
func (d *Machines) Fleet(ctx context.Context, s Silence) (Fleet, error) {
	return countFleet(ctx, d.core, s)
}

// Overdue lists the silent machines that are due for a verdict, machines with members
// first. budget is the number of verdicts that may still be passed this minute:
// Silence.Share of all machines, at least one, less the machines lost within the last
// minute. While no verdict may be passed, because silence proves nothing (see RenewBeacon)
// or verdicts are frozen or held (see HoldVerdicts and RecordCount), the list is empty. A machine that
// is already lost is listed while a patient job still waits for uploads from it.
func (d *Machines) Overdue(ctx context.Context, s Silence) (due []Overdue, budget int, err error) {
	rows, err := d.pool.Query(ctx, `
		WITH silent AS (
			SELECT m.id, m.state, `+silentFor+` AS silence, l.seen_at
			FROM machines m
			JOIN machine_leases l ON l.machine_id = m.id
			WHERE m.state <> 'retired' AND `+silentFor+` > @suspect::interval AND NOT (`+unjudged+`)
			  AND (m.state <> 'lost' OR EXISTS (
				SELECT 1 FROM allocations a
				WHERE a.machine_id = m.id AND a.forgotten_at IS NULL AND a.state = 'exited' AND a.sealed_at IS NULL))
		)
		SELECT s.id, r.overdue > 0
		FROM silent s
		CROSS JOIN LATERAL (
			SELECT count(*) FILTER (WHERE a.state IN ('reserved', 'active')) AS live,
			       count(*) FILTER (WHERE (a.state IN ('reserved', 'active') OR a.state = 'exited'
			         AND a.sealed_at IS NULL)
			                          AND s.silence > `+patience+`) AS overdue,
			       count(*) FILTER (WHERE a.orphaned_at > s.seen_at) AS orphans
			FROM allocations a
			JOIN jobs j ON j.id = a.job
			JOIN machines m ON m.id = a.machine_id
			WHERE a.machine_id = s.id AND a.forgotten_at IS NULL
		) r
		WHERE r.overdue > 0 OR s.state <> 'lost' AND r.live = 0 AND (r.orphans > 0 OR s.silence > @lost::interval)
		ORDER BY 2 DESC, s.silence DESC, s.id`, s.args())
	if err != nil {
		return nil, 0, mapError(err, "silent machines")
	}
	if due, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Overdue]); err != nil || len(due) == 0 {
		return nil, 0, mapError(err, "silent machines")
	}
	if fleet, err := countFleet(ctx, d.core, s); err != nil || fleet.Frozen() {
		return nil, 0, err
	}
	err = d.pool.QueryRow(ctx, `
		SELECT greatest(1, floor(@share::float8 * count(*) FILTER (WHERE state <> 'retired'))::int)
		     - count(*) FILTER (WHERE state = 'lost' AND state_at > clock_timestamp() - interval '1 minute')
		FROM machines`, namedArgs{"share": cmp.Or(s.Share, 0.1)}).Scan(&budget)
	return due, budget, mapError(err, "machines")
}

// Verdict reports the changes of PassVerdict.
type Verdict struct {
	Jobs []berth.JobID // with members on the machine: their workflows need a poke
	Lost bool          // the machine itself is lost
}

// PassVerdict orphans the overdue members on a silent machine, orders their kill for the
// machine's return, and gives up uploads that were under way. Orphans keep their capacity,
// because silence proves nothing about their containers. Once no live member is left, the
// machine becomes lost and its epoch is incremented.
func (d *Machines) PassVerdict(ctx context.Context, term Term, machine berth.MachineID, s Silence) (Verdict, error) {
	var v Verdict
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		v = Verdict{}
		ranks, silence, err := lockOverdue(ctx, tx, machine, s)
		// The machine was heard since Overdue listed it, or silence proves nothing by now.
		if err != nil || silence <= 0 {
			return err
		}
		if err := orphan(ctx, tx, machine, ranks, &v); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			UPDATE machines m
			SET state = 'lost', reason = @reason, epoch = epoch + 1
			WHERE id = @machine AND state NOT IN ('lost', 'retired')
			  AND NOT EXISTS (
				SELECT 1 FROM allocations a
				WHERE a.machine_id = m.id AND a.forgotten_at IS NULL AND a.state IN ('reserved', 'active'))
			  AND (@silence::interval > @lost::interval OR EXISTS (
				SELECT 1
				FROM allocations a
				JOIN machine_leases l ON l.machine_id = a.machine_id
				WHERE a.machine_id = m.id AND a.orphaned_at > l.seen_at))`,
			namedArgs{
				"machine": machine, "silence": silence, "lost": s.args()["lost"],
				"reason": fmt.Sprintf("silent for %s", silence.Round(time.Second)),
			})
		v.Lost = err == nil && tag.RowsAffected() > 0
		return err
	})
	return v, mapError(err, "machine "+string(machine))
}

// overdueRank is a member on a silent machine beyond its job's patience.
type overdueRank struct {
	ID      int64
	Job     berth.JobID
	Attempt int
	Rank    int
	Exited  bool // the container has ended; only its last uploads are missing
}

// lockOverdue locks the jobs with members on the machine, then the overdue ones among these
// members, and returns the overdue members and the silence of the machine. The silence is 0
// if the machine was heard meanwhile, or if silence proves nothing.
func lockOverdue(ctx context.Context, tx pgx.Tx, machine berth.MachineID,
	s Silence) ([]overdueRank, time.Duration, error) {
	args := s.args()
	args["machine"] = machine
	_, err := tx.Exec(ctx, `
		SELECT 1
		FROM jobs
		WHERE id IN (
			SELECT job FROM allocations
			WHERE machine_id = @machine AND forgotten_at IS NULL AND state IN ('reserved', 'active', 'exited'))
		ORDER BY id
		FOR NO KEY UPDATE`, args)
	if err != nil {
		return nil, 0, fmt.Errorf("lock jobs: %w", err)
	}
	var silence time.Duration
	err = tx.QueryRow(ctx, `
		SELECT CASE WHEN `+silentFor+` > @suspect::interval AND NOT (`+unjudged+`) THEN `+silentFor+` ELSE '0' END
		FROM machine_leases l
		WHERE l.machine_id = @machine`, args).Scan(&silence)
	if err != nil || silence <= 0 {
		return nil, 0, err
	}
	// The silence is read once, after the locks of the jobs: all members are judged by one
	// value.
	args["silence"] = silence
	rows, err := tx.Query(ctx, `
		SELECT a.id, a.job, a.attempt, a.rank, a.state = 'exited'
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		JOIN machines m ON m.id = a.machine_id
		WHERE a.machine_id = @machine AND a.forgotten_at IS NULL
		  AND (a.state IN ('reserved', 'active') OR a.state = 'exited' AND a.sealed_at IS NULL)
		  AND @silence::interval > `+patience+`
		ORDER BY a.id
		FOR NO KEY UPDATE OF a`, args)
	if err != nil {
		return nil, 0, fmt.Errorf("lock ranks: %w", err)
	}
	ranks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[overdueRank])
	return ranks, silence, err
}

// orphan orphans the members that may still run, seals exited members that lack their last
// uploads (cut_off), and adds one event per member. It appends each job to v.Jobs once.
func orphan(ctx context.Context, tx pgx.Tx, machine berth.MachineID, ranks []overdueRank, v *Verdict) error {
	if len(ranks) == 0 {
		return nil
	}
	ids := make([]int64, len(ranks))
	for i, r := range ranks {
		ids[i] = r.ID
	}
	_, err := tx.Exec(ctx, `
		UPDATE allocations a
		SET state = CASE a.state WHEN 'exited' THEN a.state ELSE 'orphaned' END,
		    alone = a.state = 'active' AND `+alone+`,
		    orphaned_at = CASE a.state WHEN 'exited' THEN a.orphaned_at ELSE clock_timestamp() END,
		    sealed_at = CASE a.state WHEN 'exited' THEN clock_timestamp() ELSE a.sealed_at END,
		    cut_off = a.state = 'exited',
		    orders = CASE a.state WHEN 'exited' THEN a.orders ELSE a.orders || @kill END
		FROM machines m
		WHERE a.id = ANY(@ids) AND m.id = a.machine_id`, namedArgs{"ids": ids, "kill": berth.Orders{Kill: true}})
	if err != nil {
		return fmt.Errorf("orphan ranks: %w", err)
	}
	for i, r := range ranks {
		kind, detail := wire.EventOrphaned,
			fmt.Sprintf("member %d: machine %s stopped responding; its capacity stays reserved until the machine, "+
				"its provider "+
				"or an operator confirms that the container has ended", r.Rank, machine)
		if r.Exited {
			kind, detail = wire.EventWarning,
				fmt.Sprintf("member %d: machine %s stopped responding before its last logs and checkpoints were stored",
					r.Rank, machine)
		}
		if err := addEvent(ctx, tx, r.Job, wire.Event{
			Kind: kind, Attempt: r.Attempt, Actor: "leader",
			Detail: detail, Facts: &wire.EventFacts{Rank: &r.Rank, Machine: machine},
		}); err != nil {
			return err
		}
		// Ids of one attempt are usually adjacent; a job listed twice only gets a second
		// poke.
		if i == 0 || ranks[i-1].Job != r.Job {
			v.Jobs = append(v.Jobs, r.Job)
		}
	}
	return nil
}

// DisobeyedAfter is the time that a machine has to follow a due kill order, before it is
// excluded from new work.
const DisobeyedAfter = time.Minute

// Disobedient returns the machines with a member that is still active although its kill was
// ordered and its time to stop ended longer than age ago.
func (d *Machines) Disobedient(ctx context.Context, age time.Duration) ([]berth.MachineID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT machine_id
		FROM allocations
		WHERE state = 'active' AND orders ? 'kill' AND stop_by < clock_timestamp() - @age::interval
		ORDER BY 1`, namedArgs{"age": age})
	if err != nil {
		return nil, mapError(err, "machines")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	return list, mapError(err, "machines")
}
