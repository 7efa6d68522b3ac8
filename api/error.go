package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"berth"
)

// Problem is the one shape of every error answer: RFC 9457, with a stable code to branch
// on and the faulty fields.
type Problem struct {
	Type   string             `json:"type" example:"about:blank"`
	Title  string             `json:"title" example:"Unprocessable Entity"`
	Status int                `json:"status" example:"422"`
	Code   string             `json:"code" doc:"stable code, for programs" example:"invalid_spec"`
	Detail string             `json:"detail" doc:"for people"`
	Errors []berth.FieldError `json:"errors,omitempty"`

	retryAfter string
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus lets huma answer a Problem that a handler returns.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders returns the header Retry-After, if the problem has a pause.
func (p *Problem) GetHeaders() http.Header {
	if p.retryAfter == "" {
		return nil
	}
	return http.Header{"Retry-After": {p.retryAfter}}
}

// ContentType is RFC 9457's for every format.
func (p *Problem) ContentType(string) string { return problemType }

const problemType = "application/problem+json"

// slugStatus holds the slugs with a status other than that of their code.
var slugStatus = map[string]int{
	berth.SlugInvalidSpec:         http.StatusUnprocessableEntity,
	berth.SlugArchive:             http.StatusUnprocessableEntity,
	berth.SlugUnsatisfiable:       http.StatusUnprocessableEntity,
	berth.SlugIdempotencyMismatch: http.StatusUnprocessableEntity,
	slugTooLarge:                  http.StatusRequestEntityTooLarge,
	berth.SlugStorageQuota:        http.StatusRequestEntityTooLarge,
	slugTooSlow:                   http.StatusRequestTimeout,
	slugMethodNotAllowed:          http.StatusMethodNotAllowed,
	slugMediaType:                 http.StatusUnsupportedMediaType,
}

// Slugs of faults that exist only in HTTP, such as a body of the wrong media type.
const (
	slugTooLarge         = "body_too_large"
	slugMethodNotAllowed = "method_not_allowed"
	slugMediaType        = "unsupported_media_type"
	slugRateLimited      = "rate_limited"
	slugTooManyTransfers = "too_many_transfers"
	slugTooSlow          = "too_slow"
)

// statusOf is the one table from errors to HTTP statuses. It panics on an unknown code,
// so that a new code cannot be forgotten here.
func statusOf(e *berth.Error) int {
	if s, ok := slugStatus[e.Slug]; ok {
		return s
	}
	switch e.Code {
	case berth.CodeInvalid:
		return http.StatusBadRequest
	case berth.CodeUnauthorized:
		return http.StatusUnauthorized
	case berth.CodeForbidden:
		return http.StatusForbidden
	case berth.CodeNotFound:
		return http.StatusNotFound
	case berth.CodeConflict:
		return http.StatusConflict
	case berth.CodeCapacity:
		return http.StatusTooManyRequests
	case berth.CodeUnavailable:
		return http.StatusServiceUnavailable
	case berth.CodeInternal:
		return http.StatusInternalServerError
	default:
		panic("unknown error code " + string(e.Code))
	}
}

// problemOf converts any error into the answer for the caller. An error that is not a
// berth.Error is an internal fault, and its text is not sent.
func problemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		p := newProblem(statusOf(e), e.StableCode(), e.Message, e.Fields)
		switch p.Status {
		case http.StatusServiceUnavailable:
			p.retryAfter = "1"
			if strings.Contains(p.Detail, "database does not answer") {
				p.Detail = "the database does not answer; try again" // the cause names hosts
			}
		case http.StatusTooManyRequests:
			p.retryAfter = "1"
		}
		return p
	}
	if e, ok := errors.AsType[*echo.HTTPError](err); ok {
		return problemOfStatus(e.Code, "")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return problemOf(berth.Errorf(berth.CodeUnavailable, "the server did not finish in time"))
	}
	if errors.Is(err, context.Canceled) { // the caller is gone, or this process stops
		return problemOf(berth.Errorf(berth.CodeUnavailable, "the call was cut short; try again"))
	}
	return newProblem(http.StatusInternalServerError, string(berth.CodeInternal),
		"the server failed; its log says why", nil)
}

