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

// workdirPhase puts the job's own copy of its code into /workspace.
type workdirPhase struct {
	placer
	scratch *scratch
	spans   spans
}

// Do unpacks the uploaded folder in a span of its own, if the job has one. A debug job has the folder as the failed
// member left it.
func (p *workdirPhase) Do(ctx context.Context) (phase, error) {
	if p.claim.Spec.Workdir == "" || p.claim.Held != nil {
		return phaseInputs, nil
	}
	return p.spans.step(ctx, "workdir", p.result, p.copy)
}

// copy unpacks the folder into the workspace, which belongs to the container's user.
func (p *workdirPhase) copy(ctx context.Context) (phase, error) {
	a, err := berth.ParseAddress(p.claim.Spec.Workdir)
	if err != nil {
		return phaseInputs, nil // the name of a folder that was not uploaded
	}
	err = p.place(ctx, placing{
		what: "workdir", content: p.archived(a, archive.Default), folder: p.scratch.workspace, own: true,
	})
	if err != nil {
		return p.failed(ctx, "workdir", err)
	}
	return phaseInputs, nil
}

// getUpload returns the archive at an address, which the allocation's job names. The
// caller closes it.
func (c *control) getUpload(
	ctx context.Context, alloc berth.AllocationID, a berth.Address,
) (in io.ReadCloser, err error) {
	err = c.withTerms(ctx, func(epoch int64) error {
		path := fmt.Sprintf("uploads/%d/%s", alloc, a)
		answer, err := c.send(ctx, http.MethodGet, path, sessionTerms{c.boot, epoch}.header(), nil, 0)
		if err == nil {
			in = &wholeBody{c.metrics.reading(wayServer, answer.Body), answer.ContentLength}
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

// Read reports io.ErrUnexpectedEOF for a body that ends before its announced length.
func (w *wholeBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.left -= int64(n)
	if errors.Is(err, io.EOF) && w.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
