package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db/history"
)

// Page sizes of the history, in rows: they bound its memory.
const (
	historyJobs   = 200
	historyAllocs = 2000
)

// History reads the record of past work from one snapshot: a separate connection with one
// read-only transaction. It takes no lock that blocks another session, and no transaction id,
// so it does not hold back the feed. Like any open reader, it does hold back VACUUM. A
// standby serves as well. It is for one goroutine.
type History struct {
	conn *pgx.Conn
	tx   pgx.Tx
}

// historyIdle ends a reader that has stopped between two queries: its snapshot would hold back VACUUM for as long as
// the process lives. A reader writes or judges a page in seconds.
const historyIdle = 10 * time.Minute

// OpenHistory is OpenHistoryAs for berth-check.
func OpenHistory(ctx context.Context, url string) (*History, error) {
	return OpenHistoryAs(ctx, url, "berth-check")
}

// OpenHistoryAs connects to the database at url and takes the snapshot. PostgreSQL shows the program's name among its
// sessions. The caller must Close the result.
func OpenHistoryAs(ctx context.Context, url, program string) (*History, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	cfg.RuntimeParams["timezone"] = "UTC"
	cfg.RuntimeParams["application_name"] = program
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(historyIdle.Milliseconds())
	cfg.RuntimeParams["default_transaction_read_only"] = "on"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, mapError(err, "history")
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, mapError(err, "history")
	}
	return &History{conn, tx}, nil
}

// Close ends the snapshot and the connection.
func (h *History) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return h.conn.Close(ctx)
}

// Cluster returns the records that belong to no single job or machine: jobs that share an
// idempotency key, the storage counters of each tenant and kind with the sums of the rows
// they count, and the tenants' log.
func (h *History) Cluster(ctx context.Context) (history.Cluster, error) {
	c, err := document1[history.Cluster](ctx, h.tx, `
		SELECT jsonb_build_object('id', c.id, 'read_at', clock_timestamp(), 'same_key', coalesce((
			SELECT jsonb_agg(to_jsonb(k))
			FROM (
				SELECT tenant, idem_key AS key, array_agg(id ORDER BY id) AS jobs
				FROM jobs
				WHERE idem_key IS NOT NULL
				GROUP BY tenant, idem_key
				HAVING count(*) > 1
			) k), '[]'), 'stored', coalesce((
			SELECT jsonb_agg(to_jsonb(s))
			FROM (
				SELECT tenant, kind, sum(counted)::bigint AS counted, sum(rows)::bigint AS rows
				FROM (
					SELECT tenant, kind, amount AS counted, 0 AS rows FROM tenant_storage
					UNION ALL
					SELECT tenant, kind, amount, 0 FROM storage_changes
					UNION ALL
					SELECT tenant, kind, 0, amount FROM stored_rows
				) x
				GROUP BY tenant, kind
			) s), '[]'), 'tenants', coalesce((SELECT jsonb_agg(to_jsonb(t) ORDER BY t.seq) FROM tenant_log t), '[]'),
			'incarnation', c.incarnation, 'miscounted', coalesce((
			SELECT jsonb_agg(to_jsonb(m))
			FROM (
				SELECT coalesce(k.tenant, r.tenant) AS tenant, encode(coalesce(k.sha256, r.sha256), 'hex') AS sha256,
					k.refs, coalesce(r.n, 0) AS rows
				FROM chunks k
				FULL JOIN (
					SELECT tenant, sha256, count(*) AS n
					FROM chunk_refs
					GROUP BY tenant, sha256
				) r ON r.tenant = k.tenant AND r.sha256 = k.sha256
				WHERE k.refs IS DISTINCT FROM coalesce(r.n, 0)
				LIMIT 100
			) m), '[]'))
			|| `+launchRecords+`
		FROM cluster c`)
	return c, mapError(err, "cluster")
}

