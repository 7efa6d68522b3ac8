package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/wire"
)

// agentEngine stores the facts about a machine's container engine. It is a call of its own, since a server of a version
// without it refuses a registration with unknown fields.
func (h *agentHandlers) agentEngine(c echo.Context) error {
	req, err := readAgent[wire.HostReport](c)
	if err != nil {
		return err
	}
	if err := h.agents.ReportHost(c.Request().Context(), machineOf(c), req); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
