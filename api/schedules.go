package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/calendar"
	"berth/spec"
	"berth/wire"
)

// scheduleHandlers serve the calls about schedules.
type scheduleHandlers struct {
	schedules *db.Schedules
	admission *admission.Controller
	fires     fires
	rules     secretRules
	log       *slog.Logger
}

func (h *scheduleHandlers) mount(r *router) {
	const tag = "schedules"
	create := r.operation("create-schedule", http.MethodPost, "/v1/schedules", tag,
		"Create a schedule: submit a job or a pipeline at future times")
	create.Description = "201 with the new schedule; 200 if there is the same one already; 409 if there is another " +
		"one of that name. The job or pipeline is checked as if it were submitted now, and again at each " +
		"scheduled time. A refusal at such a time is recorded with that fire."
	create.DefaultStatus = http.StatusCreated
	registerWithBody[spec.Schedule](r, create, h.createSchedule)
	apply := r.operation("apply-schedule", http.MethodPut, "/v1/schedules/{name}", tag,
		"Create a schedule, or change the one of that name")
	apply.Description = "A changed schedule keeps its id, its fires and its pause; running jobs continue. New times " +
		"count from now on. `paused: true` pauses it; an apply never resumes. The answer lists the changed fields."
	registerWithBody[spec.Schedule](r, apply, h.applySchedule)
	register(r, r.operation("list-schedules", http.MethodGet, "/v1/schedules", tag,
		"List your tenant's schedules, each with its last fire"), h.listSchedules)
	register(r, r.operation("show-schedule", http.MethodGet, "/v1/schedules/{name}", tag,
		"Show a schedule with its next and its last fires"), h.showSchedule)
	remove := r.operation("delete-schedule", http.MethodDelete, "/v1/schedules/{name}", tag,
		"Delete a schedule; its jobs stay")
	remove.DefaultStatus = http.StatusNoContent
	register(r, remove, h.deleteSchedule)
	registerWithOptionalBody[spec.ScheduleNote](r,
		r.operation("pause-schedule", http.MethodPost, "/v1/schedules/{name}/pause", tag,
			"Pause a schedule until it is resumed; idempotent"), h.pauseSchedule)
	registerWithOptionalBody[spec.ScheduleNote](r,
		r.operation("resume-schedule", http.MethodPost, "/v1/schedules/{name}/resume", tag,
			"Resume a paused schedule, from now on; idempotent"), h.resumeSchedule)
	registerWithOptionalBody[spec.ScheduleRun](r,
		r.operation("run-schedule", http.MethodPost, "/v1/schedules/{name}/run", tag,
			"Fire a schedule now, in addition to its times, even if it is paused"), h.runSchedule)
	backfill := r.operation("backfill-schedule", http.MethodPost, "/v1/schedules/{name}/backfill", tag,
		"Fire a schedule for times that have passed, each once")
	backfill.Description = "Times that have made a job are left out, so it may be called again. The fires are " +
		"decided soon after, in order; the schedule shows them."
	registerWithBody[spec.Backfill](r, backfill, h.backfillSchedule)
}

// An answer shows shownNext coming times of a schedule, and shownFires of its last fires.
const (
	shownNext  = 5
	shownFires = 20
)

// scheduleOutput is the answer of calls that return one schedule; Status distinguishes a
// created schedule (201) from an existing one (200).
type scheduleOutput struct {
	Status int
	Body   wire.Schedule
}

// createSchedule stores a schedule. Its work is checked by the rules of a submit at this
// moment, so that a schedule that could never submit is refused at once.
func (h *scheduleHandlers) createSchedule(ctx context.Context, in *Request) (*scheduleOutput, error) {
	schedule, late, err := readSchedule(*in)
	if err == nil {
		err = late
	}
	if err != nil {
		return nil, err
	}
	tenant := caller(ctx).Tenant
	if err := h.admit(ctx, tenant, schedule); err != nil {
		return nil, err
	}
	made, created, err := h.schedules.Create(ctx, db.NewSchedule{Tenant: tenant, Spec: schedule, Actor: actor(ctx)})
	if err != nil {
		return nil, err
	}
	if created {
		h.log.Info("schedule created", "tenant", tenant, "schedule", made.Name, "by", actor(ctx))
	}
	return &scheduleOutput{createdStatus(created), withNext(made)}, nil
}

// admit judges a schedule's work by the rules of a submit at this moment.
func (h *scheduleHandlers) admit(ctx context.Context, tenant berth.TenantID, schedule spec.Schedule) error {
	if schedule.NamesSecrets() {
		if err := h.rules.keepsSecrets(); err != nil {
			return err
		}
	}
	if err := h.rules.mayNotify(ctx, tenant, schedule.Webhooks()); err != nil {
		return err
	}
	return h.admission.AdmitSchedule(ctx, tenant, schedule)
}

type appliedOutput struct {
	Status int
	Body   wire.AppliedSchedule
}

