package api

import (
	"github.com/labstack/echo/v4"

	"berth"
	"berth/spec"
	"berth/wire"
)

// chooseUser adds to a claim the user of the container. The rules at the time of the claim count, as for the
// image; they do not affect a container that has started. An agent that would run the container as another user,
// or with a writable root, gets neither the work nor its secrets, and the job moves to another machine.
func (h *secretHandlers) chooseUser(call echo.Context, c *wire.Claim) error {
	if begun(c) || c.Withheld != nil {
		return nil
	}
	user, err := h.admission.User(call.Request().Context(), c.Tenant, c.Spec.User)
	// Everything that the claim hands out is removed with the work.
	withhold := func(w wire.Withheld) {
		c.Secrets, c.InputLogins, c.ImageLogin, c.Signatures = nil, nil, nil, nil
		c.Withheld = &w
	}
	switch {
	case berth.IsSlug(err, berth.SlugInvalidSpec):
		withhold(wire.Withheld{Missing: true, User: true, Message: err.Error()})
		return nil
	case berth.CodeOf(err) == berth.CodeConflict: // the pool of users is empty until an operator acts
		withhold(wire.Withheld{Message: err.Error()})
		return nil
	case err != nil:
		return err
	}
	if (user != spec.UserImage || c.Spec.ReadOnlyRoot) && call.Request().Header.Get(wire.HeaderUsers) == "" {
		withhold(wire.Withheld{Message: "the agent of this machine runs containers as the user of their " +
			"image, with a writable root; upgrade the agent"})
		return nil
	}
	c.User = user
	return nil
}
