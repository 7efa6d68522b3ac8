package api

import (
	"context"
	"log/slog"
	"net/http"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// selfHandlers serve the calls about the caller itself, which every role may make.
type selfHandlers struct {
	tokens *db.Tokens
	auth   *authenticator
	log    *slog.Logger
}

func (h *selfHandlers) mount(r *router) {
	const tag = "administration"
	register(r, r.operation("whoami", http.MethodGet, "/v1/whoami", tag,
		"Show the name, tenant and role of the token that the call came with"), h.whoami)
	register(r, r.operation("list-own-tokens", http.MethodGet, "/v1/whoami/tokens", tag,
		"List the tokens with the caller's name and tenant"), h.listTokens)
	revoke := r.operation("revoke-own-token", http.MethodDelete, "/v1/whoami/tokens/{id}", tag,
		"Revoke a token with the caller's name and tenant")
	revoke.DefaultStatus = http.StatusNoContent
	register(r, revoke, h.revokeToken)
}

type whoamiOutput struct{ Body wire.Caller }

// whoami returns the principal of the call.
func (h *selfHandlers) whoami(ctx context.Context, _ *struct{}) (*whoamiOutput, error) {
	p := caller(ctx)
	return &whoamiOutput{wire.Caller{Name: p.Name, Tenant: p.Tenant, Role: p.Role, TokenID: p.TokenID,
		ExpiresAt: p.ExpiresAt}}, nil
}

// listTokens lists the caller's own tokens, without secrets.
func (h *selfHandlers) listTokens(ctx context.Context, in *Paging) (*tokenListOutput, error) {
	tokens, next, err := h.tokens.ListOwn(ctx, caller(ctx), in.long())
	if err != nil {
		return nil, err
	}
	return &tokenListOutput{page(tokens, next)}, nil
}

// revokeToken revokes one of the caller's own tokens, also the one of this call; only an
// admin's token cannot revoke itself, so that one always stays.
func (h *selfHandlers) revokeToken(ctx context.Context, in *idInput) (*struct{}, error) {
	p := caller(ctx)
	if in.ID == p.TokenID && p.Role == spec.RoleAdmin {
		return nil, berth.Errorf(berth.CodeConflict,
			"token %s is the one this call came with: make another admin's token and revoke it with that", in.ID)
	}
	if err := h.tokens.RevokeOwn(ctx, p, in.ID); err != nil {
		return nil, err
	}
	h.auth.forget()
	h.log.Info("token revoked", "token_id", in.ID, "by", actor(ctx))
	return nil, nil
}