// applySchedule creates or changes a schedule. An equal one is not judged again: its single time
// may have passed, or the rules may have changed since, and nothing is stored.
func (h *scheduleHandlers) applySchedule(ctx context.Context, in *scheduleBodyInput) (*appliedOutput, error) {
	schedule, late, err := readSchedule(in.Request)
	if err != nil {
		return nil, err
	}
	if schedule.Name != in.Name {
		return nil, invalid(berth.SlugInvalidSpec, []berth.FieldError{{Field: "name",
			Detail:  fmt.Sprintf("%q is not the name in the path, %q", schedule.Name, in.Name),
			Allowed: "the same name"}}, nil)
	}
	tenant := caller(ctx).Tenant
	same, err := h.schedules.Holds(ctx, tenant, schedule)
	if err != nil {
		return nil, err
	}
	if !same {
		if late != nil {
			return nil, late
		}
		if err := h.admit(ctx, tenant, schedule); err != nil {
			return nil, err
		}
	}
	applied, err := h.schedules.Apply(ctx, db.NewSchedule{Tenant: tenant, Spec: schedule, Actor: actor(ctx)})
	if err != nil {
		return nil, err
	}
	if applied.Result != wire.ScheduleUnchanged {
		h.log.Info("schedule applied", "tenant", tenant, "schedule", applied.Name, "result", applied.Result,
			"by", actor(ctx))
	}
	applied.Schedule = withNext(applied.Schedule)
	return &appliedOutput{createdStatus(applied.Result == wire.ScheduleCreated), applied}, nil
}

// readSchedule returns a valid schedule with defaults, or every fault at once. late is the fault
// of a schedule whose times all have passed, or another fault of its times alone.
func readSchedule(in Request) (schedule spec.Schedule, late, err error) {
	faults, err := decode(in.ContentType, in.RawBody, &schedule)
	if err != nil {
		return schedule, nil, err
	}
	schedule = schedule.WithDefaults()
	checked := admission.CheckSchedule(schedule)
	if len(in.RawBody) > spec.MaxSpecBytes {
		checked = append(checked, berth.FieldError{Detail: fmt.Sprintf("the schedule has %d bytes", len(in.RawBody)),
			Allowed: fmt.Sprintf("at most %d", spec.MaxSpecBytes)})
	}
	if fault := calendar.Check(schedule, time.Now()); fault != nil {
		if len(faults)+len(checked) == 0 {
			return schedule, invalid(berth.SlugInvalidSpec, nil, []berth.FieldError{*fault}), nil
		}
		checked = append(checked, *fault)
	}
	return schedule, nil, invalid(berth.SlugInvalidSpec, faults, checked[:min(len(checked), maxFaults)])
}

// withNext adds the coming times, which the calendar computes and the database does not
// store. A paused schedule has none.
func withNext(s wire.Schedule) wire.Schedule {
	s.Next = []time.Time{}
	if times, fault := calendar.Read(s.Schedule); fault == nil && !s.Paused {
		s.Next = times.Upcoming(time.Now(), shownNext)
	}
	return s
}

type scheduleListOutput struct{ Body wire.Page[wire.Schedule] }

// listSchedules lists the tenant's schedules as one page.
func (h *scheduleHandlers) listSchedules(ctx context.Context, _ *struct{}) (*scheduleListOutput, error) {
	list, err := h.schedules.List(ctx, caller(ctx).Tenant)
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i] = withNext(list[i])
	}
	return &scheduleListOutput{page(list, "")}, nil
}

// ScheduleInput is the path of a call about one schedule.
type ScheduleInput struct {
	Name string `path:"name" maxLength:"63" doc:"of a schedule of your tenant"`
}

type showScheduleInput struct {
	ScheduleInput
	Fires int `query:"fires" minimum:"0" maximum:"1000" default:"20" doc:"number of last fires"`
}

// showSchedule returns a schedule with its coming times and its last fires.
func (h *scheduleHandlers) showSchedule(ctx context.Context, in *showScheduleInput) (*scheduleOutput, error) {
	found, err := h.schedules.Get(ctx, caller(ctx).Tenant, in.Name, in.Fires)
	if err != nil {
		return nil, err
	}
	return &scheduleOutput{http.StatusOK, withNext(found)}, nil
}

// deleteSchedule deletes a schedule; the submitted jobs stay.
func (h *scheduleHandlers) deleteSchedule(ctx context.Context, in *ScheduleInput) (*struct{}, error) {
	tenant := caller(ctx).Tenant
	if err := h.schedules.Delete(ctx, tenant, in.Name); err != nil {
		return nil, err
	}
	h.log.Info("schedule deleted", "tenant", tenant, "schedule", in.Name, "by", actor(ctx))
	return nil, nil
}

// scheduleBodyInput is a call about one schedule with a body.
type scheduleBodyInput struct {
	ScheduleInput
	Request
}

