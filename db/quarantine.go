package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// quarantined is true from the restore of a backup until an operator adopts the cluster.
const quarantined = `EXISTS (SELECT 1 FROM cluster WHERE quarantined_at IS NOT NULL)`

// Quarantine is the state of a restored cluster that waits for its adoption: it has no leader, and machines
// get no orders.
type Quarantine struct {
	Since time.Time
	Taken time.Time // start of the backup that was restored
}

// errQuarantined is the error for a call that a quarantined cluster refuses. The caller repeats the call.
func errQuarantined() error {
	return berth.Errorf(berth.CodeUnavailable,
		"the cluster was restored from a backup and waits for an operator: berthd backup adopt")
}

// migrationsLock is the advisory lock that a migration holds (jackc/tern). A start of berthd waits for it.
const migrationsLock = 9628173550095224

// Restoration describes a backup to Restore.
type Restoration struct {
	Schema int       // version
	Taken  time.Time // start of the backup
}

// Restore fills the empty database at url by fill, and quarantines it. fill must restore everything but the
// rows of table schema_version, without which no program of Berth uses the database: Restore writes them in
// the transaction that quarantines the cluster. So there is no moment at which the restored database is
// usable and not quarantined.
//
// Restore refuses a database that has tables or other sessions with code conflict, and leaves it unchanged.
func Restore(ctx context.Context, url string, r Restoration, fill func(context.Context) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return mapError(err, "restore")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var free bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(migrationsLock)).Scan(&free); err != nil {
		return mapError(err, "restore")
	}
	if !free {
		return berth.Errorf(berth.CodeConflict, "another program migrates or restores the database: stop all of berthd")
	}
	if err := checkVacant(ctx, conn); err != nil {
		return mapError(err, "restore")
	}
	if err := fill(ctx); err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return quarantineCluster(ctx, tx, r) }); err != nil {
		return mapError(err, "quarantine the restored cluster")
	}
	_, err = conn.Exec(ctx, `ANALYZE`) // without statistics, the first plans would assume empty tables
	return mapError(err, "restore")
}

// CheckVacant returns an error of code conflict for a database with tables or with other sessions.
func CheckVacant(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return mapError(err, "restore")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return mapError(checkVacant(ctx, conn), "restore")
}

// vacantWithin bounds the wait for sessions that have been closed: PostgreSQL ends a session a moment after
// its client.
const vacantWithin = 15 * time.Second

