package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// outputHandlers serve the outputs that jobs have stored.
type outputHandlers struct {
	jobReader
	blobStore
	objects *db.Objects
	streams *streams
}

func (h *outputHandlers) mount(r *router) {
	const tag = "data"
	register(r, r.operation("list-outputs", http.MethodGet, "/v1/jobs/{id}/outputs", tag,
		"List the stored outputs of a job, the latest attempt first, or of all elements or steps"), h.listOutputs)
	get := r.operation("download-output", http.MethodGet, "/v1/jobs/{id}/outputs/{name}", tag,
		"Download an output: a tar, compressed by zstd")
	document(&get, "The archive; its length and sha256 are those of the list",
		map[string]*huma.MediaType{uploadType: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}})
	register(r, get, h.downloadOutput)
}

type outputsOutput struct {
	Body wire.Page[wire.StoredOutput]
}

// outputsInput selects a page of a job's outputs.
type outputsInput struct {
	JobInput
	Paging
}

// listOutputs lists the outputs of a job, or of all jobs below an array or a pipeline. The
// query checks no tenant: resolving the id does.
func (h *outputHandlers) listOutputs(ctx context.Context, in *outputsInput) (*outputsOutput, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	list, next, err := h.objects.Outputs(ctx, id, in.long())
	if err != nil {
		return nil, err
	}
	items := make([]wire.StoredOutput, len(list))
	for i, o := range list {
		items[i] = o.StoredOutput
	}
	return &outputsOutput{page(items, next)}, nil
}

// outputInput names one output. Attempt 0 means the latest attempt that stored the
// output.
type outputInput struct {
	JobInput
	Name    string `path:"name" maxLength:"63"`
	Attempt int    `query:"attempt" minimum:"0" doc:"default: the latest that has it"`
	Member  int    `query:"member" minimum:"0" doc:"default 0"`
}

// downloadOutput sends an output as stored, a tar compressed by zstd. Look-ups that can
// fail come first, before the answer begins.
func (h *outputHandlers) downloadOutput(ctx context.Context, in *outputInput) (*huma.StreamResponse, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	output, err := h.objects.Output(ctx, id, in.Name, in.Member, in.Attempt)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return nil, berth.Errorf(berth.CodeNotFound, "job %s has stored no such output", id)
	}
	if err != nil {
		return nil, err
	}
	store, err := h.blobs()
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(out huma.Context) {
		h.sendOutput(humaecho.UnwrapV4(out), store, output)
	}}, nil
}

// sendOutput streams the stored object. Browsers save it under the output's name.
func (h *outputHandlers) sendOutput(c echo.Context, store *blob.Store, o db.OutputObject) {
	c.Response().Header().Set("Content-Disposition", "attachment; filename="+strconv.Quote(o.Name+".tar.zst"))
	if err := h.streams.sendObject(c, downloadTransfer, store, o.Object); err != nil {
		h.streams.router.renderError(err, c)
	}
}

// agentOutput registers an output that a machine has stored for a member. The address is
// checked for its form only: the machine has computed the hash.
func (h *agentObjectHandlers) agentOutput(c echo.Context) error {
	p, err := readAgent[wire.OutputReport](c)
	if err != nil {
		return err
	}
	if _, err := berth.ParseAddress(string(p.Output.Address)); err != nil {
		return err
	}
	if err := h.verifyOutput(c, p); err != nil {
		return err
	}
	if err := h.reported.RegisterOutput(c.Request().Context(), machineOf(c), p); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
