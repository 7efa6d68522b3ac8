package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
)

// trace tells of calls, as part of the caller's trace if they name one. Users'
// calls are told all; of machines' calls, which are many, those that belong to
// something that the machine tells of.
func (s *Server) trace(next echo.HandlerFunc) echo.HandlerFunc {
	if s.Traces == nil {
		return next
	}
	return func(c echo.Context) error {
		r := c.Request()
		if !strings.HasPrefix(c.Path(), "/v1/") && (!strings.HasPrefix(c.Path(), "/agent/") || r.Header.Get("Traceparent") == "") {
			return next(c)
		}
		verb := method(r.Method)
		ctx, call := s.Traces.Serve(r.Context(), r.Header, verb+" "+c.Path(),
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
