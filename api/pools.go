package api

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/explain"
	"berth/spec"
	"berth/wire"
)

// poolHandlers serve the calls about pools of machines, which are for admins. After a change the
// explainer of this process reads the rules again; other replicas notice the change with a delay.
type poolHandlers struct {
	pools     *db.Pools
	launches  *db.Launches
	accounts  cloud.Accounts
	explainer *explain.Explainer
	log       *slog.Logger
}

func (h *poolHandlers) mount(r *router) {
	const tag = "administration"
	register(r, r.operation("list-pools", http.MethodGet, "/v1/pools", tag,
		"List pools of machines with their rules, by name"), h.listPools)
	register(r, r.operation("show-pool", http.MethodGet, "/v1/pools/{pool}", tag,
		"Show a pool of machines with its rules"), h.showPool)
	set := r.operation("set-pool", http.MethodPut, "/v1/pools/{pool}", tag,
		"Replace the rules of a pool, or create the pool")
	set.Description = "A rule that the body leaves out is lifted. Jobs that run in the pool keep their machines. " +
		"With a `version` that is not the present one: 409, so that no change is lost."
	registerWithBody[spec.PoolRules](r, set, h.setPool)
	remove := r.operation("delete-pool", http.MethodDelete, "/v1/pools/{pool}", tag,
		"Delete a pool that has no machines and is not named by an unused join token or a live job")
	remove.DefaultStatus = http.StatusNoContent
	register(r, remove, h.deletePool)
}

// PoolInput is the path of a call about one pool.
type PoolInput struct {
	Pool string `path:"pool" maxLength:"64"`
}

type (
	poolOutput     struct{ Body wire.Pool }
	poolListOutput struct{ Body wire.Page[wire.Pool] }
)

// listPools lists pools by name.
func (h *poolHandlers) listPools(ctx context.Context, in *Paging) (*poolListOutput, error) {
	pools, next, err := h.pools.List(ctx, in.long())
	if err != nil {
		return nil, err
	}
	return &poolListOutput{page(pools, next)}, nil
}

// showPool returns one pool, with the parts of the clouds that serve it and take no new machines now.
func (h *poolHandlers) showPool(ctx context.Context, in *PoolInput) (*poolOutput, error) {
	p, err := h.pools.Get(ctx, in.Pool)
	if err != nil {
		return nil, err
	}
	var providers []string
	for _, name := range slices.Sorted(maps.Keys(h.accounts.Providers)) {
		if h.accounts.Providers[name].Serves(in.Pool) {
			providers = append(providers, name)
		}
	}
	closed, err := h.launches.Closed(ctx, in.Pool, providers)
	if err != nil {
		return nil, err
	}
	for _, b := range closed {
		p.Closed = append(p.Closed, wire.ClosedPart{Scope: string(b.Scope), Part: b.What(), Reason: b.Reason,
			Until: known(b.Until)})
	}
	return &poolOutput{p}, nil
}

type poolSetInput struct {
	PoolInput
	Request
}

// setPool replaces the rules of a pool. Pool names have the form of tenant names. Waiting jobs of
// tenants for which the pool closes are placed elsewhere from the next plan on.
func (h *poolHandlers) setPool(ctx context.Context, in *poolSetInput) (*poolOutput, error) {
	p, err := readValid[spec.PoolRules](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if err := invalid(berth.SlugInvalidSpec, nil, spec.NewJoinToken{Pool: in.Pool}.Validate()); err != nil {
		return nil, err
	}
	if err := h.pools.Set(ctx, in.Pool, p, operator(ctx)); err != nil {
		return nil, err
	}
	h.explainer.Forget()
	h.log.Info("pool set", "pool", in.Pool, "tenants", p.Tenants, "approval", p.Approval,
		"one_tenant_per_machine", p.OneTenant, "taints", p.Taints, "by", operator(ctx))
	return h.showPool(ctx, &in.PoolInput)
}

// deletePool removes a pool that nothing refers to. The database refuses a pool that is in use, with a
// conflict.
func (h *poolHandlers) deletePool(ctx context.Context, in *PoolInput) (*struct{}, error) {
	if err := h.pools.Delete(ctx, in.Pool); err != nil {
		return nil, err
	}
	h.explainer.Forget()
	h.log.Info("pool deleted", "pool", in.Pool, "by", operator(ctx))
	return nil, nil
}