// checkVacant refuses a database with tables or with other sessions. conn must not be in a transaction,
// which would see the sessions of its begin.
func checkVacant(ctx context.Context, conn *pgx.Conn) error {
	for begun := time.Now(); ; {
		var tables, sessions int
		err := conn.QueryRow(ctx, `
			SELECT (
				SELECT count(*)
				FROM pg_class c
				JOIN pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\_toast%'
				  AND n.nspname NOT LIKE 'pg\_temp%'
			), (
				SELECT count(*)
				FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid()
				  AND coalesce(backend_type, 'client backend') = 'client backend'
			)`).Scan(&tables, &sessions)
		switch {
		case err != nil:
			return err
		case tables > 0:
			return berth.Errorf(berth.CodeConflict,
				"the database has %d tables and indexes: restore into an empty one, which createdb makes", tables)
		case sessions == 0:
			return nil
		case time.Since(begun) > vacantWithin:
			return berth.Errorf(berth.CodeConflict,
				"%d other sessions use the database: stop all of berthd, and close other sessions", sessions)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// quarantineCluster makes a filled database usable and quarantines it. It advances ids, terms and watermarks
// past every value granted after the backup, closes the sessions of all machines, and ends every leader's lease.
func quarantineCluster(ctx context.Context, tx pgx.Tx, r Restoration) error {
	if err := stopLeaders(ctx, tx); err != nil {
		return err
	}
	if _, err := leap(ctx, tx, Outside{}); err != nil {
		return err
	}
	for _, sql := range []string{
		`DELETE FROM public.schema_version`,
		`INSERT INTO public.schema_version (version) VALUES (@schema)`,
		// The first leader records the identity of the server, instead of finding another one.
		`UPDATE cluster SET quarantined_at = clock_timestamp(), backup_taken_at = @taken, system = ''`,
		// The restore may have filled another store, whose id the first start records.
		`UPDATE cluster SET store_id = NULL`,
		`UPDATE leases SET holder = '', expires_at = clock_timestamp() - interval '1 s'`,
		`UPDATE backups SET ended_at = clock_timestamp() WHERE ended_at IS NULL`, // the one that wrote the dump
		`DELETE FROM unknown_containers`,
	} {
		if _, err := tx.Exec(ctx, sql, namedArgs{"schema": r.Schema, "taken": r.Taken}); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// UnknownContainer is a container that a machine reported to a quarantined cluster and that no row knows: work
// that was started after the backup.
type UnknownContainer struct {
	Machine berth.MachineID
	Alloc   berth.AllocationID
	Job     berth.JobID
	Attempt int
	Rank    int
	Running bool // when it was reported
}

// Adoption is the result of Adopt.
type Adoption struct {
	Quarantine
	Unknown  []UnknownContainer
	Machines int               // that have registered since the restore
	Silent   []berth.MachineID // that have not, although they were in service
	Held     []berth.JobID     // at_most_one jobs that wait for a release
}

// Adopt ends the quarantine: a leader may be elected, and machines get orders again. Ids and terms leap once
// more, and every machine registers again, so that each container is judged by the rows. A cluster that is
// not quarantined is an error of code conflict.
func (d *Leader) Adopt(ctx context.Context) (Adoption, error) {
	var a Adoption
	var made leaps
	err := d.tx(ctx, func(tx pgx.Tx) (err error) {
		a = Adoption{}
		if err := stopLeaders(ctx, tx); err != nil {
			return err
		}
		var since, taken *time.Time
		err = tx.QueryRow(ctx, `SELECT quarantined_at, backup_taken_at FROM cluster FOR NO KEY UPDATE`).
			Scan(&since, &taken)
		if err != nil {
			return err
		}
		if since == nil {
			return berth.Errorf(berth.CodeConflict, "the cluster is in service: only a restored one can be adopted")
		}
		if a.Since = *since; taken != nil {
			a.Taken = *taken
		}
		if err := a.read(ctx, tx); err != nil {
			return err
		}
		if made, err = leap(ctx, tx, Outside{}); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE cluster SET quarantined_at = NULL`)
		return err
	})
	if err != nil {
		return Adoption{}, mapError(err, "cluster")
	}
	made.publish(d.hub)
	d.incarnations.forget()
	return a, nil
}

// read reads the findings of the quarantine.
func (a *Adoption) read(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT machine_id, alloc, job::text, attempt, rank, running
		FROM unknown_containers
		ORDER BY job, attempt, rank, machine_id`)
	if err != nil {
		return err
	}
	if a.Unknown, err = pgx.CollectRows(rows, pgx.RowToStructByPos[UnknownContainer]); err != nil {
		return err
	}
	var silent, held []string
	err = tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE agent_boot <> ''),
		       coalesce(array_agg(id ORDER BY id) FILTER (WHERE agent_boot = ''), '{}'),
		       ARRAY(SELECT id::text FROM jobs WHERE execution = 'at_most_one' AND held
		         AND state NOT IN ('succeeded', 'failed', 'canceled') ORDER BY id)
		FROM machines
		WHERE state NOT IN ('retired', 'lost')`).Scan(&a.Machines, &silent, &held)
	for _, m := range silent {
		a.Silent = append(a.Silent, berth.MachineID(m))
	}
	for _, j := range held {
		a.Held = append(a.Held, berth.JobID(j))
	}
	return err
}

// noteUnknown records the machine's containers that no row knows, while the cluster is quarantined.
func (r *registration) noteUnknown(ctx context.Context) error {
	if !r.mark.quarantined {
		return nil
	}
	var alloc []int64
	var job []string
	var attempt, rank []int
	var running []bool
	for _, c := range r.req.Containers {
		alloc, job, attempt = append(alloc, int64(c.Alloc)), append(job, string(c.Job)), append(attempt, c.Attempt)
		rank, running = append(rank, c.Rank), append(running, c.Running)
	}
	args := namedArgs{"machine": r.machine, "alloc": alloc, "job": job, "attempt": attempt, "rank": rank,
		"running": running}
	if _, err := r.tx.Exec(ctx, `DELETE FROM unknown_containers WHERE machine_id = @machine`, args); err != nil {
		return fmt.Errorf("record unknown containers: %w", err)
	}
	_, err := r.tx.Exec(ctx, `
		INSERT INTO unknown_containers (machine_id, alloc, job, attempt, rank, running)
		SELECT @machine, x.alloc, x.job, x.attempt, x.rank, x.running
		FROM unnest(@alloc::bigint[], @job::text[]::uuid[], @attempt::int[], @rank::int[], @running::bool[])
			AS x (alloc, job, attempt, rank, running)
		WHERE NOT EXISTS (SELECT 1 FROM allocations a WHERE a.id = x.alloc AND a.job = x.job)
		  AND NOT EXISTS (SELECT 1 FROM archived_jobs j WHERE j.id = x.job)
		ON CONFLICT DO NOTHING -- two containers may name the same allocation`, args)
	if err != nil {
		return fmt.Errorf("record unknown containers: %w", err)
	}
	return nil
}
