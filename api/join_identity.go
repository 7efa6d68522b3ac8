package api

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/internal/control/cloud"
	"berth/wire"
)

// newIdentities registers the metric of refused identities. All labels are shown as 0 from the start.
func newIdentities(registry *prometheus.Registry) *prometheus.CounterVec {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_join_identities_refused_total",
		Help: "Joins of launched machines that were refused since their identity does not prove that they are the " +
			"launch's instance, by fault. Machines repeat a join with the faults pending and no_keys.",
	}, []string{"fault"})
	for _, f := range cloud.IdentityFaults {
		refused.WithLabelValues(string(f))
	}
	registry.MustRegister(refused)
	return refused
}

// identify returns the instance whose identity a join proves, or "" if its join token demands no
// identity. A refusal is counted and recorded on the launch; it uses up no join token and changes no
// other row. A passing fault lets the agent try again; every other one makes it stop.
func (h *joinHandlers) identify(ctx context.Context, machine berth.MachineID, req wire.JoinRequest) (string, error) {
	d, err := h.joinTokens.Demand(ctx, req.Token, machine)
	if err != nil || d.Source == "" {
		return "", err
	}
	proven, err := h.prove(ctx, d, req.Identity, time.Now())
	refusal, ok := errors.AsType[*cloud.IdentityError](err)
	if !ok {
		return proven, err
	}
	h.identities.WithLabelValues(string(refusal.Fault)).Inc()
	if err := h.joinTokens.RefuseJoin(ctx, d.Launch, refusal.Text); err != nil {
		h.log.Warn("cannot record the refusal of a join", "machine_id", machine, "err", err)
	}
	if refusal.Fault.Passing() {
		return "", berth.Errorf(berth.CodeUnavailable, "%s", refusal.Text)
	}
	return "", &berth.Error{Code: berth.CodeForbidden, Slug: wire.SlugIdentityRefused, Message: refusal.Text}
}

// prove verifies an identity and compares it with the row of the launch. Nothing is written here, so a
// refused host cannot use up anything of the launch. Settings of this replica that do not match the
// demand are a passing fault: another replica may have the right ones.
func (h *joinHandlers) prove(ctx context.Context, d cloud.Demand, id *wire.Identity, now time.Time) (string, error) {
	v := h.accounts.Providers[d.Launch.Provider].Identities
	switch {
	case v == nil || v.Source() != d.Source:
		return "", cloud.RefuseIdentity(cloud.IdentityNoKeys, "this berthd has no identity settings of kind %s for "+
			"provider %s; try again", d.Source, d.Launch.Provider)
	case id == nil:
		return "", cloud.RefuseIdentity(cloud.IdentityMissing, "the join has no identity of the machine, and launch "+
			"%d of machine %s demands one", d.Launch.N, d.Launch.Machine)
	case id.Size() > wire.MaxIdentity:
		return "", cloud.RefuseIdentity(cloud.IdentityMalformed, "the identity has %d bytes; allowed are %d", id.Size(),
			wire.MaxIdentity)
	case id.Source != d.Source:
		return "", cloud.RefuseIdentity(cloud.IdentityMalformed, "the identity is of %.20q; the launch demands %s",
			id.Source, d.Source)
	}
	claims, err := v.Verify(ctx, *id, d, now)
	if err != nil {
		return "", err
	}
	return claims.Instance, d.Launch.Identify(claims)
}
