package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"

	"berth/db"
	"berth/internal/lib/tracing"
	"berth/spec"
)

// callTracer records calls as spans.
type callTracer struct {
	traces *tracing.Tracing // nil: no spans
}

// traceUsers records all users' calls, including refused ones.
func (t *callTracer) traceUsers(next echo.HandlerFunc) echo.HandlerFunc {
	return t.traced(next, t.traces.Serve, func(c echo.Context) bool { return strings.HasPrefix(c.Path(), "/v1/") })
}

// traceMachines records a machine's call only if the call belongs to a span of the
// machine: agents call too often to record every call. It runs after authenticate: only a
// machine's trace context is accepted.
func (t *callTracer) traceMachines(next echo.HandlerFunc) echo.HandlerFunc {
	return t.traced(next, t.traces.ServeAgent, func(c echo.Context) bool {
		p, _ := c.Request().Context().Value(principalKey{}).(db.Principal)
		return p.Role == spec.RoleMachine
	})
}

// beginSpan starts a span for a call with these headers.
type beginSpan func(ctx context.Context, h http.Header, name string,
	about ...attribute.KeyValue) (context.Context, *tracing.Span)

// traced records the selected calls, each with its route and its status. Only a server
// error is the fault of the span: a refusal is a correct answer.
func (t *callTracer) traced(next echo.HandlerFunc, begin beginSpan, told func(echo.Context) bool) echo.HandlerFunc {
	if t.traces == nil {
		return next
	}
	return func(c echo.Context) error {
		if !told(c) {
			return next(c)
		}
		r := c.Request()
		verb := method(r.Method)
		ctx, call := begin(r.Context(), r.Header, verb+" "+c.Path(),
			attribute.String("http.request.method", verb), attribute.String("http.route", c.Path()))
		c.SetRequest(r.WithContext(ctx))
		if err := next(c); err != nil {
			c.Error(err) // so that the status is known
		}
		status := c.Response().Status
		call.Set(attribute.Int("http.response.status_code", status))
		fault := ""
		if status >= http.StatusInternalServerError {
			fault = http.StatusText(status)
		}
		call.End(fault)
		return nil
	}
}
