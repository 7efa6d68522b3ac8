package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// tokenHandlers serve the calls about tokens of callers and of joining machines.
type tokenHandlers struct {
	tokens     *db.Tokens
	joinTokens *db.JoinTokens
	auth       *authenticator
	log        *slog.Logger
}

func (h *tokenHandlers) mount(r *router) {
	const tag = "administration"
	newToken := r.operation("create-token", http.MethodPost, "/v1/tokens", tag,
		"Create a token; its secret is shown once")
	newToken.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewToken](r, newToken, h.createToken)
	register(r, r.operation("list-tokens", http.MethodGet, "/v1/tokens", tag, "List tokens"), h.listTokens)
	register(r, r.operation("list-token-events", http.MethodGet, "/v1/tokens/events", tag,
		"List creations and revocations of tokens"), h.listEvents)
	revoke := r.operation("revoke-token", http.MethodDelete, "/v1/tokens/{id}", tag, "Revoke a token")
	revoke.DefaultStatus = http.StatusNoContent
	register(r, revoke, h.revokeToken)

	newJoin := r.operation("create-join-token", http.MethodPost, "/v1/join-tokens", tag,
		"Create a join token, with which one machine joins once")
	newJoin.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewJoinToken](r, newJoin, h.createJoinToken)
	register(r, r.operation("list-join-tokens", http.MethodGet, "/v1/join-tokens", tag,
		"List join tokens"), h.listJoinTokens)
	revokeJoin := r.operation("revoke-join-token", http.MethodDelete, "/v1/join-tokens/{id}", tag,
		"Revoke a join token")
	revokeJoin.DefaultStatus = http.StatusNoContent
	register(r, revokeJoin, h.revokeJoinToken)
}

// idInput is the path of a call about one token. The id is the public part of the token.
type idInput struct {
	ID string `path:"id" maxLength:"64"`
}

type tokenOutput struct{ Body wire.Token }

// createToken creates a token, by default for the caller's tenant and with role user.
// Only this answer contains the secret.
func (h *tokenHandlers) createToken(ctx context.Context, in *Request) (*tokenOutput, error) {
	n, err := readValid(*in, func(n *spec.NewToken) {
		n.Tenant = cmp.Or(n.Tenant, caller(ctx).Tenant)
		n.Role = cmp.Or(n.Role, spec.RoleUser)
	})
	if err != nil {
		return nil, err
	}
	t, err := h.tokens.Create(ctx, n, operator(ctx))
	if err != nil {
		return nil, err
	}
	h.log.Info("token created", "token_id", t.ID, "name", t.Name, "tenant", t.Tenant, "role", t.Role,
		"by", operator(ctx))
	return &tokenOutput{t}, nil
}

type tokenListOutput struct{ Body wire.Page[wire.Token] }

// listTokens lists the tokens of all tenants, without secrets.
func (h *tokenHandlers) listTokens(ctx context.Context, in *Paging) (*tokenListOutput, error) {
	return tokenList(h.tokens.List(ctx, in.long()))
}

// tokenList renders a page of tokens.
func tokenList(tokens []wire.Token, next string, err error) (*tokenListOutput, error) {
	if err != nil {
		return nil, err
	}
	return &tokenListOutput{page(tokens, next)}, nil
}

type tokenEventsOutput struct{ Body wire.Page[wire.TokenEvent] }

// listEvents lists the creations and revocations of tokens, oldest first.
func (h *tokenHandlers) listEvents(ctx context.Context, in *Paging) (*tokenEventsOutput, error) {
	events, next, err := h.tokens.Events(ctx, in.long())
	if err != nil {
		return nil, err
	}
	return &tokenEventsOutput{page(events, next)}, nil
}

// revokeToken revokes a token for good.
func (h *tokenHandlers) revokeToken(ctx context.Context, in *idInput) (*struct{}, error) {
	return revocation{h.auth, h.log}.run(ctx, in.ID, operator(ctx), func() error {
		return h.tokens.Revoke(ctx, in.ID, operator(ctx))
	})
}

// revocation is the part that calls to revoke a token of users have in common.
type revocation struct {
	auth *authenticator
	log  *slog.Logger
}

// run revokes a token by revoke, on behalf of the actor. An admin's token cannot revoke itself,
// so that one always stays. Cached verdicts of this process are dropped; other replicas accept
// the token for authMemory or machineMemory at most.
func (r revocation) run(ctx context.Context, id, actor string, revoke func() error) (*struct{}, error) {
	if p := caller(ctx); id == p.TokenID && p.Role == spec.RoleAdmin {
		return nil, berth.Errorf(berth.CodeConflict,
			"token %s is the one this call came with: create another admin's token and revoke it with that", id)
	}
	if err := revoke(); err != nil {
		return nil, err
	}
	r.auth.forget()
	r.log.Info("token revoked", "token_id", id, "by", actor)
	return nil, nil
}

type joinTokenOutput struct{ Body wire.JoinToken }

// createJoinToken creates a token with which one machine joins, once.
func (h *tokenHandlers) createJoinToken(ctx context.Context, in *Request) (*joinTokenOutput, error) {
	n, err := readValid[spec.NewJoinToken](*in, nil)
	if err != nil {
		return nil, err
	}
	t, err := h.joinTokens.Create(ctx, n, operator(ctx))
	if err != nil {
		return nil, err
	}
	h.log.Info("join token created", "join_token_id", t.ID, "by", operator(ctx))
	return &joinTokenOutput{t}, nil
}

type joinTokenListOutput struct{ Body wire.Page[wire.JoinToken] }

// listJoinTokens lists join tokens, without secrets.
func (h *tokenHandlers) listJoinTokens(ctx context.Context, in *Paging) (*joinTokenListOutput, error) {
	tokens, next, err := h.joinTokens.List(ctx, in.long())
	if err != nil {
		return nil, err
	}
	return &joinTokenListOutput{page(tokens, next)}, nil
}

// revokeJoinToken makes a join token useless. A machine that has joined keeps its own
// token.
func (h *tokenHandlers) revokeJoinToken(ctx context.Context, in *idInput) (*struct{}, error) {
	if err := h.joinTokens.Revoke(ctx, in.ID); err != nil {
		return nil, err
	}
	h.log.Info("join token revoked", "join_token_id", in.ID, "by", operator(ctx))
	return nil, nil
}