// Jobs calls each for every job that is not archived and did not end before since, with all
// its records, in order of ids. It reads a page at a time, so memory does not grow with the
// number of jobs. An error of each ends the call and is returned, as in all methods here.
func (h *History) Jobs(ctx context.Context, since time.Time, each func(history.Job) error) error {
	after := "00000000-0000-0000-0000-000000000000"
	for {
		jobs, err := documents[history.Job](ctx, h.tx, `
			SELECT to_jsonb(j) || jsonb_build_object(
				'has_spec', s.job IS NOT NULL,
				'hold', CASE WHEN j.debug THEN (
					SELECT to_jsonb(h) || jsonb_build_object('freed_seq', coalesce(f.freed_seq, 0))
					FROM holds h
					LEFT JOIN allocations f ON f.id = h.alloc
					WHERE h.debug = j.id) END,
				'members', coalesce((s.spec ->> 'members')::int, 1),
				'alternative_request', CASE WHEN j.alternatives IS NOT NULL OR j.grouped THEN (
					SELECT c.request FROM classes c WHERE c.class = j.class) END,
				'events', coalesce((SELECT jsonb_agg(to_jsonb(e) ORDER BY e.seq) FROM job_events e
					WHERE e.job = j.id), '[]'),
				'attempts', coalesce((SELECT jsonb_agg(to_jsonb(t) ORDER BY t.attempt) FROM attempts t
					WHERE t.job = j.id), '[]'),
				'allocations', coalesce((SELECT jsonb_agg(`+allocationRecord+` ORDER BY a.attempt, a.rank)
					FROM allocations a WHERE a.job = j.id), '[]'),
				'source', (
					SELECT jsonb_build_object('job', o.source, 'attempt', o.attempt, 'step', o.step,
						'parts', coalesce(o.parts, 0),
						'state', coalesce(c.state, ''), 'ranks', coalesce(c.ranks, 0), 'shards', (
							SELECT count(*) FROM checkpoint_shards h
							WHERE h.job = o.source AND h.step = o.step AND h.attempt = o.attempt))
					FROM job_sources o
					LEFT JOIN checkpoints c ON c.job = o.source AND c.step = o.step AND c.attempt = o.attempt
					WHERE o.job = j.id AND o.array_index = -1),
				'repairs', coalesce((
					SELECT jsonb_agg(to_jsonb(k) ORDER BY k.made_at)
					FROM nomination_log k
					WHERE k.beneficiary = j.id AND k.victim = k.beneficiary AND k.gpu_idx < 0), '[]'),
				'checkpoints', coalesce((
					SELECT jsonb_agg(to_jsonb(c) || jsonb_build_object('pinned', c.pinned_at IS NOT NULL, 'shards', (
						SELECT count(*) FROM checkpoint_shards h
						WHERE h.job = c.job AND h.step = c.step AND h.attempt = c.attempt), 'chunk_refs', (
						SELECT count(*) FROM chunk_refs r
						WHERE r.job = c.job AND r.step = c.step AND r.attempt = c.attempt)) ORDER BY c.attempt, c.step)
					FROM checkpoints c
					WHERE c.job = j.id), '[]'))
			FROM jobs j
			LEFT JOIN job_specs s ON s.job = j.id
			WHERE j.id > @after::uuid AND (j.finished_at IS NULL OR j.finished_at >= @since)
			ORDER BY j.id
			LIMIT @limit`, namedArgs{"after": after, "since": since, "limit": historyJobs})
		if err != nil {
			return mapError(err, "jobs")
		}
		for _, j := range jobs {
			if err := each(j); err != nil {
				return err
			}
			after = string(j.ID)
		}
		if len(jobs) < historyJobs {
			return nil
		}
	}
}

