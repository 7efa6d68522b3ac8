package api

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/internal/lib/publicnet"
	"berth/wire"
)

// Bounds of the questions to name servers: lookups at a time, the time of one, and the length
// of a host's name by RFC 1035.
const (
	hostLookups   = 8
	hostTimeout   = 3 * time.Second
	maxHostLength = 253
)

// agentHostHandlers answer whether the host of an input exists, as a second witness in addition to the
// machine that asks. The answer is evidence: the machine puts it into the member's exit. Only a
// machine that prepares a member may ask, so users learn no more than a failed job of theirs
// reveals: whether a name exists for the control plane.
type agentHostHandlers struct {
	agents   sessions
	resolver *net.Resolver // nil: the system's name servers
	slots    chan struct{} // one value for each lookup under way
}

func newAgentHostHandlers(agents sessions, r *net.Resolver) *agentHostHandlers {
	return &agentHostHandlers{agents: agents, resolver: r, slots: make(chan struct{}, hostLookups)}
}

func (h *agentHostHandlers) mount(r *router) { r.agents.POST("/hosts", h.agentHost) }

// agentHost answers one question. A lookup without an answer in time, or without a free slot,
// is no evidence that the host is missing.
func (h *agentHostHandlers) agentHost(c echo.Context) error {
	q, err := readAgent[wire.HostQuestion](c)
	if err != nil {
		return err
	}
	if q.Host == "" || len(q.Host) > maxHostLength {
		return berth.Errorf(berth.CodeInvalid, "host has %d bytes; allowed: 1 to %d", len(q.Host), maxHostLength)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), hostTimeout)
	defer cancel()
	if err := h.agents.Prepares(ctx, machineOf(c), q); err != nil {
		return err
	}
	var answer wire.HostAnswer
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
		answer.Missing = publicnet.NoSuchName(ctx, h.resolver, q.Host)
	case <-ctx.Done():
	}
	return c.JSON(http.StatusOK, answer)
}
