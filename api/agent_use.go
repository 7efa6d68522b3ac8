package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/wire"
)

// agentUse stores the measured use of a machine. It is a call of its own for the reasons of
// agentStages.
func (h *agentHandlers) agentUse(c echo.Context) error {
	req, err := readAgent[wire.UseReport](c)
	if err != nil {
		return err
	}
	if err := h.agents.ReportUse(c.Request().Context(), machineOf(c), req); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
