package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"berth"
	"berth/api/client"
	"berth/internal/lib/archive"
	"berth/internal/lib/jobfile"
	"berth/spec"
)

// baseOf is the folder that a job file's own folders are named from: its own.
func baseOf(file *jobfile.File) string {
	if file == nil || file.Name == "stdin" {
		return "."
	}
	return filepath.Dir(file.Name)
}

// sendFolders packs the folders that a spec names, uploads missing ones, and
// replaces the names by the uploads' addresses. at is the path of the spec in
// its file: "", or a path that ends in a dot.
func sendFolders(ctx context.Context, a *app, c *client.Client, jobSpec spec.Job, base, at string) (spec.Job, error) {
	if len(jobSpec.Unsent()) == 0 {
		return jobSpec, nil
	}
	if _, sent := berth.ParseAddress(jobSpec.Workdir); jobSpec.Workdir != "" && sent != nil {
		address, err := sendFolder(ctx, a, c, at+"workdir", jobSpec.Workdir, base)
		if err != nil {
			return jobSpec, err
		}
		jobSpec.Workdir = string(address)
	}
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
	_, err = c.FindUpload(ctx, sum.Address)
	if err == nil {
		a.say("%s is there already", what)
		return sum.Address, nil
	}
	if berth.CodeOf(err) != berth.CodeNotFound {
		return "", a.failed(ctx, err)
	}
	_, err = c.SendUpload(ctx, sum.Address, func(to io.Writer) error {
		again, err := archive.Pack(ctx, to, folder, archive.Default)
		if err == nil && again.Address != sum.Address {
			err = usagef("%s: %s changed while it was packed: try again when nothing writes there", field, folder)
		}
		return err
	})
	if err != nil {
		return "", a.failed(ctx, err)
	}
	a.say("%s sent", what)
	return sum.Address, nil
}

// unpackable words why a folder cannot be packed.
func unpackable(ctx context.Context, field, folder string, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fs.ErrNotExist):
		return &usageError{message: fmt.Sprintf("%s: %v", field, err),
			hint: "folders of a job file are named from where the file is"}
	default:
		return usagef("%s: %v", field, err)
	}
}

// withoutFolders removes the fields that do not affect where a job fits.
func withoutFolders(jobSpec spec.Job) spec.Job {
	if len(jobSpec.Unsent()) > 0 {
		jobSpec.Workdir, jobSpec.Inputs = "", nil
	}
	return jobSpec
}