// newProblem returns a Problem of type about:blank: by RFC 9457 its title is then the
// text of the HTTP status.
func newProblem(status int, code, detail string, fields []berth.FieldError) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail,
		Errors: fields}
}

// problemOfStatus returns the Problem for a bare HTTP status, from the router, the body
// reader or the framework. detail replaces the standard text.
func problemOfStatus(status int, detail string) *Problem {
	code, words := string(berth.CodeInvalid), "the request is malformed"
	switch status {
	case http.StatusNotFound:
		code, words = string(berth.CodeNotFound), "no such route; see /docs"
	case http.StatusMethodNotAllowed:
		code, words = slugMethodNotAllowed, "this route does not answer to this method; see /docs"
	case http.StatusRequestEntityTooLarge:
		code, words = slugTooLarge, tooLarge
	case http.StatusUnsupportedMediaType:
		code, words = slugMediaType, "the body must be application/json"
	case http.StatusUnauthorized:
		code, words = string(berth.CodeUnauthorized), "no token given"
	case http.StatusRequestTimeout:
		code, words = "timeout", "the body did not arrive in time"
	}
	if status >= 500 {
		return problemOf(errors.New("internal"))
	}
	if detail == "" {
		detail = words
	}
	return newProblem(status, code, detail, nil)
}

// problemOfHuma rewords the framework's own errors: faults of parameters and of reading
// the body. Locations lose their prefixes ("query.", "body."), so that fields have the
// names that the caller wrote.
func problemOfHuma(m *huma.ErrorModel) *Problem {
	if m.Status >= 500 {
		return problemOfStatus(m.Status, "")
	}
	p := problemOfStatus(m.Status, "")
	if m.Status == http.StatusUnprocessableEntity || m.Status == http.StatusBadRequest {
		p = newProblem(m.Status, string(berth.CodeInvalid), m.Detail, nil)
	}
	for _, d := range m.Errors {
		where := d.Location
		for _, in := range []string{"query.", "header.", "path.", "body."} {
			where = strings.TrimPrefix(where, in)
		}
		p.Errors = append(p.Errors, berth.FieldError{Field: where, Detail: d.Message})
	}
	if len(p.Errors) > 0 {
		p.Detail = p.Errors[0].Field + ": " + p.Errors[0].Detail // more than "validation failed"
	}
	return p
}

// renderError answers every error that leaves a handler or the router. Internal faults
// are logged; 503 is not. Nothing is sent once an answer has begun.
func (r *router) renderError(err error, c echo.Context) {
	p := problemOf(err)
	if p.Status >= 500 && p.Status != http.StatusServiceUnavailable {
		r.log.Error("request failed", "method", c.Request().Method, "path", c.Path(), "err", err)
	}
	if c.Response().Committed {
		return
	}
	for k, v := range p.GetHeaders() {
		c.Response().Header()[k] = v
	}
	if p.Status == http.StatusUnauthorized {
		c.Response().Header().Set("WWW-Authenticate", `Bearer realm="berth"`)
	}
	c.Response().Header().Set("Content-Type", problemType)
	c.Response().WriteHeader(p.Status)
	if c.Request().Method != http.MethodHead {
		_ = json.NewEncoder(c.Response()).Encode(p)
	}
}

// fail converts the error of a huma handler into its Problem, and logs the cause if the
// answer does not contain the cause.
func (r *router) fail(ctx context.Context, err error) error {
	p := problemOf(err)
	if p.Status >= 500 && p.Status != http.StatusServiceUnavailable && ctx.Err() == nil {
		r.log.Error("request failed", "err", err)
	}
	return p
}
