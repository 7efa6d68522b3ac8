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
// maxCalls is how many may be there, and turnsPerConn how many for each connection
// may be under way: a call asks the database several times, and if all went in
// turns with each other, all would be too late.
const (
	callLimit    = 15 * time.Second
	maxCalls     = 512
	turnsPerConn = 2
)

// shed bounds what users' calls may cost while the database is slow: those that
// take too long end, and those that are too many do not begin. Agents and
// streams are exempt: the first must be heard, the second last.
func (s *Server) shed(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if !strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasSuffix(r.URL.Path, "/events") || strings.HasSuffix(r.URL.Path, "/logs") || carriesData(r) {
			return next(c)
		}
		defer s.calls.Add(-1)
		if s.calls.Add(1) > maxCalls {
			return berth.Errorf(berth.CodeUnavailable, "the server has too many calls under way; try again")
		}
		ctx, cancel := context.WithTimeout(r.Context(), callLimit)
		defer cancel()
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
		case <-ctx.Done():
			return berth.Errorf(berth.CodeUnavailable, "the server had no time for the call; try again")
		}
		c.SetRequest(r.WithContext(ctx))
		return next(c)
	}
}
