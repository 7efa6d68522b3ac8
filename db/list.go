package db

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// JobFilter selects jobs; zero fields select all.
type JobFilter struct {
	Tenant berth.TenantID
	Status []berth.State
	Name   string
	Labels map[string]string // all must match
	Parent *berth.JobID      // elements of this parent; nil: jobs without a parent
	Index  []spec.IndexRange // only elements with these indexes
	Since  time.Time         // submitted at or after
	Limit  int               // 0: 100; at most 1000
	Cursor string            // returned with the page before; "" for the first page
}

// Page sizes, in jobs.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// indexColumn is the array index in a row of jobs. In the archive the index is in the job's
// document.
const (
	indexColumn   = "array_index"
	indexArchived = "(job ->> 'array_index')::int"
)

// conditions returns the conditions of f on a row, without the status. Absent conditions are
// not written: a prepared statement has one plan for all values, and the plan of an optional
// condition would use no index.
func (f JobFilter) conditions(after *jobCursor) ([]string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"limit": f.Limit + 1}
	var list []string
	add := func(condition, name string, value any) {
		list, args[name] = append(list, condition), value
	}
	if f.Tenant != "" {
		add("tenant = @tenant", "tenant", f.Tenant)
	}
	if f.Name != "" {
		add("name = @name", "name", f.Name)
	}
	if len(f.Labels) > 0 {
		add("labels @> @labels", "labels", f.Labels)
	}
	if f.Parent != nil {
		add("parent = @parent", "parent", f.Parent)
	} else {
		list = append(list, "parent IS NULL")
	}
	if len(f.Index) > 0 {
		first, last := make([]int, len(f.Index)), make([]int, len(f.Index))
		for i, r := range f.Index {
			first[i], last[i] = r.First, r.Last
		}
		add("EXISTS (SELECT 1 FROM unnest(@first::int[], @last::int[]) AS r (first, last) WHERE "+indexColumn+
			" BETWEEN r.first AND r.last)", "first", first)
		args["last"] = last
	}
	if !f.Since.IsZero() {
		add("submitted_at >= @since", "since", f.Since)
	}
	if after != nil {
		add("(submitted_at, id) < (@after_at, @after_id::uuid)", "after_at", after.At)
		args["after_id"] = after.ID
	}
	return list, args
}

// states returns conditions on the status, one for each index walk. Every walk follows an
// index in the order of lists. A single walk over all jobs would pass the whole history to
// find the few that are live, that failed, or that have a name. Statuses are literals, since
// a plan for any status would not use some of the indexes.
func (f JobFilter) states() (jobs, archived []string) {
	wanted := f.Status
	if len(wanted) == 0 {
		if f.Name == "" {
			return []string{""}, []string{""}
		}
		wanted = berth.States
	}
	var live, ended []string
	for _, s := range berth.States {
		switch {
		case !slices.Contains(wanted, s):
		case s.Terminal():
			ended = append(ended, "'"+string(s)+"'")
		default:
			live = append(live, "'"+string(s)+"'")
		}
	}
	if len(live)+len(ended) == 0 {
		return []string{"false"}, nil
	}
	if len(live) > 0 {
		jobs = append(jobs, "state IN ("+strings.Join(live, ", ")+")")
	}
	if len(f.Status) == 0 {
		return append(jobs, "state IN ("+strings.Join(ended, ", ")+")"), []string{""}
	}
	for _, s := range ended {
		jobs, archived = append(jobs, "state = "+s), append(archived, "state = "+s)
	}
	return jobs, archived
}

// query returns the statement for one page of f. A single statement sees a job once, even
// while the job moves to the archive. It renders documents for the page only, not for all
// candidates.
func (f JobFilter) query(after *jobCursor) (string, pgx.NamedArgs) {
	conditions, args := f.conditions(after)
	var walks []string
	walk := func(columns, table, state string) {
		all := conditions
		if state != "" {
			all = append([]string{state}, conditions...)
		}
		where := ""
		if len(all) > 0 {
			where = `
				WHERE ` + strings.Join(all, " AND ")
		}
		if table == "archived_jobs" {
			where = strings.ReplaceAll(where, indexColumn, indexArchived)
		}
		walks = append(walks, `
			(
				SELECT `+columns+`
				FROM `+table+where+`
				ORDER BY submitted_at DESC, id DESC
				LIMIT @limit
			)`)
	}
	if f.byLabel() {
		walks = append(walks, f.labelWalk(conditions, after, args))
	} else {
		jobs, archived := f.states()
		for _, state := range jobs {
			walk("id, submitted_at, NULL::jsonb AS job", "jobs", state)
		}
		for _, state := range archived {
			walk("id, submitted_at, job", "archived_jobs", state)
		}
	}
	return `
		SELECT coalesce(
			page.job - '{spec,attempts,checkpoints,progress}'::text[],
			(SELECT ` + jobDocument + ` FROM jobs j WHERE j.id = page.id))
		FROM (
			SELECT id, submitted_at, job
			FROM (` + strings.Join(walks, `
			UNION ALL`) + `
			) found
			ORDER BY submitted_at DESC, id DESC
			LIMIT @limit
		) page
		ORDER BY page.submitted_at DESC, page.id DESC`, args
}

