package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/blob"
	"berth/internal/lib/archive"
	"berth/wire"
)

// maxUpload is the greatest compressed length of an archive, in bytes.
const (
	maxUpload  = 4 << 30
	uploadType = "application/zstd"

	uploadsPath = "/v1/uploads"
)

// uploadHandlers serve the archives that users store for their jobs.
type uploadHandlers struct {
	blobStore
	uploads   *db.Uploads
	storage   *db.Storage
	admission *admission.Controller
	limits    archive.Limits
	streams   *streams
	log       *slog.Logger
}

func (h *uploadHandlers) mount(r *router) {
	const tag = "data"
	register(r, r.operation("show-upload", http.MethodGet, "/v1/uploads/{address}", tag,
		"Report whether an archive is stored already"), h.showUpload)
	// A plain handler: the framework would read the body into memory.
	post := r.operation("create-upload", http.MethodPost, uploadsPath, tag, "Store an archive that jobs can name")
	post.Description = "The body is a tar of folders, regular files and relative symbolic links that stay inside, " +
		"compressed by zstd. `address` is `sha256:` and the sha256 of the tar before its compression. 201 with the " +
		"upload, 200 if the same content was stored before. 422 `invalid_archive` says what in it is not allowed; " +
		"nothing is stored then."
	post.Description += " " + describeQuota
	post.Parameters = []*huma.Param{{Name: "address", In: "query", Required: true,
		Schema: &huma.Schema{Type: huma.TypeString}, Description: "sha256:… of the tar"}}
	post.RequestBody = &huma.RequestBody{Required: true,
		Content: map[string]*huma.MediaType{uploadType: {Schema: &huma.Schema{Type: huma.TypeString,
			Format: "binary"}}}}
	schema := r.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[wire.Upload](), true, "")
	for status, description := range map[string]string{"200": "It was stored before", "201": "Stored"} {
		post.Responses[status] = &huma.Response{Description: description,
			Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
	}
	r.huma.OpenAPI().AddOperation(&post)
	r.echo.POST(uploadsPath, h.createUpload)
}

type uploadInput struct {
	Address string `path:"address" maxLength:"100" doc:"sha256:…"`
}

type uploadOutput struct{ Body wire.Upload }

// showUpload returns an upload of the caller's tenant, so that a client can skip the
// transfer of content that is already stored.
func (h *uploadHandlers) showUpload(ctx context.Context, in *uploadInput) (*uploadOutput, error) {
	a, err := berth.ParseAddress(in.Address)
	if err != nil {
		return nil, err
	}
	u, err := h.uploads.Get(ctx, caller(ctx).Tenant, a)
	if err != nil {
		return nil, err
	}
	return &uploadOutput{u}, nil
}

// createUpload stores an archive while validating its content. The object becomes an
// upload only if every byte is valid and the content matches its address. Each attempt
// writes to a folder of its own, which is given up after a failure.
func (h *uploadHandlers) createUpload(c echo.Context) error {
	r := c.Request()
	a, err := berth.ParseAddress(c.QueryParam("address"))
	if err != nil {
		return err
	}
	if r.ContentLength > maxUpload {
		return tooLong(r)
	}
	store, err := h.blobs()
	if err != nil {
		return err
	}
	t, err := h.streams.begin(c, uploadTransfer) // first, so that the tenant's cap bounds the queries below too
	if err != nil {
		return err
	}
	defer t.end()
	ctx := t.ctx
	tenant := caller(ctx).Tenant
	room, limits, err := h.uploadRoom(ctx, tenant, a, r.ContentLength)
	if err != nil {
		readDeadline(c, time.Now().Add(bodyTimeout))
		_, _ = io.CopyN(io.Discard, r.Body, drainBody) // as in tooLong
		return cmp.Or(t.broken(), err)
	}
	folder, err := h.uploads.Begin(ctx, tenant, a)
	if err != nil {
		return err
	}
	u, created := wire.Upload{Address: a}, false
	sum, stored, err := h.receive(c, t, store, folder, a, room)
	if _, cut := errors.AsType[*http.MaxBytesError](err); cut && room < maxUpload {
		err = h.storage.Refusal(ctx, limits, db.StoredUploads, room+1)
	} else if cut {
		err = tooLong(r)
	}
	if err == nil {
		u.Files, u.Bytes, u.Stored = sum.Files, sum.Bytes, stored
		u, created, err = h.uploads.End(ctx, tenant, u, folder, limits...)
	}
	if err != nil {
		if err := h.uploads.Abandon(context.WithoutCancel(ctx), folder); err != nil {
			h.log.Warn("cannot remove the folder of a failed upload, will retry", "folder", folder, "err", err)
		}
		return err
	}
	return writeJSON(c, createdStatus(created), u)
}