// readBody reads an optional body; without one the zero value is returned unchecked.
func readBody[T validated](in Request) (T, error) {
	var v T
	if len(in.RawBody) == 0 {
		return v, nil
	}
	faults, err := decode(in.ContentType, in.RawBody, &v)
	if err != nil {
		return v, err
	}
	return v, invalid("", faults, v.Validate())
}

// pauseSchedule stops the fires of a schedule until resumeSchedule.
func (h *scheduleHandlers) pauseSchedule(ctx context.Context, in *scheduleBodyInput) (*scheduleOutput, error) {
	return h.noteSchedule(ctx, in, h.schedules.Pause)
}

// resumeSchedule continues a paused schedule from now on; times during the pause are
// skipped.
func (h *scheduleHandlers) resumeSchedule(ctx context.Context, in *scheduleBodyInput) (*scheduleOutput, error) {
	return h.noteSchedule(ctx, in, h.schedules.Resume)
}

// noteSchedule applies a change with a note and returns the schedule after the change.
func (h *scheduleHandlers) noteSchedule(ctx context.Context, in *scheduleBodyInput,
	change func(ctx context.Context, tenant berth.TenantID, name, note string) error) (*scheduleOutput, error) {
	body, err := readBody[spec.ScheduleNote](in.Request)
	if err != nil {
		return nil, err
	}
	if err := change(ctx, caller(ctx).Tenant, in.Name, body.Note); err != nil {
		return nil, err
	}
	return h.showSchedule(ctx, &showScheduleInput{ScheduleInput: in.ScheduleInput, Fires: shownFires})
}

type fireOutput struct{ Body wire.Fire }

// runSchedule fires a schedule now, also a paused one. The fire is first stored as due
// and then decided here: if this process dies in between, the leader decides the fire.
func (h *scheduleHandlers) runSchedule(ctx context.Context, in *scheduleBodyInput) (*fireOutput, error) {
	body, err := readBody[spec.ScheduleRun](in.Request)
	if err != nil {
		return nil, err
	}
	found, err := h.schedules.Get(ctx, caller(ctx).Tenant, in.Name, 0)
	if err != nil {
		return nil, err
	}
	// The time identifies the fire, and PostgreSQL stores microseconds.
	at := time.Now().UTC().Truncate(time.Microsecond)
	if _, err := h.schedules.AddFires(ctx, db.NewFires{Schedule: found.ID, Times: []time.Time{at},
		Source: wire.FireByHand, Overlap: body.Overlap}); err != nil {
		return nil, err
	}
	// From here on the leader would decide the fire as well.
	if _, err := h.fires.Fire(ctx, found.ID, at); err != nil {
		return nil, err
	}
	fire, err := h.schedules.FireAt(ctx, found.ID, at)
	if err != nil {
		return nil, err
	}
	return &fireOutput{fire}, nil
}

type backfillOutput struct{ Body wire.BackfillResult }

// backfillSchedule stores fires for past times, which the leader decides soon after. The
// range ends now by default, and overlapping fires are allowed by default.
func (h *scheduleHandlers) backfillSchedule(ctx context.Context, in *scheduleBodyInput) (*backfillOutput, error) {
	var body spec.Backfill
	faults, err := decode(in.ContentType, in.RawBody, &body)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if err := invalid("", faults, body.Validate(now)); err != nil {
		return nil, err
	}
	if body.To == nil {
		body.To = &spec.Instant{Time: now}
	}
	found, err := h.schedules.Get(ctx, caller(ctx).Tenant, in.Name, 0)
	if err != nil {
		return nil, err
	}
	times, err := timesWithin(found, body)
	if err != nil {
		return nil, err
	}
	if body.Overlap == "" {
		body.Overlap = spec.OverlapAllow
	}
	n, err := h.schedules.AddFires(ctx, db.NewFires{Schedule: found.ID, Times: times, Source: wire.FireByBackfill,
		Overlap: body.Overlap, Again: true})
	if err != nil {
		return nil, err
	}
	return &backfillOutput{wire.BackfillResult{Times: len(times), Fires: n}}, nil
}

// timesWithin returns a schedule's times in a range. More than spec.MaxBackfill times are
// a fault that names the last time that fits, so that the caller can split the range.
func timesWithin(found wire.Schedule, b spec.Backfill) ([]time.Time, error) {
	when, fault := calendar.Read(found.Schedule)
	if fault != nil {
		return nil, invalid(berth.SlugInvalidSpec, []berth.FieldError{*fault}, nil)
	}
	times, more := when.Between(b.From.Time, b.To.Time, spec.MaxBackfill)
	if more {
		return nil, invalid("", []berth.FieldError{{Field: "to", Detail: fmt.Sprintf("there are more than %d times "+
			"in the range; the last that fits is %s", spec.MaxBackfill, times[len(times)-1].Format(time.RFC3339)),
			Allowed: "a range that has no more; call again for the rest"}}, nil)
	}
	return times, nil
}
