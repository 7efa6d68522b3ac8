package api

import (
	"context"
	"log/slog"
	"net/http"

	"berth/db"
	"berth/wire"
)

// selfHandlers serve the calls about the caller itself, which all roles of users may make; a
// viewer reads only, here too.
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
	return tokenList(h.tokens.ListOwn(ctx, caller(ctx), in.long()))
}

// revokeToken revokes one of the caller's own tokens, also the one of this call.
func (h *selfHandlers) revokeToken(ctx context.Context, in *idInput) (*struct{}, error) {
	return revocation{h.auth, h.log}.run(ctx, in.ID, actor(ctx), func() error {
		return h.tokens.RevokeOwn(ctx, caller(ctx), in.ID)
	})
}
