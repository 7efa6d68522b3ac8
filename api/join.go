package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/lib/connlimit"
	"berth/wire"
)

// maxJoinBody is the longest body of a join, in bytes: a join token and a machine's name
// take some 200 bytes. The inventory follows when the machine registers.
const maxJoinBody = 4 << 10

// maxProvenBody is the longest body of a join whose token was found good, in bytes: it may carry an identity of
// the machine, whose bytes JSON may double at most.
const maxProvenBody = maxJoinBody + 2*wire.MaxIdentity

// A body of a join must arrive within joinBodyTimeout. joinsAbreast joins are read and
// answered at a time, and as many more whose token is in the body alone: nothing is known
// of the callers of the latter before the body is read, and they must not keep the others
// out.
const (
	joinBodyTimeout = 5 * time.Second
	joinsAbreast    = 8
	joinWait        = 10 * time.Second // for one of these places; agents give up after 15 s
	joinPause       = 10 * time.Millisecond
)

// joins bound the use of the open routes of the agents' protocol.
type joins struct {
	checks   *lookups[bool] // of join tokens
	judged   chan struct{}  // a place for each join whose token was found good
	unjudged chan struct{}  // a place for each join whose token is in its body

	keys    *lookups[bool] // of machines that renew their credentials
	renewed chan struct{}  // a place for each renewal by a known key
	unknown chan struct{}  // a place for each renewal by a key that a restored database may have lost
}

func newJoins(d *db.DB) *joins {
	return &joins{
		checks:   newLookups(d.JoinTokens.Check, joinPause),
		judged:   make(chan struct{}, joinsAbreast),
		unjudged: make(chan struct{}, joinsAbreast),
		keys:     newLookups(d.Tokens.KnownKeys, joinPause),
		renewed:  make(chan struct{}, joinsAbreast),
		unknown:  make(chan struct{}, 1),
	}
}

// joinHandlers serve the routes of agents' credentials. Two of them are open.
type joinHandlers struct {
	joins      *joins
	joinTokens *db.JoinTokens
	tokens     *db.Tokens
	accounts   cloud.Accounts
	identities *prometheus.CounterVec // refused, by fault
	limits     *limits
	addresses  addresses
	log        *slog.Logger
}

func (h *joinHandlers) mount(r *router) {
	r.agents.POST("/join", h.agentJoin)
	r.agents.POST("/renew", h.agentRenew)
	r.agents.POST("/key", h.agentKey)
}

// agentJoin exchanges a join token for the machine's own token. The join token is in the
// Authorization header and judged before the body is read; agents before this version
// send the join token in the body alone.
func (h *joinHandlers) agentJoin(c echo.Context) error {
	ctx := c.Request().Context()
	token, judged := bearer(c.Request())
	places, limit := h.joins.unjudged, int64(maxJoinBody)
	if judged {
		if err := h.judgeJoin(ctx, c, token); err != nil {
			return err
		}
		places, limit = h.joins.judged, maxProvenBody
	}
	if err := takePlace(ctx, c, places); err != nil {
		return err
	}
	defer func() { <-places }()
	readDeadline(c, time.Now().Add(joinBodyTimeout))
	req, err := decodeAgent[wire.JoinRequest](c, limit)
	if err != nil {
		// Without this the server would wait for the rest of the body.
		c.Response().Header().Set("Connection", "close")
		return err
	}
	readDeadline(c, time.Time{})
	if judged {
		req.Token = token
	}
	return h.join(ctx, c, req)
}

// takePlace waits for one of the places of a kind of call, which the caller gives back.
func takePlace(ctx context.Context, c echo.Context, places chan struct{}) error {
	full := time.NewTimer(joinWait)
	defer full.Stop()
	select {
	case places <- struct{}{}:
		return nil
	case <-full.C:
		c.Response().Header().Set("Connection", "close")
		return berth.Errorf(berth.CodeUnavailable, "%d machines are joining or returning already; try again",
			cap(places))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// judgeJoin refuses a join token that is not valid, and charges the caller's address for
// the attempt.
func (h *joinHandlers) judgeJoin(ctx context.Context, c echo.Context, token string) error {
	good := false
	if db.JoinTokenShaped(token) {
		var err error
		if good, err = h.joins.checks.ask(ctx, token); err != nil {
			return err
		}
	}
	if good {
		return nil
	}
	c.Response().Header().Set("Connection", "close")
	return h.limits.guessed(guessJoin, h.addresses.client(c.Request()), errJoinToken())
}

// errJoinToken returns the one error for every invalid join token.
func errJoinToken() error {
	return berth.Errorf(berth.CodeUnauthorized,
		"the join token is unknown, used or expired; create another with berth join-token create")
}

// join uses up the join token and answers with the machine's own token, bound to the agent's key
// unless the agent sends none. Join decides alone: judgeJoin's answer may be out of date by now.
func (h *joinHandlers) join(ctx context.Context, c echo.Context, req wire.JoinRequest) error {
	machine, err := berth.ParseMachineID(string(req.Machine))
	if err != nil {
		return err
	}
	key, err := provenKey(c, machine, req.Token)
	if err != nil {
		return err
	}
	proven, err := h.identify(ctx, machine, req)
	var answer wire.JoinResponse
	if err == nil {
		answer, err = h.joinTokens.JoinWithKey(ctx, req.Token, machine, key, proven)
	}
	if berth.CodeOf(err) == berth.CodeUnauthorized {
		return h.limits.guessed(guessJoin, h.addresses.client(c.Request()), errJoinToken())
	}
	if err != nil {
		h.log.Warn("join refused", "machine_id", machine, "err", err)
		return err
	}
	connlimit.Agent(ctx, machine)
	h.log.Info("machine joined", "machine_id", machine, "key", key != nil)
	return c.JSON(http.StatusCreated, answer)
}
