package api

import (
	"cmp"
	"context"
	"net/http"

	"berth"
	"berth/spec"
	"berth/wire"
)

func (s *Server) registerTokens() {
	const tag = "administration"
	newToken := s.operation("create-token", http.MethodPost, "/v1/tokens", tag, "Make a token; its secret is shown once")
	newToken.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewToken](s, newToken, s.createToken)
	register(s, s.operation("list-tokens", http.MethodGet, "/v1/tokens", tag, "List tokens"), s.listTokens)
	revoke := s.operation("revoke-token", http.MethodDelete, "/v1/tokens/{id}", tag, "Revoke a token")
	revoke.DefaultStatus = http.StatusNoContent
	register(s, revoke, s.revokeToken)

	newJoin := s.operation("create-join-token", http.MethodPost, "/v1/join-tokens", tag, "Make a token with which one machine joins, once")
	newJoin.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewJoinToken](s, newJoin, s.createJoinToken)
	register(s, s.operation("list-join-tokens", http.MethodGet, "/v1/join-tokens", tag, "List join tokens"), s.listJoinTokens)
	revokeJoin := s.operation("revoke-join-token", http.MethodDelete, "/v1/join-tokens/{id}", tag, "Revoke a join token")
	revokeJoin.DefaultStatus = http.StatusNoContent
	register(s, revokeJoin, s.revokeJoinToken)
}

type idInput struct {
	ID string `path:"id" maxLength:"64"`
}

type tokenOutput struct{ Body wire.Token }

func (s *Server) createToken(ctx context.Context, in *Request) (*tokenOutput, error) {
	n, err := readValid(*in, func(n *spec.NewToken) {
		n.Tenant = cmp.Or(n.Tenant, caller(ctx).Tenant)
		n.Role = cmp.Or(n.Role, spec.RoleUser)
	})
	if err != nil {
		return nil, err
	}
	t, err := s.DB.Tokens.Create(ctx, n)
	if err != nil {
		return nil, err
	}
	s.Logger.Info("token made", "token_id", t.ID, "name", t.Name, "tenant", t.Tenant, "role", t.Role, "by", operator(ctx))
	return &tokenOutput{t}, nil
}

type tokenListOutput struct{ Body wire.Page[wire.Token] }

func (s *Server) listTokens(ctx context.Context, in *Paging) (*tokenListOutput, error) {
	tokens, next, err := s.DB.Tokens.List(ctx, in.long())
	if err != nil {
		return nil, err
	}
	return &tokenListOutput{page(tokens, next)}, nil
}

func (s *Server) revokeToken(ctx context.Context, in *idInput) (*struct{}, error) {
	// Only admins revoke, so that none who keeps to this locks everybody out.
	if in.ID == caller(ctx).TokenID {
		return nil, berth.Errorf(berth.CodeConflict, "token %s is the one this call came with: make another admin's token and revoke it with that", in.ID)
	}
	if err := s.DB.Tokens.Revoke(ctx, in.ID); err != nil {
		return nil, err
	}
	s.auth.forget()
	s.Logger.Info("token revoked", "token_id", in.ID, "by", operator(ctx))
	return nil, nil
}

type joinTokenOutput struct{ Body wire.JoinToken }

func (s *Server) createJoinToken(ctx context.Context, in *Request) (*joinTokenOutput, error) {
	n, err := readValid[spec.NewJoinToken](*in, nil)
	if err != nil {
		return nil, err
	}
	t, err := s.DB.JoinTokens.Create(ctx, n, operator(ctx))
	if err != nil {
		return nil, err
	}
	s.Logger.Info("join token made", "join_token_id", t.ID, "by", operator(ctx))
	return &joinTokenOutput{t}, nil
}

type joinTokenListOutput struct{ Body wire.Page[wire.JoinToken] }

func (s *Server) listJoinTokens(ctx context.Context, in *Paging) (*joinTokenListOutput, error) {
	tokens, next, err := s.DB.JoinTokens.List(ctx, in.long())
	if err != nil {
		return nil, err
	}
	return &joinTokenListOutput{page(tokens, next)}, nil
}

func (s *Server) revokeJoinToken(ctx context.Context, in *idInput) (*struct{}, error) {
	if err := s.DB.JoinTokens.Revoke(ctx, in.ID); err != nil {
		return nil, err
	}
	s.Logger.Info("join token revoked", "join_token_id", in.ID, "by", operator(ctx))
	return nil, nil
}