// tooLong is the refusal of an archive above maxUpload.
func tooLong(r *http.Request) error {
	_, _ = io.CopyN(io.Discard, r.Body, drainBody) // so that the client gets to see the answer
	return &berth.Error{Code: berth.CodeInvalid, Slug: slugTooLarge,
		Message: fmt.Sprintf("the archive is longer than %s", berth.BytesText(maxUpload))}
}

// receive puts the body into the store while the archive is validated, and returns the
// number of bytes stored. A body that is longer than room is an http.MaxBytesError. A
// verdict of the validation hides the error of the store, which only follows from the
// verdict.
func (h *uploadHandlers) receive(
	c echo.Context, t *transfer, store *blob.Store, folder string, a berth.Address, room int64,
) (archive.Summary, int64, error) {
	r := c.Request()
	body := t.body(http.MaxBytesReader(c.Response(), r.Body, room))
	j := judge(body, h.limits, a)
	stored, err := store.Put(r.Context(), folder+"/"+berth.ArchiveName, j, -1)
	sum, verdict := j.end()
	if verdict != nil {
		err = verdict
	}
	if err != nil {
		readDeadline(c, time.Now().Add(bodyTimeout)) // bounds the rest of the body, read at any pace
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		_, _ = io.CopyN(io.Discard, r.Body, drainBody) // so that the client gets to see the answer
		return sum, 0, err
	}
	if err != nil {
		if cut := cmp.Or(t.broken(), body.slow()); cut != nil {
			return sum, 0, cut
		}
	}
	if err != nil && body.err != nil && r.Context().Err() == nil {
		err = berth.Errorf(berth.CodeInvalid, "the body cannot be read: %v", body.err)
	}
	if archive.IsRefused(err) {
		_, _ = io.CopyN(io.Discard, r.Body, drainBody)
	}
	return sum, stored, err
}

// judged is a reader that passes bytes on and validates the archive in a goroutine. Its
// end waits for the verdict: a bad verdict replaces io.EOF, so that the store never
// completes the object of an invalid archive.
type judged struct {
	in      io.Reader
	pipe    *io.PipeWriter
	verdict chan struct{}
	address berth.Address
	sum     archive.Summary
	err     error
}

// judge starts the validation of an archive, also of its address. The caller must call
// end, or the goroutine leaks.
func judge(in io.Reader, l archive.Limits, a berth.Address) *judged {
	r, w := io.Pipe()
	j := &judged{in: in, pipe: w, verdict: make(chan struct{}), address: a}
	go func() { // ends with the pipe; end waits for it
		defer close(j.verdict)
		j.sum, j.err = archive.Read(r, l, nil)
		if j.err == nil && j.sum.Address != a {
			j.err = &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugArchive,
				Message: "archive: its content is " + string(j.sum.Address) + ", and not " + string(a)}
		}
		_ = r.CloseWithError(errJudged)
	}()
	return j
}

// errJudged ends the pipe after the validation, when the pipe has no reader left.
var errJudged = errors.New("the judgement is there")

// Read passes bytes on to the store and to the validation. A write to the pipe fails once
// the validation has ended; its verdict, if bad, is then the error.
func (j *judged) Read(p []byte) (int, error) {
	n, err := j.in.Read(p)
	if n > 0 {
		if _, broken := j.pipe.Write(p[:n]); broken != nil {
			<-j.verdict
			if j.err != nil {
				return 0, j.err
			}
			return 0, broken
		}
	}
	if errors.Is(err, io.EOF) {
		_ = j.pipe.Close()
		<-j.verdict
		if j.err != nil {
			return 0, j.err
		}
	} else if err != nil {
		_ = j.pipe.CloseWithError(err)
	}
	return n, err
}

// end returns the verdict, even if the store stopped reading before the end.
func (j *judged) end() (archive.Summary, error) {
	_ = j.pipe.CloseWithError(io.ErrUnexpectedEOF)
	<-j.verdict
	return j.sum, j.err
}

// agentUpload sends an archive to a machine that holds an allocation of a job with this
// archive among its inputs.
func (h *agentObjectHandlers) agentUpload(c echo.Context) error {
	alloc, err := strconv.ParseInt(c.Param("alloc"), 10, 64)
	if err != nil {
		return berth.Errorf(berth.CodeInvalid, "allocation %.40q is no number", c.Param("alloc"))
	}
	a, err := berth.ParseAddress(c.Param("address"))
	if err != nil {
		return err
	}
	store, err := h.blobs()
	if err != nil {
		return err
	}
	object, err := h.objects.ContentFor(
		c.Request().Context(), machineOf(c), session(c), berth.AllocationID(alloc), a)
	if err != nil {
		return err
	}
	return h.streams.sendObject(c, machineTransfer, store, object)
}
