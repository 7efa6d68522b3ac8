package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/wire"
)

// agentStages stores the stages of members that a machine prepares. It is a call of its own,
// so that neither a lease nor a report of an end waits for it, and so that a server of a
// version without stages answers 404 to this call alone.
func (h *agentHandlers) agentStages(c echo.Context) error {
	req, err := readAgent[wire.StageReport](c)
	if err != nil {
		return err
	}
	if err := h.agents.ReportStages(c.Request().Context(), machineOf(c), req); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
