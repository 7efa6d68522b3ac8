package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"berth"
	"berth/internal/archive"
	"berth/internal/blob"
)

// maxUpload is the longest archive as it is sent; uploadsAbreast is how many are
// read at a time, since each takes a part of a core; uploadSilence is how long
// one may stand still.
const (
	maxUpload      = 4 << 30
	uploadsAbreast = 8
	uploadSilence  = time.Minute
	uploadType     = "application/zstd"
)

func (s *Server) registerUploads() {
	const tag = "data"
	register(s, s.operation("show-upload", http.MethodGet, "/v1/uploads/{address}", tag, "Say whether an archive is stored already"), s.showUpload)
	// A plain handler: the framework would read the body into memory.
	post := s.operation("create-upload", http.MethodPost, "/v1/uploads", tag, "Store an archive that jobs can name")
	post.Description = "The body is a tar of folders, regular files and relative symbolic links that stay inside, compressed by zstd. `address` is `sha256:` and the sha256 of the tar before its compression. 201 with the upload, 200 if the same content was stored before. 422 `invalid_archive` says what in it is not allowed; nothing is stored then."
	post.Parameters = []*huma.Param{{Name: "address", In: "query", Required: true, Schema: &huma.Schema{Type: huma.TypeString}, Description: "sha256:… of the tar"}}
	post.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{uploadType: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}}
	schema := s.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[berth.Upload](), true, "")
	for status, description := range map[string]string{"200": "It was stored before", "201": "Stored"} {
		post.Responses[status] = &huma.Response{Description: description, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
	}
	s.huma.OpenAPI().AddOperation(&post)
	s.echo.POST("/v1/uploads", s.createUpload)
}

type uploadInput struct {
	Address string `path:"address" maxLength:"100" doc:"sha256:…"`
}

type uploadOutput struct{ Body berth.Upload }

func (s *Server) showUpload(ctx context.Context, in *uploadInput) (*uploadOutput, error) {
	a, err := berth.ParseAddress(in.Address)
	if err != nil {
		return nil, err
	}
	u, err := s.DB.Upload(ctx, caller(ctx).Tenant, a)
	if err != nil {
		return nil, err
	}
	return &uploadOutput{u}, nil
}

// createUpload stores an archive while it judges it: the object appears only if
// every byte has passed, and the content is what its address says.
func (s *Server) createUpload(c echo.Context) error {
	r := c.Request()
	ctx := r.Context()
	a, err := berth.ParseAddress(c.QueryParam("address"))
	if err != nil {
		return err
	}
	if r.ContentLength > maxUpload {
		return tooLong(r)
	}
	store, err := s.blobs()
	if err != nil {
		return err
	}
	select {
	case s.uploads <- struct{}{}:
		defer func() { <-s.uploads }()
	default:
		return berth.Errorf(berth.CodeUnavailable, "%d uploads are under way; try again", uploadsAbreast)
	}
	tenant := caller(ctx).Tenant
	folder, err := s.DB.BeginUpload(ctx, tenant, a)
	if err != nil {
		return err
	}
	sum, err := s.receive(c, store, folder, a)
	if err != nil {
		if err := s.DB.AbandonUpload(context.WithoutCancel(ctx), folder); err != nil {
			s.Logger.Warn("folder of a failed upload is removed later", "folder", folder, "err", err)
		}
		return err
	}
	u, created, err := s.DB.EndUpload(ctx, tenant, berth.Upload{Address: a, Files: sum.Files, Bytes: sum.Bytes}, folder)
	if err != nil {
		return err
	}
	return writeJSON(c, createdStatus(created), u)
}

func tooLong(r *http.Request) error {
	_, _ = io.CopyN(io.Discard, r.Body, drainBody) // so that the client gets to see the answer
	return &berth.Error{Code: berth.CodeInvalid, Slug: slugTooLarge, Message: fmt.Sprintf("the archive is longer than %s", berth.BytesText(maxUpload))}
}

// receive puts the body into the store while it is judged.
func (s *Server) receive(c echo.Context, store *blob.Store, folder string, a berth.Address) (archive.Summary, error) {
	r := c.Request()
	body := &patient{r: http.MaxBytesReader(c.Response(), r.Body, maxUpload), control: http.NewResponseController(c.Response())}
	j := judge(body, s.Limits, a)
	_, err := store.Put(r.Context(), folder+"/"+berth.ArchiveName, j, -1)
	sum, verdict := j.end()
	if verdict != nil {
		err = verdict
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return sum, tooLong(r)
	}
	if err != nil && body.err != nil && r.Context().Err() == nil {
		err = berth.Errorf(berth.CodeInvalid, "the body cannot be read: %v", body.err)
	}
	if archive.IsRefused(err) {
		_, _ = io.CopyN(io.Discard, r.Body, drainBody)
	}
	return sum, err
}

// patient gives a body's next bytes a while to come, as long as some come.
type patient struct {
	r       io.Reader
	control *http.ResponseController
	err     error
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(uploadSilence)) // not every transport has one
	n, err := p.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		p.err = err
	}
	return n, err
}

// judged hands bytes on while an archive is made of them elsewhere. It ends
// only when the judgement is there: one that is bad comes instead of the end.
type judged struct {
	in      io.Reader
	pipe    *io.PipeWriter
	verdict chan struct{}
	address berth.Address
	sum     archive.Summary
	err     error
}

func judge(in io.Reader, l archive.Limits, a berth.Address) *judged {
	r, w := io.Pipe()
	j := &judged{in: in, pipe: w, verdict: make(chan struct{}), address: a}
	go func() { // ends with the pipe; end waits for it
		defer close(j.verdict)
		j.sum, j.err = archive.Read(r, l, nil)
		if j.err == nil && j.sum.Address != a {
			j.err = &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugArchive, Message: "archive: its content is " + string(j.sum.Address) + ", and not " + string(a)}
		}
		_ = r.CloseWithError(errJudged)
	}()
	return j
}

// errJudged is what the pipe says when nobody reads it any more.
var errJudged = errors.New("the judgement is there")

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

// end is the judgement, however far the store got.
func (j *judged) end() (archive.Summary, error) {
	_ = j.pipe.CloseWithError(io.ErrUnexpectedEOF)
	<-j.verdict
	return j.sum, j.err
}

// agentUpload hands an archive to a machine that holds work which needs it.
func (s *Server) agentUpload(c echo.Context) error {
	alloc, err := strconv.ParseInt(c.Param("alloc"), 10, 64)
	if err != nil {
		return berth.Errorf(berth.CodeInvalid, "allocation %.40q is no number", c.Param("alloc"))
	}
	a, err := berth.ParseAddress(c.Param("address"))
	if err != nil {
		return err
	}
	store, err := s.blobs()
	if err != nil {
		return err
	}
	object, err := s.DB.ContentFor(c.Request().Context(), machineOf(c), session(c), berth.AllocationID(alloc), a)
	if err != nil {
		return err
	}
	return s.sendObject(c, store, object)
}
