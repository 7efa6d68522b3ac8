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
	Parent *berth.JobID      // children of this parent, in ascending order; nil: jobs without a parent
	Index  []spec.IndexRange // only elements with these indexes
	Merged bool              // of an array: with its retries, the latest element of each index; see Retries.Runs
	Since  time.Time         // submitted at or after

	SubmittedBy string // actor of the submit, such as user:alice
	DeadLetter  bool   // only jobs that failed with their budget spent

	Limit  int    // 0: 100; at most 1000
	Cursor string // returned with the page before; "" for the first page
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

// inArchive replaces columns of jobs in a condition by their places in a row of
// archived_jobs, where they are in the job's document.
var inArchive = strings.NewReplacer(
	indexColumn, indexArchived,
	"dead_letter", "(job ->> 'dead_letter')::boolean",
	"submitted_by", "(job ->> 'submitted_by')",
)

// facts returns the conditions of f on the row of a job, apart from its status and its
// parent, and adds their arguments to args.
func (f JobFilter) facts(args namedArgs) (list []string) {
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
	if f.SubmittedBy != "" {
		add("submitted_by = @actor", "actor", f.SubmittedBy)
	}
	if f.DeadLetter {
		list = append(list, "dead_letter")
	}
	return list
}

// conditions returns the conditions of f on a row, without the status. Absent conditions are
// not written: a prepared statement has one plan for all values, and the plan of an optional
// condition would use no index.
func (f JobFilter) conditions(after *jobCursor) ([]string, namedArgs) {
	args := namedArgs{"limit": f.Limit + 1}
	list := f.facts(args)
	add := func(condition, name string, value any) {
		list, args[name] = append(list, condition), value
	}
	if f.Parent != nil {
		add("parent = @parent", "parent", f.Parent)
	} else {
		list = append(list, "parent IS NULL")
	}
	switch {
	case after == nil:
	case f.Parent != nil && after.Index != nil:
		add("("+indexColumn+", id) > (@after_index::int, @after_id::uuid)", "after_index", *after.Index)
		args["after_id"] = after.ID
	case f.Parent != nil: // steps have no index, and their ids ascend in the order of the graph
		add("id > @after_id::uuid", "after_id", after.ID)
	default:
		add("(submitted_at, id) < (@after_at, @after_id::uuid)", "after_at", after.At)
		args["after_id"] = after.ID
	}
	return list, args
}

// order returns the order of a page in a table that has the index of an element in the
// given column: newest first or, under one parent, elements by index and steps as their
// graph orders them. The constraint on the index of an element is the index of that walk.
func (f JobFilter) order(index string) string {
	if f.Parent != nil {
		return index + ", id"
	}
	return "submitted_at DESC, id DESC"
}

// states returns conditions on the status, one for each index walk. Every walk follows an
// index in the order of lists. A single walk over all jobs would pass the whole history to
// find the few that are live, that failed, or that have a name. Statuses are literals, since
// a plan for any status would not use some of the indexes.
func (f JobFilter) states() (jobs, archived []string) {
	wanted := f.Status
	if f.DeadLetter && len(wanted) == 0 {
		wanted = []berth.State{berth.Failed}
		f.Status = wanted
	}
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

// walks returns the walks that find the jobs of f, each a subquery of at most @limit rows in
// the order of the list.
func (f JobFilter) walks(after *jobCursor) ([]string, namedArgs) {
	conditions, args := f.conditions(after)
	var walks []string
	walk := func(table, index, document, state string) {
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
			where = inArchive.Replace(where)
		}
		walks = append(walks, `
			(
				SELECT id, submitted_at, `+index+` AS idx, `+document+` AS job
				FROM `+table+where+`
				ORDER BY `+f.order(index)+`
				LIMIT @limit
			)`)
	}
	if f.byLabel() {
		walks = append(walks, f.labelWalk(conditions, after, args))
	} else {
		jobs, archived := f.states()
		for _, state := range jobs {
			walk("jobs", indexColumn, "NULL::jsonb", state)
		}
		for _, state := range archived {
			walk("archived_jobs", indexArchived, "job", state)
		}
	}
	return walks, args
}

