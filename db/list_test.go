package db_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/spec"
)

// TestListsOfFewJobsDoNotReadThemAll checks that a page of any filter reads rows in proportion to the page,
// and not to all stored jobs. Each job of the page takes four more rows for its handle.
func TestListsOfFewJobsDoNotReadThemAll(t *testing.T) {
	t.Parallel()
	const ended, rare, most = 3999, 3, 700
	s := newStage(t)
	live := []berth.JobID{s.submit(nil), s.submit(nil)}
	mustExec(t, s.pool, `
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, submitted_at, finished_at, labels)
		SELECT gen_random_uuid(), 'default', CASE WHEN i % ($1 / $2) = 1 THEN 'rare' ELSE 'common' END, 'c', 500, true,
			CASE WHEN i % ($1 / $2) = 2 THEN 'failed' ELSE 'succeeded' END, 0, 0, 'test', now() + i * interval '1 second', now(),
			CASE WHEN i % ($1 / $2) = 3 THEN '{"team": "blue", "run": "rare"}' ELSE '{"team": "blue"}' END::jsonb
		FROM generate_series(1, $1::int) AS i`, ended, rare)
	mustExec(t, s.pool, `
		INSERT INTO archived_jobs (id, tenant, name, state, labels, submitted_at, finished_at, job, events)
		SELECT gen_random_uuid(), tenant, name, state, labels, submitted_at - interval '1 year', finished_at, jsonb_build_object('id', id), '[]'
		FROM jobs
		WHERE state IN ('succeeded', 'failed')`)
	mustExec(t, s.pool, `
		INSERT INTO job_labels (key, value, submitted_at, job, tenant) -- they were jobs once
		SELECT l.key, l.value, a.submitted_at, a.id, a.tenant
		FROM archived_jobs a, jsonb_each_text(a.labels) l`)
	mustExec(t, s.pool, `ANALYZE jobs, archived_jobs, job_labels`)
	conn, err := s.beside().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil { // as db.Open sets it
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		filter db.JobFilter
		want   int
	}{
		"newest":              {db.JobFilter{}, 51},
		"of a tenant":         {db.JobFilter{Tenant: "default"}, 51},
		"submitted":           {db.JobFilter{Status: []berth.State{berth.Submitted}}, len(live)},
		"live, of a tenant":   {db.JobFilter{Status: []berth.State{berth.Submitted, berth.Running}, Tenant: "default"}, len(live)},
		"failed":              {db.JobFilter{Status: []berth.State{berth.Failed}}, 2 * rare},
		"failed or submitted": {db.JobFilter{Status: []berth.State{berth.Failed, berth.Submitted}}, 2*rare + len(live)},
		"rare name":           {db.JobFilter{Name: "rare"}, 2 * rare},
		"common name":         {db.JobFilter{Name: "common"}, 51},
		"rare name, failed":   {db.JobFilter{Name: "rare", Status: []berth.State{berth.Failed}}, 0},
		"nobody's name":       {db.JobFilter{Name: "nobody"}, 0},
		"rare label":          {db.JobFilter{Labels: map[string]string{"run": "rare"}}, 2 * rare},
		"rare and common":     {db.JobFilter{Labels: map[string]string{"run": "rare", "team": "blue"}, Tenant: "default"}, 2 * rare},
		"common label":        {db.JobFilter{Labels: map[string]string{"team": "blue"}}, 51},
		"common, of a tenant": {db.JobFilter{Labels: map[string]string{"team": "blue"}, Tenant: "default"}, 51},
		"common, submitted":   {db.JobFilter{Labels: map[string]string{"team": "blue"}, Status: []berth.State{berth.Submitted}}, 0},
		"rare label, ended":   {db.JobFilter{Labels: map[string]string{"run": "rare"}, Status: []berth.State{berth.Succeeded}}, 2 * rare},
		"nobody's label":      {db.JobFilter{Labels: map[string]string{"run": "none"}}, 0},
		"label of nobody":     {db.JobFilter{Labels: map[string]string{"run": "rare"}, Tenant: "nobody"}, 0},
	} {
		row.filter.Limit = 50
		sql, args := row.filter.Query()
		found, read := rowsRead(t, conn.Conn(), sql, args)
		if found != row.want || read > most {
			t.Errorf("%s: %d jobs of %d, after reading %d rows; at most %d should do", name, found, row.want, read, most)
		}
	}
}

