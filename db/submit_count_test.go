package db_test

import (
	"encoding/json"
	"testing"

	"berth/db"
	"berth/spec"
)

// countsWaitingJobs reports whether the statement counts jobs that wait when it is executed: whether
// a scan of jobs under the alias of the count has run.
func (s *stage) countsWaitingJobs(sql string, args ...any) bool {
	s.t.Helper()
	var text string
	if err := s.pool.QueryRow(s.t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		s.t.Fatal(err)
	}
	type node struct {
		Alias string  `json:"Alias"`
		Loops float64 `json:"Actual Loops"`
		Plans []node
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		s.t.Fatal(err)
	}
	var ran func(n node) bool
	ran = func(n node) bool {
		if n.Alias == "w" && n.Loops > 0 {
			return true
		}
		for _, child := range n.Plans {
			if ran(child) {
				return true
			}
		}
		return false
	}
	return ran(plans[0].Plan)
}

// The count costs more the longer the queue is, and a flood makes queues long.
func TestWaitingJobsAreCountedOnlyForAQuotaOfThem(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.submit(nil)
	for _, limited := range []bool{false, true} {
		if limited {
			most := 100
			if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", MaxQueued: &most}); err != nil {
				t.Fatal(err)
			}
		}
		sql, args, err := db.SubmitStatement(submission("digits", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.countsWaitingJobs(sql, args...); got != limited {
			t.Errorf("a submit, with max_queued %v: counts the waiting jobs %v", limited, got)
		}
		if got := s.countsWaitingJobs(db.FullTenants); got != limited {
			t.Errorf("the look for parents, with max_queued %v: counts the waiting jobs %v", limited, got)
		}
	}
}
