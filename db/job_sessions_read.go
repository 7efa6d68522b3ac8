package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// SessionFilter selects a page of the sessions of a job.
type SessionFilter struct {
	Open bool // only sessions that have not ended
	Paging
}

// lastSession is higher than the id of any session.
const lastSession = "ffffffff-ffff-ffff-ffff-ffffffffffff"

// List returns a page of the sessions in the containers of a job, newest first, and the cursor of the
// next page, "" for the last one. Ids of sessions ascend with the time of the request, and a page ends
// at an id: new sessions change no later page. The job may be archived. tenant "" reads the sessions of
// any tenant's job.
func (d *JobSessions) List(
	ctx context.Context, tenant berth.TenantID, job berth.JobID, f SessionFilter,
) ([]wire.SessionRecord, string, error) {
	before := lastSession
	more, err := f.after(&before)
	if err != nil {
		return nil, "", err
	}
	if _, err := berth.ParseJobID(before); more && err != nil {
		return nil, "", berth.Errorf(berth.CodeInvalid, "cursor %.40q is not a cursor of this list", f.Cursor)
	}
	rows, err := d.pool.Query(ctx, sessionsOfJob(f.Open), namedArgs{
		"job": job, "tenant": string(tenant), "before": before, "limit": f.limit() + 1,
	})
	if err != nil {
		return nil, "", mapError(err, "sessions of job "+string(job))
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[wire.SessionRecord])
	if err != nil {
		return nil, "", mapError(err, "sessions of job "+string(job))
	}
	list, next := cut(f.Paging, list, func(s wire.SessionRecord) []any { return []any{s.ID} })
	return list, next, nil
}

// sessionsOfJob returns the statement of List. It first finds the ids of the page: the sessions that
// have not ended by their rows, all sessions by the acts, with the late index acts_by_session. A
// session whose row is gone has ended, also without an act of its end.
func sessionsOfJob(open bool) string {
	page := `
		SELECT DISTINCT a.session
		FROM acts a
		WHERE a.job = @job AND (@tenant = '' OR a.tenant = @tenant) AND a.session < @before::uuid
		ORDER BY a.session DESC
		LIMIT @limit`
	if open {
		page = `
		SELECT s.id AS session
		FROM job_sessions s
		WHERE s.job = @job AND (@tenant = '' OR s.tenant = @tenant) AND s.id < @before::uuid
		ORDER BY s.id DESC
		LIMIT @limit`
	}
	// The acts of one session agree in all columns but these: event, at, and the figures of the end. They are
	// read session by session: a join would read all acts where the planner does not know the size of the page.
	return `
		WITH page AS MATERIALIZED (` + page + `)
		SELECT p.session::text, x.kind,
			CASE WHEN s.id IS NULL THEN 'ended' WHEN s.state = 'open' THEN 'open' ELSE 'waiting' END,
			x.attempt, x.member, x.machine, x.actor, x.command, x.reason, x.asked, x.began, x.ended, x.cause, x.exit,
			x.bytes_in, x.bytes_out
		FROM page p
		CROSS JOIN LATERAL (
			SELECT min(a.kind) AS kind, min(a.attempt) AS attempt, min(a.member) AS member,
				min(a.machine_id) AS machine, min(a.actor) AS actor, min(a.command) AS command, min(a.reason) AS reason,
				min(a.at) FILTER (WHERE a.event = 'asked') AS asked,
				min(a.at) FILTER (WHERE a.event = 'began') AS began,
				min(a.at) FILTER (WHERE a.event = 'ended') AS ended, max(a.cause) AS cause, max(a.exit) AS exit,
				max(a.bytes_in) AS bytes_in, max(a.bytes_out) AS bytes_out
			FROM acts a
			WHERE a.job = @job AND a.session = p.session
			HAVING count(*) > 0) x
		LEFT JOIN job_sessions s ON s.id = p.session
		ORDER BY p.session DESC`
}
