package db

import (
	"context"
	"maps"
	"sync"

	"berth"
	"berth/failure"
)

// End is an outcome of attempts: the job's next state and the reason.
type End struct {
	Next   berth.State
	Reason berth.ReasonCode // "" of a success
}

// EndCount counts the attempts with one outcome.
type EndCount struct {
	Attempts       int64
	LostGPUSeconds float64 // GPU time that must be repeated
}

// ends counts attempts. The zero value is ready to use.
type ends struct {
	mu sync.Mutex
	by map[End]EndCount
}

// add counts one attempt. It is safe for concurrent use.
func (e *ends) add(end End, lost float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.by == nil {
		e.by = map[End]EndCount{}
	}
	n := e.by[end]
	n.Attempts++
	n.LostGPUSeconds += lost
	e.by[end] = n
}

// EndCounts returns a copy of the counts of attempts settled by this process since its
// start.
func (d *Attempts) EndCounts() map[End]EndCount {
	d.ends.mu.Lock()
	defer d.ends.mu.Unlock()
	return maps.Clone(d.ends.by)
}

// count adds an attempt that this process has just settled.
func (d *Attempts) count(ctx context.Context, id berth.JobID, attempt int, v failure.Verdict) {
	lost := 0.0
	if v.Next == berth.Retrying {
		// Lost work is used for metrics only: if the query fails, the attempt counts with
		// none.
		err := d.pool.QueryRow(ctx, `
			SELECT coalesce(l.gpu_seconds, 0)::float8
			FROM attempts t
			CROSS JOIN LATERAL (`+lostWork+`) l
			WHERE t.job = @job AND t.attempt = @attempt`, namedArgs{"job": id, "attempt": attempt}).Scan(&lost)
		if err != nil {
			d.log.Debug("cannot read lost work", "job_id", id, "attempt", attempt, "err", err)
			lost = 0
		}
	}
	d.ends.add(End{v.Next, v.Reason.Code}, lost)
}
