package api

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/internal/lib/connlimit"
	"berth/wire"
)

// provenKey returns the public key of a machine that sends one with a join token or with its own token,
// or nil. It fails if the signature does not prove that the machine has the key.
func provenKey(c echo.Context, machine berth.MachineID, token string) (ed25519.PublicKey, error) {
	text := c.Request().Header.Get(wire.HeaderMachineKey)
	// Agents of earlier versions send no key.
	if text == "" {
		return nil, nil
	}
	proof, err := wire.ParseKeyProof(text)
	if err != nil {
		return nil, err
	}
	if !proof.Proves(machine, token) {
		return nil, berth.Errorf(berth.CodeInvalid, "header %s: the signature is not the key's, or not for machine %s "+
			"and this token", wire.HeaderMachineKey, machine)
	}
	return proof.Key, nil
}

// agentKey binds the credential of a machine that joined with an earlier version to the machine's key.
func (h *joinHandlers) agentKey(c echo.Context) error {
	ctx := c.Request().Context()
	p := caller(ctx)
	token, _ := bearer(c.Request())
	key, err := provenKey(c, p.Machine, token)
	if err != nil {
		return err
	}
	if key == nil {
		return berth.Errorf(berth.CodeInvalid, "header %s is missing", wire.HeaderMachineKey)
	}
	if err := h.tokens.BindKey(ctx, p, key); err != nil {
		h.log.Warn("key of a machine refused", "machine_id", p.Machine, "err", err)
		return err
	}
	h.log.Info("machine credential bound to a key", "machine_id", p.Machine)
	return c.NoContent(http.StatusNoContent)
}

// agentRenew makes the token that an agent has chosen the next credential of its machine. The signature
// is verified before anything is read from the database, the key is looked up together with the keys of
// other callers, and refusals are charged to the caller's address. So a call of a stranger costs no more
// here than a call with a wrong token.
func (h *joinHandlers) agentRenew(c echo.Context) error {
	ctx := c.Request().Context()
	r, err := wire.ParseRenewal(c.Request().Header.Get(wire.HeaderRenewal))
	if err != nil {
		return err
	}
	if !r.Signed() {
		err := berth.Errorf(berth.CodeUnauthorized, "header %s: the signature is not the key's", wire.HeaderRenewal)
		return h.refuseRenewal(c, err)
	}
	known, err := h.joins.keys.ask(ctx, string(r.Key))
	if err != nil {
		return err
	}
	renew := h.tokens.Renew
	// Known and unknown keys wait for separate places: a flood of unknown keys must not delay renewals.
	places := h.joins.renewed
	if !known {
		renew, places = h.returns(c), h.joins.unknown
	}
	if err := takePlace(ctx, c, places); err != nil {
		return err
	}
	defer func() { <-places }()
	answer, err := renew(ctx, r)
	if berth.CodeOf(err) == berth.CodeUnauthorized {
		return h.refuseRenewal(c, err)
	}
	if err != nil {
		if berth.IsSlug(err, wire.SlugRenewalReplayed) {
			c.Response().Header().Set(wire.HeaderLastRenewal, strconv.FormatInt(answer.Last, 10))
		}
		h.log.Warn("credential not renewed", "machine_id", r.Machine, "err", err)
		return err
	}
	// From here on the connection counts as the machine's, and not as one of an unknown caller.
	connlimit.Agent(ctx, r.Machine)
	if answer.Returned {
		h.log.Warn("machine unknown to the restored database, it waits for approval", "machine_id", r.Machine)
	} else {
		h.log.Info("machine credential renewed", "machine_id", r.Machine)
	}
	return c.JSON(http.StatusOK, answer)
}

// returns handles a renewal with a key that the database does not know.
func (h *joinHandlers) returns(c echo.Context) func(context.Context, wire.Renewal) (wire.RenewResponse, error) {
	return func(ctx context.Context, r wire.Renewal) (wire.RenewResponse, error) {
		mark, err := seen(c)
		if err != nil {
			return wire.RenewResponse{}, err
		}
		return h.tokens.Return(ctx, r, mark, c.Request().Header.Get(wire.HeaderHostBoot))
	}
}

// refuseRenewal charges a refused renewal to the caller's address.
func (h *joinHandlers) refuseRenewal(c echo.Context, refusal error) error {
	// A client that guesses pays for a new connection with each try.
	c.Response().Header().Set("Connection", "close")
	return h.limits.guessed(guessAgent, h.addresses.client(c.Request()), refusal)
}
