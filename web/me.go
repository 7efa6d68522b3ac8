package web

import (
	"context"
	"net/http"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// meView is the data of the page about the reader.
type meView struct {
	wire.Caller
	Tokens   []ownToken
	Browsers []db.WebSession
	Revoke   *ownToken // the token that the reader is asked about; nil: none
}

// ownToken is a token with the reader's name and tenant.
type ownToken struct {
	wire.Token
	Current   bool // the reader signed in with it
	Revocable bool // the reader may revoke it, and it is neither revoked nor expired
}

// mePage shows the tokens with the name of the reader, and the browsers that they signed in. With revoke in the
// address, it asks about the revocation of that token.
func (s *Site) mePage(ctx context.Context, v *visit) (result, error) {
	who, err := v.api.Whoami(ctx)
	if err != nil {
		return result{}, err
	}
	list, err := v.api.OwnTokens(ctx)
	if err != nil {
		return result{}, err
	}
	view := meView{Caller: who}
	reader := v.page.Reader
	for _, t := range list.Items {
		// db.RevokeOwn has the same condition.
		may := reader.Acts() && (t.Role != spec.RoleAdmin || reader.Operates())
		own := ownToken{t, t.ID == who.TokenID,
			may && t.RevokedAt == nil && (t.ExpiresAt == nil || t.ExpiresAt.After(v.page.Now))}
		view.Tokens = append(view.Tokens, own)
		// The page only asks; the form posts to actOnMe, so that a link alone revokes nothing.
		if t.ID == v.query("revoke") && own.Revocable {
			view.Revoke = &own
		}
	}
	if v.query("revoke") != "" && view.Revoke == nil {
		return result{}, berth.Errorf(berth.CodeNotFound, "you have no valid token %q that you may revoke",
			clip(80, v.query("revoke")))
	}
	if view.Browsers, err = s.Sessions.Own(ctx, v.page.Reader.principal(), s.sessionText(v.r)); err != nil {
		return result{}, err
	}
	return result{template: "me", title: who.Name, data: view}, nil
}

// actOnMe revokes one of the reader's tokens, or ends the sessions of all browsers that they have signed in.
func (s *Site) actOnMe(ctx context.Context, v *visit) (result, error) {
	switch do := v.r.PostFormValue("do"); do {
	case "revoke":
		return result{redirect: "/me"}, v.api.RevokeOwnToken(ctx, v.r.PostFormValue("id"))
	case "signout":
		ended, err := s.sessions.endOwn(ctx, v.page.Reader.principal())
		if err != nil {
			return result{}, err
		}
		s.Logger.Info("signed out of the dashboard everywhere", "name", v.page.Reader.Name,
			"tenant", v.page.Reader.Tenant, "sessions", ended)
		if name, ok := s.cookieName(v.r); ok {
			// A negative age deletes the cookie of this browser. The sessions of the others have ended at the server.
			http.SetCookie(v.w, s.cookie(v.r, name, "", -1))
		}
		return result{redirect: "/login"}, nil
	default:
		return result{}, berth.Errorf(berth.CodeInvalid, "action %q is not known; allowed are revoke, signout",
			clip(40, do))
	}
}

// principal returns the reader as the owner of tokens and sessions.
func (r *reader) principal() db.Principal {
	return db.Principal{Name: r.Name, Tenant: r.Tenant, Role: r.Role, TokenID: r.TokenID}
}