// Families calls each for every parent that is not archived and did not end before since,
// with its children, one parent at a time.
func (h *History) Families(ctx context.Context, since time.Time, each func(history.Family) error) error {
	after := "00000000-0000-0000-0000-000000000000"
	for {
		list, err := documents[history.Family](ctx, h.tx, `
			SELECT to_jsonb(p) || jsonb_build_object(
				'archived', (SELECT count(*) FROM archived_jobs x WHERE x.parent = p.id),
				'held', (
					WITH RECURSIVE around (parent, held) AS (
						SELECT p.parent, p.held
						UNION ALL
						SELECT x.parent, x.held FROM around a JOIN jobs x ON x.id = a.parent
					)
					SELECT bool_or(held) FROM around),
				'children', coalesce((
					SELECT jsonb_agg(jsonb_build_object('id', c.id, 'array_index', coalesce(c.array_index, 0), 'step',
						coalesce(c.step, ''), 'state', c.state, 'finished_at', c.finished_at,
						'blocked', c.blocked, 'held', c.held, 'run_when', c.run_when, 'final', c.final,
						'skipped', `+skippedStep("c")+`,
						'updated_at', CASE WHEN c.blocked THEN (SELECT max(e.at) FROM job_events e
							WHERE e.job IN (c.id, p.id) AND e.kind = 'updated') END,
						'needs', (SELECT jsonb_agg(d.needs) FROM all_needs d WHERE d.job = c.id),
						'spans', (
							SELECT jsonb_agg(jsonb_build_object('taken', a.taken_seq, 'until',
								coalesce(a.orphaned_seq, a.freed_seq, 0)))
							FROM allocations a
							WHERE a.job IN (`+allInside+`) AND a.taken_seq IS NOT NULL)))
					FROM jobs c
					WHERE c.parent = p.id), '[]'))
			FROM jobs p
			WHERE p.kind <> 'job' AND p.id > @after::uuid AND (p.finished_at IS NULL OR p.finished_at >= @since)
			ORDER BY p.id
			LIMIT 1`, namedArgs{"after": after, "since": since})
		if err != nil {
			return mapError(err, "arrays")
		}
		if len(list) == 0 {
			return nil
		}
		if err := each(list[0]); err != nil {
			return err
		}
		after = string(list[0].ID)
	}
}

// allInside selects a job c or, of a pipeline or an array c, all jobs inside it at every
// depth.
const allInside = `
								WITH RECURSIVE inside (id, kind) AS (
									SELECT c.id, c.kind
									UNION ALL
									SELECT x.id, x.kind FROM inside i JOIN jobs x ON x.parent = i.id
									WHERE i.kind <> 'job'
								)
								SELECT id FROM inside WHERE kind = 'job'`

// allocationRecord is a history.Allocation of a row a.
const allocationRecord = `to_jsonb(a) || jsonb_build_object('tenant', (SELECT t.tenant FROM jobs t WHERE t.id = a.job),
	'gpus', coalesce((
	SELECT jsonb_agg(to_jsonb(g) ORDER BY g.idx) FROM device_allocations g WHERE g.alloc_id = a.id), '[]'))`

