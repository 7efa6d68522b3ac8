package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/api/client"
	"berth/internal/lib/archive"
	"berth/internal/lib/jobfile"
	"berth/spec"
)

// baseOf returns the folder to which the folders in a job file are relative: the file's
// own, or the current folder for standard input and for jobs without a file.
func baseOf(file *jobfile.File) string {
	if file == nil || file.Name == "stdin" {
		return "."
	}
	return filepath.Dir(file.Name)
}

// sendFolders packs the local folders that a spec names, uploads the missing ones, and
// replaces the names by the uploads' addresses. Addresses and inputs of other kinds stay as
// they are. The jobs that checkpoint.from and needs name are replaced by their ids. at is the path of the
// spec in its file, for messages: "", or a path that ends in a dot.
func sendFolders(ctx context.Context, a *app, c *client.Client, jobSpec spec.Job, base, at string) (spec.Job, error) {
	jobSpec, err := identifySource(ctx, a, c, jobSpec, at)
	if err == nil {
		jobSpec.Needs, err = identifyNeeds(ctx, a, c, jobSpec.Needs, at)
	}
	if err != nil || len(jobSpec.Unsent()) == 0 {
		return jobSpec, err
	}
	if _, sent := berth.ParseAddress(jobSpec.Workdir); jobSpec.Workdir != "" && sent != nil {
		address, err := sendFolder(ctx, a, c, at+"workdir", jobSpec.Workdir, base)
		if err != nil {
			return jobSpec, err
		}
		jobSpec.Workdir = string(address)
	}
	// The caller's slice must keep the names.
	jobSpec.Inputs = slices.Clone(jobSpec.Inputs)
	for i, in := range jobSpec.Inputs {
		if _, sent := berth.ParseAddress(in.From); sent == nil || in.Kind() != spec.InputFolder {
			continue
		}
		address, err := sendFolder(ctx, a, c, fmt.Sprintf("%sinputs[%d]", at, i), in.From, base)
		if err != nil {
			return jobSpec, err
		}
		jobSpec.Inputs[i].From = string(address)
	}
	return jobSpec, nil
}

// identifySource replaces the job in checkpoint.from by its id, and reports the job.
func identifySource(ctx context.Context, a *app, c *client.Client, jobSpec spec.Job, at string) (spec.Job, error) {
	if jobSpec.Checkpoint == nil || jobSpec.Checkpoint.From == "" || jobSpec.Checkpoint.StartsFrom() != nil {
		return jobSpec, nil
	}
	name, step, _ := spec.CutStep(jobSpec.Checkpoint.From)
	job, err := a.job(ctx, c, name)
	if err != nil {
		return jobSpec, fmt.Errorf("%scheckpoint.from: %w", at, err)
	}
	policy := *jobSpec.Checkpoint // the caller's spec must keep the name
	policy.From = spec.StepRef{Job: job.ID, Step: step}.String()
	jobSpec.Checkpoint = &policy
	a.say("%scheckpoint.from: %s is job %s", at, name, job.ID)
	return jobSpec, nil
}

// identifyNeeds replaces the jobs in needs by their ids, and reports them. Names of steps stay.
func identifyNeeds(ctx context.Context, a *app, c *client.Client, needs []string, at string) ([]string, error) {
	needs = slices.Clone(needs) // the caller's slice must keep the names
	for i, need := range needs {
		name, ok := spec.NeededName(need)
		if _, err := berth.ParseJobID(name); !ok || err == nil {
			continue
		}
		job, err := a.job(ctx, c, name)
		if err != nil {
			return needs, fmt.Errorf("%sneeds[%d]: %w", at, i, err)
		}
		needs[i] = spec.NeedOf(job.ID)
		a.say("%sneeds[%d]: %s is job %s", at, i, name, job.ID)
	}
	return needs, nil
}

// sendFolder uploads one folder unless the caller's tenant has the same content stored
// already, and returns its address, a hash of the content. The folder is read twice: once
// for the address, and again for the upload if it is needed, so that no archive lies in
// memory or on disk.
func sendFolder(ctx context.Context, a *app, c *client.Client, field, name, base string) (berth.Address, error) {
	folder := name
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(base, folder)
	}
	sum, err := archive.Measure(ctx, folder, archive.Default)
	if err != nil {
		return "", unpackable(ctx, field, folder, err)
	}
	what := fmt.Sprintf("%s %s (%s, %s)", field, name, plural(sum.Files, "entry", "entries"),
		berth.BytesText(sum.Bytes))
	// GET /v1/uploads/{address}; the usual answer for code that did not change since the
	// last job.
	_, err = c.FindUpload(ctx, sum.Address)
	if err == nil {
		a.say("%s is already uploaded", what)
		return sum.Address, nil
	}
	// Only "not found" leads to an upload; any other error ends the submit.
	if berth.CodeOf(err) != berth.CodeNotFound {
		return "", a.failed(ctx, err)
	}
	_, err = c.SendUpload(ctx, sum.Address, func(to io.Writer) error {
		// POST /v1/uploads. The client may call the function again for a further try. The
		// address was sent first, so a folder that changes meanwhile must fail the upload.
		again, err := archive.Pack(ctx, to, folder, archive.Default)
		if err == nil && again.Address != sum.Address {
			err = usagef("%s: %s changed while it was packed; try again when no program writes there", field, folder)
		}
		return err
	})
	if err != nil {
		return "", a.failed(ctx, err)
	}
	a.say("%s uploaded", what)
	return sum.Address, nil
}

// unpackable returns the error for a folder that cannot be packed: a usage error that names
// the field, or the interrupt that ended the packing.
func unpackable(ctx context.Context, field, folder string, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fs.ErrNotExist):
		return &usageError{message: fmt.Sprintf("%s: %v", field, err),
			hint: "paths in a job file are relative to the file's folder"}
	default:
		return usagef("%s: %v", field, err)
	}
}

// withoutFolders removes the local folders of a spec, which have no address without an
// upload. The other inputs stay: a folder of the machines decides where a job fits, and
// fetched data decides which machine is best. kept are the places of these inputs in the
// spec, for errors; see asWritten.
func withoutFolders(jobSpec spec.Job) (left spec.Job, kept []int) {
	if c := jobSpec.Checkpoint; c != nil && c.From != "" {
		policy := *c // a plan does not depend on the checkpoint, and its job may be named by a handle
		policy.From = ""
		jobSpec.Checkpoint = &policy
	}
	if _, err := berth.ParseAddress(jobSpec.Workdir); err != nil {
		jobSpec.Workdir = ""
	}
	inputs := jobSpec.Inputs
	jobSpec.Inputs = nil
	for i, in := range inputs {
		if _, err := berth.ParseAddress(in.From); err == nil || in.Kind() != spec.InputFolder {
			jobSpec.Inputs, kept = append(jobSpec.Inputs, in), append(kept, i)
		}
	}
	return jobSpec, kept
}

// asWritten changes the inputs in the fields of an error about the result of withoutFolders
// to their places in the user's file.
func asWritten(err error, kept []int) error {
	e, ok := errors.AsType[*berth.Error](err)
	if !ok {
		return err
	}
	fields := slices.Clone(e.Fields)
	for i, f := range fields {
		rest, isInput := strings.CutPrefix(f.Field, "inputs[")
		digits, rest, _ := strings.Cut(rest, "]")
		if n, err := strconv.Atoi(digits); isInput && err == nil && n >= 0 && n < len(kept) {
			fields[i].Field = fmt.Sprintf("inputs[%d]%s", kept[n], rest)
		}
	}
	written := *e
	written.Fields = fields
	return &written
}
