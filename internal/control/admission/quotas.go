package admission

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
	"berth/spec"
)

// quotas judges new work by the limits of tenants. It remembers their rows for a
// moment, so that a submit does not wait for the database: whether there is room now
// is the leader's decision, from rows that the leader reads itself.
//
//	rows                     an answer
//	of at most quotaMemory   the rows
//	of at most quotaGrace    the rows; one query reads them again
//	of at most quotaStale    waits quotaWait for the one query, then the rows
//	older, forgotten, none   waits for the one query
//
// At most one query is under way, however many callers there are. After a query
// that failed the next begins quotaPause later; callers who have no rows to go by
// get the error until then. A query ends at once when its owner closes, and none begins after that.
type quotas struct {
	list  func(ctx context.Context) ([]db.TenantRow, error)
	owner *background.Group // of the query under way

	mu      sync.Mutex
	rows    map[berth.TenantID]db.TenantRow
	at      time.Time   // when rows were read; zero: rows must not be used
	query   *quotaQuery // under way; nil: none is
	failed  error       // of the last query
	pause   time.Time   // no query begins before
	changes int         // counts calls of forget
}

// quotaQuery is one query for the rows.
type quotaQuery struct {
	began time.Time
	done  chan struct{} // closed once err is set
	err   error
}

const (
	quotaMemory  = time.Second
	quotaGrace   = 5 * time.Second
	quotaWait    = time.Second // from the begin of the query
	quotaStale   = time.Minute
	quotaPause   = time.Second
	quotaTimeout = 5 * time.Second // of a query
)

// admit returns an error of slug quota if the quota of the tenant, or of one above, can never
// allow the request.
func (q *quotas) admit(ctx context.Context, tenant berth.TenantID, r spec.Request) error {
	rows, err := q.read(ctx)
	if err != nil {
		return err
	}
	for at, ok := rows[tenant]; ok; at, ok = rows[at.Parent] {
		faults := at.Quota.Exceeds(r)
		if len(faults) == 0 {
			continue
		}
		return &berth.Error{Code: berth.CodeForbidden, Slug: berth.SlugQuota, Fields: faults,
			Message: faults[0].Field + ": " + faults[0].Detail}
	}
	return nil
}

// with returns the rows of all tenants. If they lack this tenant, with reads them again, since another
// process may have created the tenant a moment ago.
func (q *quotas) with(ctx context.Context, tenant berth.TenantID) (map[berth.TenantID]db.TenantRow, error) {
	rows, err := q.read(ctx)
	if _, here := rows[tenant]; err == nil && !here {
		q.forget()
		rows, err = q.read(ctx)
	}
	return rows, err
}

// line returns the tenant and the tenants above.
func (q *quotas) line(ctx context.Context, tenant berth.TenantID) ([]berth.TenantID, error) {
	rows, err := q.with(ctx, tenant)
	if err != nil {
		return nil, err
	}
	line := []berth.TenantID{tenant}
	for at, ok := rows[tenant]; ok && at.Parent != ""; at, ok = rows[at.Parent] {
		line = append(line, at.Parent)
	}
	return line, nil
}

// read returns the rows, see quotas. Callers must not change them.
func (q *quotas) read(ctx context.Context) (map[berth.TenantID]db.TenantRow, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		now := time.Now()
		usable := !q.at.IsZero() && now.Before(q.at.Add(quotaStale))
		if usable && now.Before(q.at.Add(quotaMemory)) {
			return q.rows, nil
		}
		if q.query == nil && !now.Before(q.pause) {
			q.start(ctx, now)
		}
		switch {
		case usable && (now.Before(q.at.Add(quotaGrace)) || q.query == nil ||
			!now.Before(q.query.began.Add(quotaWait))):
			return q.rows, nil
		case q.query == nil:
			return nil, q.failed
		}
		if err := q.await(ctx, q.query, usable); err != nil && (!usable || ctx.Err() != nil) {
			return nil, err
		}
	}
}

