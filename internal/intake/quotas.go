package intake

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/db"
)

// quotas tells what a tenant's limits can never hold. They are remembered for a
// moment, so that a submit does not wait for them: whether there is room now is
// for the leader to say, who reads them anew.
type quotas struct {
	db *db.DB

	mu    sync.Mutex
	rows  map[berth.TenantID]db.TenantRow
	until time.Time
}

const quotaMemory = time.Second

// admit returns an error of slug quota if the tenant, or one above it, may never
// hold as much as the request asks for.
func (q *quotas) admit(ctx context.Context, tenant berth.TenantID, r berth.Request) error {
	rows, err := q.read(ctx)
	if err != nil {
		return err
	}
	for at, ok := rows[tenant]; ok; at, ok = rows[at.Parent] {
		faults := at.Quota.Exceeds(r)
		if len(faults) == 0 {
			continue
		}
		return &berth.Error{Code: berth.CodeForbidden, Slug: berth.SlugQuota, Fields: faults, Message: faults[0].Field + " " + faults[0].Detail}
	}
	return nil
}

// line is the tenant and those above it. One that is not remembered may have been
// made a moment ago, by another process, and is looked for anew.
func (q *quotas) line(ctx context.Context, tenant berth.TenantID) ([]berth.TenantID, error) {
	rows, err := q.read(ctx)
	if _, here := rows[tenant]; err == nil && !here {
		q.forget()
		rows, err = q.read(ctx)
	}
	if err != nil {
		return nil, err
	}
	line := []berth.TenantID{tenant}
	for at, ok := rows[tenant]; ok && at.Parent != ""; at, ok = rows[at.Parent] {
		line = append(line, at.Parent)
	}
	return line, nil
}

func (q *quotas) read(ctx context.Context) (map[berth.TenantID]db.TenantRow, error) {
	q.mu.Lock()
	rows, fresh := q.rows, time.Now().Before(q.until)
	q.mu.Unlock()
	if fresh {
		return rows, nil
	}
	list, err := q.db.TenantRows(ctx)
	if err != nil {
		return nil, err
	}
	rows = make(map[berth.TenantID]db.TenantRow, len(list))
	for _, t := range list {
		rows[t.ID] = t
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rows, q.until = rows, time.Now().Add(quotaMemory)
	return rows, nil
}

// forget makes the next question read them: one was changed here.
func (q *quotas) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Time{}
}