// query returns the statement for one page of f. A single statement sees a job once, even
// while the job moves to the archive. It renders documents for the page only, not for all
// candidates.
func (f JobFilter) query(after *jobCursor) (string, namedArgs) {
	walks, args := f.walks(after)
	return `
		SELECT coalesce(
			page.job - '{spec,attempts,checkpoints,progress}'::text[],
			(SELECT ` + jobDocument + ` FROM jobs j WHERE j.id = page.id)) ||
			jsonb_build_object('handle', ` + handleOf("page.id") + `)
		FROM (
			SELECT id, submitted_at, idx, job
			FROM (` + strings.Join(walks, `
			UNION ALL`) + `
			) found
			ORDER BY ` + f.order("idx") + `
			LIMIT @limit
		) page
		ORDER BY ` + f.order("idx"), args
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
func (f JobFilter) labelWalk(conditions []string, after *jobCursor, args namedArgs) string {
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
				SELECT l.job AS id, l.submitted_at, NULL::int AS idx, found.job
				FROM job_labels l
				CROSS JOIN LATERAL (
					SELECT NULL::jsonb AS job FROM jobs WHERE ` + where + `
					UNION ALL
					SELECT job FROM archived_jobs WHERE ` + inArchive.Replace(where) + `
					OFFSET 0
				) found
				WHERE ` + strings.Join(along, " AND ") + `
				ORDER BY l.submitted_at DESC, l.job DESC
				LIMIT @limit
			)`
}

// List returns a page of jobs, archived jobs included, and the cursor of the next page, ""
// after the last. Jobs are listed newest first; elements of one array by index, with their
// variables, and with f.Merged the latest of each index; and steps of one pipeline as their
// graph orders them. A page has f.Limit jobs, at most MaxPage. A malformed cursor, or one of
// a list in the other order, is invalid.
func (d *Jobs) List(ctx context.Context, f JobFilter) ([]wire.Job, string, error) {
	if f.Limit <= 0 {
		f.Limit = DefaultPage
	}
	f.Limit = min(f.Limit, MaxPage)
	after, err := f.after()
	if err != nil {
		return nil, "", err
	}
	sql, args := f.query(after)
	if f.Merged && f.Parent != nil {
		runs, err := readArrayRuns(ctx, d.pool, *f.Parent)
		if err != nil {
			return nil, "", mapError(err, "jobs")
		}
		if len(runs) > 1 {
			sql, args = f.mergedQuery(runs, after)
		}
	}
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, "", mapError(err, "jobs")
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowTo[wire.Job])
	if err != nil {
		return nil, "", mapError(err, "jobs")
	}
	next := ""
	if len(jobs) > f.Limit {
		jobs = jobs[:f.Limit]
		next = f.cursor(jobs[f.Limit-1]).String()
	}
	if f.Parent != nil {
		err = addVariables(ctx, d.pool, jobs)
	}
	return jobs, next, mapError(err, "jobs")
}

// jobCursor is the position after a job in the order of lists. It is opaque to
// clients, and an edited one selects nothing that the filter would not.
type jobCursor struct {
	At    time.Time
	ID    berth.JobID
	Below bool // a position in the list of one parent's children
	Index *int // of an element, in such a list
}

// cursor returns the position after a job in the order of f.
func (f JobFilter) cursor(last wire.Job) jobCursor {
	return jobCursor{At: last.SubmittedAt, ID: last.ID, Below: f.Parent != nil, Index: last.ArrayIndex}
}

// after decodes the cursor of f; nil for the first page. A cursor of the other order would
// skip jobs, so it is refused.
func (f JobFilter) after() (*jobCursor, error) {
	c, err := parseCursor(f.Cursor)
	if err == nil && c != nil && c.Below != (f.Parent != nil) {
		return nil, badCursor(f.Cursor)
	}
	return c, err
}

// String encodes the cursor. Microseconds are the resolution of a timestamp in the database.
// A position below a parent has the index as its third part: null for a step.
func (c jobCursor) String() string {
	parts := []any{c.At.UnixMicro(), c.ID}
	if c.Below {
		parts = append(parts, c.Index)
	}
	b, err := json.Marshal(parts)
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
	bad := badCursor(s)
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) > 200 {
		return nil, bad
	}
	var micros int64
	var id string
	var index *int
	parts := []any{&micros, &id, &index}
	if err := json.Unmarshal(b, &parts); err != nil {
		return nil, bad
	}
	job, err := berth.ParseJobID(id)
	at := time.UnixMicro(micros).UTC()
	if err != nil || at.Year() < 2000 || at.Year() > 2200 {
		return nil, bad
	}
	return &jobCursor{At: at, ID: job, Below: len(parts) == 3, Index: index}, nil
}

// badCursor is the error for a cursor that belongs to no list, or to a list in another order.
func badCursor(s string) error {
	return berth.Errorf(berth.CodeInvalid, "cursor %.40q is not a cursor of this list", s)
}