// rowsRead executes a prepared statement. It returns the number of rows in the result and the number of rows
// that its scans read.
func rowsRead(t *testing.T, conn *pgx.Conn, sql string, named pgx.QueryRewriter) (found, read int) {
	t.Helper()
	sql, args, err := named.RewriteQuery(t.Context(), conn, sql, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Prepare(t.Context(), "looked_at", sql); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Deallocate(context.WithoutCancel(t.Context()), "looked_at") }()
	values := make([]string, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case map[string]string:
			b, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			values[i] = "'" + string(b) + "'"
		case []berth.State:
			values[i] = "'{" + strings.Trim(fmt.Sprint(a), "[]") + "}'"
		default:
			values[i] = "'" + fmt.Sprint(a) + "'"
		}
	}
	var text string
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE looked_at ("+strings.Join(values, ", ")+")").Scan(&text); err != nil {
		t.Fatal(err)
	}
	type node struct {
		Type    string  `json:"Node Type"`
		Rows    float64 `json:"Actual Rows"`
		Loops   float64 `json:"Actual Loops"`
		Removed float64 `json:"Rows Removed by Filter"`
		Plans   []node
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	var count func(n node)
	count = func(n node) {
		// Rows of functions and of results in memory are no rows of tables.
		if len(n.Plans) == 0 && n.Type != "Function Scan" && n.Type != "CTE Scan" {
			read += int(n.Loops * (n.Rows + n.Removed))
		}
		for _, child := range n.Plans {
			count(child)
		}
	}
	count(plans[0].Plan)
	return int(plans[0].Plan.Rows), read
}

func TestListsByStatusNameAndLabelSelectWhereverAJobLies(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	archived, ended, live := s.ended(), s.ended(), s.submit(func(j *spec.Job) { j.Labels = map[string]string{"k": "old", "l": "w"} })
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now() WHERE job = $1`, archived)
	s.archive(1)
	name := s.job(live).Name
	value := "v"
	if err := s.db.Jobs.Update(t.Context(), "default", live, spec.JobPatch{Labels: map[string]*string{"k": &value}}, "user:test"); err != nil {
		t.Fatal(err)
	}
	for what, row := range map[string]struct {
		filter db.JobFilter
		want   []berth.JobID
	}{
		"name":                   {db.JobFilter{Name: name}, []berth.JobID{live, ended, archived}},
		"succeeded":              {db.JobFilter{Status: []berth.State{berth.Succeeded}}, []berth.JobID{ended, archived}},
		"succeeded, canceled":    {db.JobFilter{Status: []berth.State{berth.Canceled, berth.Succeeded}}, []berth.JobID{ended, archived}},
		"live and ended":         {db.JobFilter{Status: []berth.State{berth.Submitted, berth.Succeeded, berth.Succeeded}}, []berth.JobID{live, ended, archived}},
		"name, succeeded":        {db.JobFilter{Name: name, Status: []berth.State{berth.Succeeded}}, []berth.JobID{ended, archived}},
		"every status":           {db.JobFilter{Status: berth.States}, []berth.JobID{live, ended, archived}},
		"label":                  {db.JobFilter{Labels: map[string]string{"k": "v"}}, []berth.JobID{live, ended, archived}},
		"label, of a tenant":     {db.JobFilter{Labels: map[string]string{"k": "v"}, Tenant: "default"}, []berth.JobID{live, ended, archived}},
		"labels":                 {db.JobFilter{Labels: map[string]string{"k": "v", "l": "w"}}, []berth.JobID{live}},
		"label it had":           {db.JobFilter{Labels: map[string]string{"k": "old"}}, nil},
		"label, succeeded":       {db.JobFilter{Labels: map[string]string{"k": "v"}, Status: []berth.State{berth.Succeeded}}, []berth.JobID{ended, archived}},
		"label, any status":      {db.JobFilter{Labels: map[string]string{"k": "v"}, Status: berth.States}, []berth.JobID{live, ended, archived}},
		"label, submitted":       {db.JobFilter{Labels: map[string]string{"k": "v"}, Status: []berth.State{berth.Submitted}}, []berth.JobID{live}},
		"label, since":           {db.JobFilter{Labels: map[string]string{"k": "v"}, Since: s.job(ended).SubmittedAt}, []berth.JobID{live, ended}},
		"no status of that kind": {db.JobFilter{Status: []berth.State{"succeeded' OR true"}}, nil},
	} {
		row.filter.Limit = 1 // one job per page, to test the cursor
		var got []berth.JobID
		for {
			jobs, next, err := s.db.Jobs.List(t.Context(), row.filter)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, j := range jobs {
				got = append(got, j.ID)
			}
			if row.filter.Cursor = next; next == "" {
				break
			}
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}
