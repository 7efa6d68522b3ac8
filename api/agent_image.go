package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/wire"
)

// agentImage returns the digest that a member must run. The first call for a job or an array fixes
// the digest.
func (h *agentHandlers) agentImage(c echo.Context) error {
	req, err := readAgent[wire.ImageReport](c)
	if err != nil {
		return err
	}
	fixed, err := h.agents.FixImage(c.Request().Context(), machineOf(c), req)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, fixed)
}
