package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// NewSchedule is a schedule to create.
type NewSchedule struct {
	Tenant berth.TenantID
	Spec   spec.Schedule // valid, with defaults filled in
	Actor  string
}

// Create stores a schedule. If the tenant has an equal schedule of the same name, Create
// returns it with created false; a different schedule of that name is a conflict. The
// secrets and uploads that the schedule names must exist, and its uploads are kept while
// the schedule exists.
func (d *Schedules) Create(ctx context.Context, n NewSchedule) (s wire.Schedule, created bool, err error) {
	id := newScheduleID()
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if created, err = insertSchedule(ctx, tx, id, n); err != nil || !created {
			return err
		}
		return keepTenant(ctx, tx, n.Tenant)
	})
	if err != nil {
		return wire.Schedule{}, false, mapError(err, "schedule "+n.Spec.Name)
	}
	if created {
		d.hub.Publish(TopicClock, string(id))
	}
	s, err = d.Get(ctx, n.Tenant, n.Spec.Name, 0)
	return s, created, err
}

func newScheduleID() berth.ScheduleID { return berth.NewScheduleID(time.Now()) }

// lockSchedules makes creates and changes of one tenant run one after the other.
func lockSchedules(ctx context.Context, tx pgx.Tx, tenant berth.TenantID) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('schedules/' || @tenant::text, 0))`,
		namedArgs{"tenant": tenant})
	return err
}

// insertSchedule inserts the schedule's row and its uploads. created is false if an equal
// schedule exists. The caller then locks the tenant, last in the lock order.
func insertSchedule(ctx context.Context, tx pgx.Tx, id berth.ScheduleID, n NewSchedule) (created bool, err error) {
	paused := n.Spec.Paused
	n.Spec.Paused = false // stored in a column instead
	rawSpec, err := json.Marshal(n.Spec)
	if err != nil {
		return false, fmt.Errorf("marshal schedule: %w", err)
	}
	args := namedArgs{
		"id": id, "tenant": n.Tenant, "name": n.Spec.Name, "spec": rawSpec, "paused": paused,
		"revision": berth.NewSecret()[:16], "actor": n.Actor, "most": spec.MaxSchedules,
	}
	// count(*) below must see all other schedules.
	if err := lockSchedules(ctx, tx, n.Tenant); err != nil {
		return false, err
	}
	var same bool
	err = tx.QueryRow(ctx, `SELECT spec = @spec::jsonb FROM schedules
		WHERE tenant = @tenant AND name = @name AND deleted_at IS NULL`, args).Scan(&same)
	switch {
	case err == nil && same:
		return false, nil
	case err == nil:
		return false, berth.Errorf(berth.CodeConflict,
			"a schedule named %s exists with other settings; change it with berth schedule apply, "+
				"or choose another name", n.Spec.Name)
	case !errors.Is(err, pgx.ErrNoRows):
		return false, err
	}
	uploads, err := bindNeeds(ctx, tx, n.Tenant, n.Spec)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, `
		INSERT INTO schedules (id, tenant, name, spec, paused, revision, created_by)
		SELECT @id, @tenant, @name, @spec::jsonb, @paused, @revision, @actor
		WHERE (SELECT count(*) FROM schedules WHERE tenant = @tenant AND deleted_at IS NULL) < @most`, args)
	if err == nil && tag.RowsAffected() == 0 {
		err = &berth.Error{Code: berth.CodeCapacity, Slug: berth.SlugQuota,
			Message: fmt.Sprintf("tenant %s already has the maximum of %d schedules", n.Tenant,
				spec.MaxSchedules)}
	}
	if err != nil || len(uploads) == 0 {
		return true, err
	}
	args["addresses"] = addressesOf(uploads)
	_, err = tx.Exec(ctx, `INSERT INTO schedule_uploads (schedule, tenant, address) SELECT @id, @tenant,
		unnest(@addresses::text[])`, args)
	return true, err
}

// bindNeeds checks that all secrets and uploads that the schedule's work names exist, and
// locks the uploads. It returns the uploads, with fields named from the schedule's root.
func bindNeeds(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, s spec.Schedule) ([]spec.NamedUpload, error) {
	var uploads []spec.NamedUpload
	check := func(field string, job spec.Job) error {
		for _, u := range job.Uploads() {
			u.Field = field + u.Field
			uploads = append(uploads, u)
		}
		return under(field, checkSecrets(ctx, tx, tenant, needsOf(job)))
	}
	if s.Job != nil {
		if err := check("job.", *s.Job); err != nil {
			return nil, err
		}
	}
	if s.Pipeline != nil {
		for path, step := range s.Pipeline.All() {
			if err := check("pipeline."+spec.StepField(path)+".", step); err != nil {
				return nil, err
			}
		}
	}
	return uploads, bindUploads(ctx, tx, tenant, uploads)
}

// under prefixes the field names of a validation error with the path of the checked part.
func under(prefix string, err error) error {
	if e, ok := errors.AsType[*berth.Error](err); ok {
		for i := range e.Fields {
			e.Fields[i].Field = prefix + e.Fields[i].Field
		}
	}
	return err
}

// Delete deletes a schedule and keeps its jobs. The row remains, marked as deleted, until
// its clock is removed.
func (d *Schedules) Delete(ctx context.Context, tenant berth.TenantID, name string) error {
	return d.change(ctx, tenant, name, `
		UPDATE schedules
		SET deleted_at = now(), updated_at = now()
		WHERE tenant = @tenant AND name = @name AND deleted_at IS NULL
		RETURNING id`, nil)
}

// Pause stops a schedule's clock. Pausing a paused schedule replaces the note.
func (d *Schedules) Pause(ctx context.Context, tenant berth.TenantID, name, note string) error {
	return d.change(ctx, tenant, name, `
		UPDATE schedules
		SET paused = true, note = @note, updated_at = now(),
			revision = CASE WHEN paused THEN revision ELSE @revision END
		WHERE tenant = @tenant AND name = @name AND deleted_at IS NULL
		RETURNING id`, namedArgs{"note": note})
}

// Resume restarts a paused schedule's clock from now on. Times that passed during the pause
// are not made up.
func (d *Schedules) Resume(ctx context.Context, tenant berth.TenantID, name, note string) error {
	return d.change(ctx, tenant, name, `
		UPDATE schedules
		SET paused = false, note = @note, updated_at = now(),
			revision = CASE WHEN paused THEN @revision ELSE revision END,
			active_since = CASE WHEN paused THEN now() ELSE active_since END
		WHERE tenant = @tenant AND name = @name AND deleted_at IS NULL
		RETURNING id`, namedArgs{"note": note})
}

// change runs an update that returns the schedule's id, and publishes a hint for its clock.
// A new revision in the row marks the clock as out of date.
func (d *Schedules) change(ctx context.Context, tenant berth.TenantID, name, sql string, args namedArgs) error {
	all := namedArgs{"tenant": tenant, "name": name, "revision": berth.NewSecret()[:16]}
	for k, v := range args {
		all[k] = v
	}
	var id berth.ScheduleID
	if err := d.pool.QueryRow(ctx, sql, all).Scan(&id); err != nil {
		return mapError(err, "schedule "+name)
	}
	d.hub.Publish(TopicClock, string(id))
	return nil
}

// scheduleColumns are the first columns of scanSchedule; the spec and the fires follow. A
// revision that differs from clock_revision marks changes that the clock does not have yet.
const scheduleColumns = `s.id, s.tenant, s.paused, s.note, s.created_by, s.created_at, s.updated_at,
	s.changed_at, s.revision <> s.clock_revision`

func scanSchedule(row pgx.CollectableRow) (s wire.Schedule, err error) {
	var paused bool
	err = row.Scan(&s.ID, &s.Tenant, &paused, &s.Note, &s.CreatedBy, &s.CreatedAt, &s.UpdatedAt, &s.ChangedAt,
		&s.Pending, &s.Schedule, &s.Fires)
	s.Paused = paused // after the scan of the spec, which also has this field
	s.CreatedAt, s.UpdatedAt = s.CreatedAt.UTC(), s.UpdatedAt.UTC()
	return s, err
}

// fireDocument is the JSON document of a fire f for users, with its live job j or archived
// job a.
var fireDocument = `jsonb_strip_nulls(jsonb_build_object(
		'at', f.at, 'source', f.source, 'status', f.status, 'job', f.job,
		'job_handle', CASE WHEN f.job IS NOT NULL THEN ` + handleOf("f.job") + ` END,
		'job_status', coalesce(j.state, a.state), 'reason', f.reason, 'decided_at', f.decided_at))`

const fireJobs = `
	LEFT JOIN jobs j ON j.id = f.job
	LEFT JOIN archived_jobs a ON a.id = f.job`

// fireDocuments are the documents of the newest @fires fires of schedule s, newest first.
var fireDocuments = `coalesce((
	SELECT jsonb_agg(` + fireDocument + ` ORDER BY f.at DESC)
	FROM (SELECT * FROM schedule_fires WHERE schedule = s.id ORDER BY at DESC LIMIT @fires) f` + fireJobs + `), '[]')`

// FireAt returns one fire of a schedule.
func (d *Schedules) FireAt(ctx context.Context, id berth.ScheduleID, at time.Time) (f wire.Fire, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT `+fireDocument+`
		FROM schedule_fires f`+fireJobs+`
		WHERE f.schedule = @id AND f.at = @at`, namedArgs{"id": id, "at": at}).Scan(&f)
	return f, mapError(err, "fire")
}

