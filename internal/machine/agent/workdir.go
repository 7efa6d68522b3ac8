package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"berth"
	"berth/internal/lib/archive"
)

// workdir puts the job's own copy of its code into /workspace. It returns an
// exit if the rank cannot begin.
func (r *member) workdir(ctx context.Context) (*berth.Exit, error) {
	a, err := berth.ParseAddress(r.claim.Spec.Workdir)
	if err != nil {
		return nil, nil // it has none
	}
	err = r.place(ctx, placing{what: "workdir", content: r.archived(a, archive.Default), folder: r.scratch.workspace, own: true})
	if err != nil {
		return r.notFetched(ctx, "workdir", err)
	}
	return nil, nil
}

func (c *control) getUpload(ctx context.Context, alloc berth.AllocationID, a berth.Address) (in io.ReadCloser, err error) {
	err = c.withTerms(ctx, func(epoch int64) error {
		answer, err := c.send(ctx, http.MethodGet, fmt.Sprintf("uploads/%d/%s", alloc, a), sessionTerms{c.boot, epoch}.header(), nil, 0)
		if err == nil {
			in = &wholeBody{answer.Body, answer.ContentLength}
		}
		return err
	})
	return in, err
}

// wholeBody makes an answer that is shorter than announced an error.
type wholeBody struct {
	io.ReadCloser
	left int64
}

func (w *wholeBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.left -= int64(n)
	if errors.Is(err, io.EOF) && w.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