// start starts a query, which serves other callers as well and so does not end with this one. ctx lends
// the query its class.
func (q *quotas) start(ctx context.Context, now time.Time) {
	query, changes := &quotaQuery{began: now, done: make(chan struct{})}, q.changes
	if !q.owner.Go(func(context.Context) { q.run(context.WithoutCancel(ctx), query, changes) }) {
		q.failed = errClosed
		return
	}
	q.query = query
}

// await waits for a query without the lock. With short it waits at most until quotaWait after the
// query's start.
func (q *quotas) await(ctx context.Context, query *quotaQuery, short bool) error {
	q.mu.Unlock()
	defer q.mu.Lock()
	var late <-chan time.Time
	if short {
		late = time.After(time.Until(query.began.Add(quotaWait)))
	}
	select {
	case <-late:
		return nil
	case <-query.done:
		return query.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run makes a query. Its rows are dropped if a change was made here since it began:
// they may be older than the change.
func (q *quotas) run(ctx context.Context, query *quotaQuery, changes int) {
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	defer context.AfterFunc(q.owner.Context(), cancel)()
	list, err := q.list(ctx)
	if err != nil && q.owner.Context().Err() != nil {
		err = errClosed
	}
	rows := make(map[berth.TenantID]db.TenantRow, len(list))
	for _, t := range list {
		rows[t.ID] = t
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.query, q.failed = nil, err
	switch now := time.Now(); {
	case err != nil:
		q.pause = now.Add(quotaPause)
	case changes == q.changes:
		q.rows, q.at = rows, now
	}
	query.err = err
	close(query.done)
}

// forget makes the next caller wait for the rows: one was changed here.
func (q *quotas) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.at = time.Time{}
	q.changes++
}

// submitLimits returns the rates of submits that apply to a tenant: its own, or standard without
// one (0: no limit), and the rates of the tenants above.
func (q *quotas) submitLimits(ctx context.Context, tenant berth.TenantID, standard float64) ([]db.SubmitLimit, error) {
	rows, err := q.read(ctx)
	if err != nil {
		return nil, err
	}
	var limits []db.SubmitLimit
	at := rows[tenant]
	if own := at.Quota.SubmitRPS; own != nil {
		limits = append(limits, db.SubmitLimit{Tenant: tenant, Rate: *own})
	} else if standard > 0 {
		limits = append(limits, db.SubmitLimit{Tenant: tenant, Rate: standard})
	}
	for at, ok := rows[at.Parent]; ok; at, ok = rows[at.Parent] {
		if r := at.Quota.SubmitRPS; r != nil {
			limits = append(limits, db.SubmitLimit{Tenant: at.ID, Rate: *r})
		}
	}
	return limits, nil
}

// maxPriority returns the greatest allowed priority of a tenant's jobs, and the tenant with
// that quota: the tenant itself, or one above. ok is false without a bound.
func (q *quotas) maxPriority(ctx context.Context,
	tenant berth.TenantID) (most spec.Priority, of berth.TenantID, ok bool, err error) {
	rows, err := q.read(ctx)
	if err != nil {
		return 0, "", false, err
	}
	for at, here := rows[tenant]; here; at, here = rows[at.Parent] {
		if p := at.Quota.MaxPriority; p != nil && (!ok || *p < most) {
			most, of, ok = *p, at.ID, true
		}
	}
	return most, of, ok, nil
}

// storageLimits returns the storage limits that apply to a tenant: its own and the limits of the
// tenants above.
func (q *quotas) storageLimits(ctx context.Context, tenant berth.TenantID) ([]db.StorageLimit, error) {
	rows, err := q.read(ctx)
	if err != nil {
		return nil, err
	}
	var limits []db.StorageLimit
	for at, ok := rows[tenant]; ok; at, ok = rows[at.Parent] {
		limits = append(limits, db.LimitsOf(at.Quota)...)
	}
	return limits, nil
}