// List returns a tenant's schedules by name, each with its last fire, but without the
// submitted work. The times of the next fires are not in the database; callers compute
// them.
func (d *Schedules) List(ctx context.Context, tenant berth.TenantID) ([]wire.Schedule, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT `+scheduleColumns+`, s.spec - 'job' - 'pipeline' - 'paused', `+fireDocuments+`
		FROM schedules s
		WHERE s.tenant = @tenant AND s.deleted_at IS NULL
		ORDER BY s.name`, namedArgs{"tenant": tenant, "fires": 1})
	if err != nil {
		return nil, mapError(err, "schedules")
	}
	list, err := pgx.CollectRows(rows, scanSchedule)
	return list, mapError(err, "schedules")
}

// Get returns a schedule with its last fires.
func (d *Schedules) Get(ctx context.Context, tenant berth.TenantID, name string, fires int) (wire.Schedule, error) {
	return d.read(ctx, "schedule "+name, `s.tenant = @tenant AND s.name = @name`,
		namedArgs{"tenant": tenant, "name": name, "fires": fires})
}

// GetByID returns a schedule without its fires.
func (d *Schedules) GetByID(ctx context.Context, id berth.ScheduleID) (wire.Schedule, error) {
	return d.read(ctx, "schedule "+string(id), `s.id = @id`, namedArgs{"id": id, "fires": 0})
}

// read returns the schedule that the condition where selects. Errors name the schedule.
func (d *Schedules) read(ctx context.Context, what, where string, args namedArgs) (wire.Schedule, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT `+scheduleColumns+`, s.spec - 'paused', `+fireDocuments+`
		FROM schedules s
		WHERE `+where+` AND s.deleted_at IS NULL`, args)
	if err != nil {
		return wire.Schedule{}, mapError(err, what)
	}
	s, err := pgx.CollectExactlyOneRow(rows, scanSchedule)
	return s, mapError(err, what)
}
