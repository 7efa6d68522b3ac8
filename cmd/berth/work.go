package main

import (
	"context"
	"path/filepath"

	"berth"
	"berth/internal/lib/jobfile"
	"berth/spec"
)

// work is the content of a file of any kind: a job, which may be an array, a pipeline, or a
// schedule of either. Exactly one of the three is set.
type work struct {
	job      *jobfile.File
	pipeline *spec.Pipeline
	schedule *spec.Schedule
	base     string // folder to which the file's folders are relative
}

// readWork reads a file, or standard input for "-", recognises its kind, applies the
// overrides and validates the result. The result is as written, without defaults.
func (a *app) readWork(ctx context.Context, name string, o overrides) (w work, err error) {
	src, shown, err := a.readFile(ctx, "file", name)
	if err != nil {
		return w, err
	}
	w.base = baseFolder(name)
	switch jobfile.Kind(shown, src) {
	case string(berth.KindPipeline):
		w.pipeline, err = parsePipeline(shown, src, o)
	case spec.KindSchedule:
		w.schedule, err = parseSchedule(shown, src, o, func(*spec.Schedule) error { return nil })
	default:
		w.job, err = parseJob(shown, src, o)
	}
	return w, err
}

// baseFolder returns the folder to which the folders of a file are relative: its own, or the
// current folder for standard input.
func baseFolder(name string) string {
	if name == "-" {
		return "."
	}
	return filepath.Dir(name)
}

// parseJob reads a job file with overrides.
func parseJob(shown string, src []byte, o overrides) (*jobfile.File, error) {
	file, err := jobfile.Parse(shown, src)
	if err != nil || o.none() {
		return file, err
	}
	if err := o.apply(&file.Spec); err != nil {
		return nil, err
	}
	return file, invalidSpec(file.Spec.WithDefaults().Validate())
}

// parsePipeline reads a pipeline file with overrides.
func parsePipeline(shown string, src []byte, o overrides) (*spec.Pipeline, error) {
	p := &spec.Pipeline{}
	err := jobfile.Decode(shown, src, p, func() []berth.FieldError { return p.WithDefaults().Validate() })
	if err != nil || o.none() {
		return p, err
	}
	if err := o.apply(p); err != nil {
		return nil, err
	}
	return p, invalidSpec(p.WithDefaults().Validate())
}

// parseSchedule reads a file with kind: schedule, with overrides. adjust makes further
// changes before the validation, which then judges the final schedule, and with places in
// the file.
func parseSchedule(shown string, src []byte, o overrides, adjust func(*spec.Schedule) error) (*spec.Schedule, error) {
	s := &spec.Schedule{}
	// The callback can return only faults of fields, so a fault of the flags is kept apart;
	// it takes precedence, since the validation saw a schedule half changed.
	var wrong error
	err := jobfile.Decode(shown, src, s, func() []berth.FieldError {
		if wrong = adjust(s); wrong == nil && !o.none() {
			wrong = o.apply(s)
		}
		return s.WithDefaults().Validate()
	})
	if wrong != nil {
		err = wrong
	}
	return s, err
}

// submitWork submits a file of any kind: a schedule is created instead.
func submitWork(ctx context.Context, a *app, w work, flags submitFlags) error {
	switch {
	case w.pipeline != nil:
		return submitPipeline(ctx, a, *w.pipeline, w.base, "", flags)
	case w.schedule != nil:
		if flags.wait || flags.key != "" {
			return usagef("--wait and --idempotency-key are for jobs that are submitted now")
		}
		return createSchedule(ctx, a, *w.schedule, w.base)
	default:
		return submitJob(ctx, a, w.job.Spec, w.job, flags)
	}
}