// Machines calls each for every machine with its allocations, in the order of the ledger.
// Allocations that were released before since are left out. Memory holds one machine's
// allocations and one page; the database sorts them, on disk if they are many.
func (h *History) Machines(ctx context.Context, since time.Time, each func(history.Machine) error) error {
	rows, err := h.tx.Query(ctx, `SELECT id FROM machines ORDER BY id COLLATE "C"`)
	if err != nil {
		return mapError(err, "machines")
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	if err != nil {
		return mapError(err, "machines")
	}
	// One cursor serves all machines: its rows come in the order of the list above, by the
	// same collation.
	_, err = h.tx.Exec(ctx, `
		DECLARE taken NO SCROLL CURSOR FOR
		SELECT `+allocationRecord+`
		FROM allocations a
		WHERE counts(a.state) OR coalesce(a.exited_at, a.released_at, 'infinity') >= `+literal(since)+`
		ORDER BY a.machine_id COLLATE "C", a.taken_seq NULLS FIRST, a.id`)
	if err != nil {
		return mapError(err, "allocations")
	}
	var page, taken []history.Allocation
	for _, id := range ids {
		taken = nil
		for {
			// A page ends anywhere: the rest of it belongs to the next machines.
			for len(page) > 0 && page[0].Machine == id {
				taken, page = append(taken, page[0]), page[1:]
			}
			if len(page) > 0 {
				break
			}
			if page, err = documents[history.Allocation](ctx, h.tx,
				fmt.Sprintf(`FETCH %d FROM taken`, historyAllocs)); err != nil {
				return mapError(err, "allocations")
			}
			if len(page) == 0 {
				break
			}
		}
		m, err := h.machine(ctx, id)
		if err != nil {
			return mapError(err, "machine "+string(id))
		}
		m.Allocations = taken
		if err := each(m); err != nil {
			return err
		}
	}
	return nil
}

// Holdings calls each for the start and the end of every allocation of all tenants, in the
// order of the ledger. Allocations that ended before since are left out. Memory holds one
// page; the database sorts, on disk if there are many.
func (h *History) Holdings(ctx context.Context, since time.Time, each func(history.Holding) error) error {
	const columns = `j.tenant, a.id, a.job, a.attempt, a.machine_id, a.cpu_m, a.mem_mb, a.gpu_milli, a.reserved_at`
	from := `FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE a.taken_seq IS NOT NULL AND (counts(a.state) OR coalesce(a.exited_at, a.released_at, 'infinity') >= ` +
		literal(since) + `)`
	_, err := h.tx.Exec(ctx, `
		DECLARE holdings NO SCROLL CURSOR FOR
		SELECT to_jsonb(x)
		FROM (
			SELECT a.taken_seq AS seq, true AS begins, `+columns+`
			`+from+`
			UNION ALL
			SELECT coalesce(a.orphaned_seq, a.freed_seq), false, `+columns+`
			`+from+` AND coalesce(a.orphaned_seq, a.freed_seq) IS NOT NULL
		) x
		ORDER BY x.seq`)
	if err != nil {
		return mapError(err, "holdings")
	}
	for {
		page, err := documents[history.Holding](ctx, h.tx, fmt.Sprintf(`FETCH %d FROM holdings`, historyAllocs))
		if err != nil || len(page) == 0 {
			return mapError(err, "holdings")
		}
		for _, x := range page {
			if err := each(x); err != nil {
				return err
			}
		}
	}
}

// machine reads one machine with its devices, events and nominations.
func (h *History) machine(ctx context.Context, id berth.MachineID) (history.Machine, error) {
	return document1[history.Machine](ctx, h.tx, `
		SELECT to_jsonb(m) || jsonb_build_object(
			'windows', (SELECT jsonb_agg(jsonb_build_object('id', x.id, 'closes_at', w.closes_at, 'ends_at', w.ends_at,
					'updated_at', x.updated_at) ORDER BY x.id)
				FROM maintenance_machines w
				JOIN maintenance x ON x.id = w.maintenance
				WHERE w.machine_id = m.id AND w.state <> 'canceled'),
			'gpus', coalesce((SELECT jsonb_agg(to_jsonb(g) ORDER BY g.idx) FROM gpu_devices g
				WHERE g.machine_id = m.id), '[]'),
			'events', coalesce((SELECT jsonb_agg(to_jsonb(e) ORDER BY e.seq) FROM machine_events e
				WHERE e.machine_id = m.id), '[]'),
			'nominations', coalesce((SELECT jsonb_agg(to_jsonb(k) ORDER BY k.from_seq) FROM nomination_log k
				WHERE k.machine_id = m.id AND k.gpu_idx >= 0), '[]'))
		FROM machines m
		WHERE m.id = $1`, id)
}

// Missing returns the ids without a row, neither live nor archived.
func (h *History) Missing(ctx context.Context, ids []berth.JobID) ([]berth.JobID, error) {
	rows, err := h.tx.Query(ctx, `
		SELECT x.id
		FROM unnest($1::uuid[]) AS x (id)
		WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = x.id)
		  AND NOT EXISTS (SELECT 1 FROM archived_jobs a WHERE a.id = x.id)`, ids)
	if err != nil {
		return nil, mapError(err, "jobs")
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	return missing, mapError(err, "jobs")
}

// literal formats a time as an SQL literal, since DECLARE takes no arguments. The result is
// safe to embed: the format yields no quote.
func literal(t time.Time) string {
	return "'" + t.UTC().Format("2006-01-02 15:04:05.999999") + "+00'::timestamptz"
}

// documents runs a query for JSON documents and decodes all rows.
func documents[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// document1 is documents for a query that returns exactly one row.
func document1[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) (T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return *new(T), err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
}
