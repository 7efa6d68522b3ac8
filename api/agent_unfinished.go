package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/wire"
)

// agentUnfinished stores the unfinished lines of members that somebody follows. It is a call of its own for the reasons
// of agentStages.
func (h *agentHandlers) agentUnfinished(c echo.Context) error {
	req, err := readAgent[wire.UnfinishedReport](c)
	if err != nil {
		return err
	}
	if err := h.agents.StoreUnfinished(c.Request().Context(), machineOf(c), req); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
