package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth/internal/lib/jobfile"
	"berth/spec"
	"berth/wire"
)

// planWork plans a file of any kind. A schedule is planned as its job or pipeline is.
func planWork(ctx context.Context, a *app, w work) error {
	switch {
	case w.job != nil:
		return planJob(ctx, a, w.job.Spec, w.job)
	case w.schedule != nil && w.schedule.Job != nil:
		// Its name is optional there.
		job := *w.schedule.Job
		set(&job.Name, w.schedule.Name)
		return planJob(ctx, a, job, nil)
	case w.schedule != nil:
		return planPipeline(ctx, a, *w.schedule.Pipeline)
	default:
		return planPipeline(ctx, a, *w.pipeline)
	}
}

// planJob plans one job. file is the source for faults that only the server finds; nil for
// a job of another file.
func planJob(ctx context.Context, a *app, jobSpec spec.Job, file *jobfile.File) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	// Folders are not uploaded for a plan, so a plan ignores data in local folders.
	jobSpec, kept := withoutFolders(jobSpec)
	plan, err := c.Plan(ctx, jobSpec)
	if err != nil {
		return located(asWritten(a.failed(ctx, err), kept), file)
	}
	if err := showPlan(a, plan); err != nil {
		return err
	}
	// After the plan is printed: the table shows which conditions fail.
	return unsatisfiable(plan.Fit)
}

// stepPlan is the plan of one step, as -o json prints it.
type stepPlan struct {
	Step string    `json:"step"`
	Plan wire.Plan `json:"plan"`
}

// planPipeline plans every step of a pipeline as if it were submitted now, alone: when a step
// starts also depends on its needs. Steps are in the order of their needs.
func planPipeline(ctx context.Context, a *app, p spec.Pipeline) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	list := []stepPlan{}
	for path, step := range p.WithDefaults().All() {
		if step.Nests() {
			continue
		}
		step, _ = withoutFolders(step)
		// A step names its needs and outputs of other steps, which a single job cannot.
		step = spec.Alone(step)
		step.Name = path[strings.LastIndexByte(path, '.')+1:]
		step.Inputs = slices.DeleteFunc(slices.Clone(step.Inputs), func(in spec.Input) bool {
			return in.Kind() == spec.InputOutput
		})
		plan, err := c.Plan(ctx, step)
		if err != nil {
			return fmt.Errorf("step %s: %w", path, a.failed(ctx, err))
		}
		list = append(list, stepPlan{path, plan})
	}
	if err := showStepPlans(a, list); err != nil {
		return err
	}
	for _, s := range list {
		if err := unsatisfiable(s.Plan.Fit); err != nil {
			return fmt.Errorf("step %s: %w", s.Step, err)
		}
	}
	return nil
}

// showStepPlans prints the plans of a pipeline's steps. -o name prints the steps that could
// start now.
func showStepPlans(a *app, list []stepPlan) error {
	names := []string{}
	t := &table{screen: a.outTerm, head: []string{"STEP", "STARTS", "NEEDS", "MACHINES", "REASON"}}
	for _, s := range list {
		starts, why := cell{"not now", warn}, ""
		switch {
		case s.Plan.StartsNow:
			starts, names = cell{"now", good}, append(names, s.Step)
		case len(s.Plan.Fit.Lacking) > 0:
			starts, why = cell{"never", bad}, unsatisfiable(s.Plan.Fit).Error()
		case s.Plan.EstimatedStart != nil:
			starts.text = ago(*s.Plan.EstimatedStart, a.now())
		}
		if why == "" && len(s.Plan.Blockers) > 0 {
			why = s.Plan.Blockers[0].Message
		}
		t.add(s.Step, starts, requestText(s.Plan.Spec),
			fmt.Sprint(len(s.Plan.Fit.Candidates)), orDash(why))
	}
	return a.show(view{body: list, names: names, table: func(bool) error { return t.write(a.out) }})
}
