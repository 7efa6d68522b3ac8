package api

import (
	"context"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
)

// callLimit is how long a user's call may take before it is answered that the
// server is unavailable. None takes a tenth of it while the database is well.
// maxCalls is how many may be under way: more of them would wait for each other
// until they are all too late.
const (
	callLimit = 15 * time.Second
	maxCalls  = 512
)

// shed bounds what users' calls may cost while the database is slow: those that
// take too long end, and those that are too many do not begin. Agents and
// streams are exempt: the first must be heard, the second last.
func (s *Server) shed(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if !strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasSuffix(r.URL.Path, "/events") || strings.HasSuffix(r.URL.Path, "/logs") {
			return next(c)
		}
		defer s.calls.Add(-1)
		if s.calls.Add(1) > maxCalls {
			return berth.Errorf(berth.CodeUnavailable, "the server has too many calls under way; try again")
		}
		ctx, cancel := context.WithTimeout(r.Context(), callLimit)
		defer cancel()
		c.SetRequest(r.WithContext(ctx))
		return next(c)
	}
}