// byLabel reports whether a label is the most selective condition of f. Jobs of one name,
// jobs of one parent and live jobs are fewer.
func (f JobFilter) byLabel() bool {
	return len(f.Labels) > 0 && f.Name == "" && f.Parent == nil &&
		(len(f.Status) == 0 || slices.ContainsFunc(f.Status, berth.State.Terminal))
}

// labelWalk walks along the jobs with the first of f's labels, live or archived, and checks
// each, until the page is full. OFFSET 0 keeps the order of the walk: without it the planner
// may read all jobs for a join.
func (f JobFilter) labelWalk(conditions []string, after *jobCursor, args pgx.NamedArgs) string {
	key := slices.Min(slices.Collect(maps.Keys(f.Labels)))
	args["label_key"], args["label_value"] = key, f.Labels[key]
	along := []string{"l.key = @label_key", "l.value = @label_value"}
	if f.Tenant != "" {
		along = append(along, "l.tenant = @tenant")
	}
	if !f.Since.IsZero() {
		along = append(along, "l.submitted_at >= @since")
	}
	if after != nil {
		along = append(along, "(l.submitted_at, l.job) < (@after_at, @after_id::uuid)")
	}
	if len(f.Status) > 0 {
		args["status"] = f.Status
		conditions = append(slices.Clone(conditions), "state = ANY(@status)")
	}
	where := strings.Join(append([]string{"id = l.job"}, conditions...), " AND ")
	return `
			(
				SELECT l.job AS id, l.submitted_at, found.job
				FROM job_labels l
				CROSS JOIN LATERAL (
					SELECT NULL::jsonb AS job FROM jobs WHERE ` + where + `
					UNION ALL
					SELECT job FROM archived_jobs WHERE ` + where + `
					OFFSET 0
				) found
				WHERE ` + strings.Join(along, " AND ") + `
				ORDER BY l.submitted_at DESC, l.job DESC
				LIMIT @limit
			)`
}

// List returns a page of jobs, newest first, archived jobs included, and the cursor of the
// next page, "" after the last. A page has f.Limit jobs, at most MaxPage. A malformed cursor
// is invalid.
func (d *Jobs) List(ctx context.Context, f JobFilter) ([]wire.Job, string, error) {
	if f.Limit <= 0 {
		f.Limit = DefaultPage
	}
	f.Limit = min(f.Limit, MaxPage)
	after, err := parseCursor(f.Cursor)
	if err != nil {
		return nil, "", err
	}
	sql, args := f.query(after)
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, "", mapError(err, "jobs")
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowTo[wire.Job])
	if err != nil {
		return nil, "", mapError(err, "jobs")
	}
	if len(jobs) <= f.Limit {
		return jobs, "", nil
	}
	last := jobs[f.Limit-1]
	return jobs[:f.Limit], jobCursor{last.SubmittedAt, last.ID}.String(), nil
}

// jobCursor is the position after a job in the order of lists. It is opaque to
// clients, and an edited one selects nothing that the filter would not.
type jobCursor struct {
	At time.Time
	ID berth.JobID
}

// String encodes the cursor. Microseconds are the resolution of a timestamp in the database.
func (c jobCursor) String() string {
	b, err := json.Marshal([]any{c.At.UnixMicro(), c.ID})
	if err != nil {
		panic("cursor does not marshal: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor decodes a cursor; nil for the first page. It bounds the input, which comes from
// clients.
func parseCursor(s string) (*jobCursor, error) {
	if s == "" {
		return nil, nil
	}
	bad := berth.Errorf(berth.CodeInvalid, "cursor %.40q is not a cursor of this list", s)
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) > 200 {
		return nil, bad
	}
	var micros int64
	var id string
	if err := json.Unmarshal(b, &[]any{&micros, &id}); err != nil {
		return nil, bad
	}
	job, err := berth.ParseJobID(id)
	at := time.UnixMicro(micros).UTC()
	if err != nil || at.Year() < 2000 || at.Year() > 2200 {
		return nil, bad
	}
	return &jobCursor{at, job}, nil
}
