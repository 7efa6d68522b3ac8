package api

import (
	"context"
	"fmt"
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

// standing is what stands in the way of one more job among the quotas of its
// tenant and of those above it: all of it at once.
func (s *Server) standing(ctx context.Context, tenant berth.TenantID, r berth.Request) ([]berth.Blocker, error) {
	rows, err := s.DB.Tenants(ctx, "")
	if err != nil {
		return nil, err
	}
	var list []berth.Blocker
	byID := make(map[berth.TenantID]db.TenantRow, len(rows))
	for _, t := range rows {
		byID[t.ID] = t
	}
	for t, ok := byID[tenant]; ok; t, ok = byID[t.Parent] {
		held := heldBelow(rows, t.ID)
		for _, text := range limitsMet(t.Quota, held, r) {
			list = append(list, berth.Blocker{Code: "quota", Message: fmt.Sprintf("tenant %s %s", t.ID, text), Hint: "wait until work of the tenant ends, or ask an operator for a larger quota"})
		}
	}
	return list, nil
}

// heldBelow is what a tenant and all below it have now.
func heldBelow(rows []db.TenantRow, id berth.TenantID) berth.TenantUse {
	sum := berth.TenantUse{Holding: berth.Amounts{CPUs: new(berth.MilliCPU), Memory: new(berth.MiB), GPUs: new(berth.MilliGPU)}}
	for _, t := range rows {
		switch {
		case t.ID == id:
			sum.SpentGPUs = t.Use.SpentGPUs
			addUse(&sum, t.Use)
		case t.Parent == id:
			addUse(&sum, heldBelow(rows, t.ID))
		}
	}
	return sum
}

func addUse(sum *berth.TenantUse, u berth.TenantUse) {
	sum.Running += u.Running
	*sum.Holding.CPUs += *u.Holding.CPUs
	*sum.Holding.Memory += *u.Holding.Memory
	*sum.Holding.GPUs += *u.Holding.GPUs
}

// limitsMet says which settings of a quota one more job would break.
func limitsMet(q berth.Quota, use berth.TenantUse, r berth.Request) []string {
	var list []string
	n := int64(max(1, r.Members))
	c := r.Capacity()
	over := func(a *berth.Amounts, of string) {
		if a == nil {
			return
		}
		if l := a.GPUs; l != nil && c.GPUMilli > 0 && int64(*use.Holding.GPUs)+n*c.GPUMilli > int64(*l) {
			list = append(list, fmt.Sprintf("holds %s of %s GPUs of its %s", use.Holding.GPUs, l, of))
		}
		if l := a.CPUs; l != nil && int64(*use.Holding.CPUs)+n*c.CPUMilli > int64(*l) {
			list = append(list, fmt.Sprintf("holds %s of %s CPUs of its %s", use.Holding.CPUs, l, of))
		}
		if l := a.Memory; l != nil && int64(*use.Holding.Memory)+n*c.MemoryMiB > int64(*l) {
			list = append(list, fmt.Sprintf("holds %s of %s of memory of its %s", use.Holding.Memory, l, of))
		}
	}
	over(q.Limit, "limit")
	if q.Borrow == berth.BorrowNone {
		over(q.Guarantee, "guarantee, and borrows nothing")
	}
	if q.MaxRunning != nil && use.Running >= *q.MaxRunning {
		list = append(list, fmt.Sprintf("runs %d jobs, as many as its max_running", use.Running))
	}
	if b := q.Budget; b != nil && use.SpentGPUs >= b.GPUHours {
		list = append(list, fmt.Sprintf("has spent %.1f of %g GPU-hours of its budget for %s", use.SpentGPUs, b.GPUHours, b.Period))
	}
	return list
}
