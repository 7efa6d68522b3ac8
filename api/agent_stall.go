package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/wire"
)

// agentStall stores a report about the signs of life of a member. It is a separate call for the
// same reasons as agentStages.
func (h *agentHandlers) agentStall(c echo.Context) error {
	req, err := readAgent[wire.StallReport](c)
	if err != nil {
		return err
	}
	if err := h.agents.ReportStall(c.Request().Context(), machineOf(c), req); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
