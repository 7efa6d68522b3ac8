package db

import (
	"context"
	"crypto/subtle"
	"time"

	"github.com/jackc/pgx/v5"
)

// WebSession is a browser that is signed in to the dashboard.
type WebSession struct {
	Token     string    // id of the token that it signed in with
	CreatedAt time.Time // time of the sign-in
	UsedAt    time.Time // last use, exact to a minute
	ExpiresAt time.Time // end, if it is used until then
	Current   bool      // it is the session of the given text
}

// Own lists the sessions that DeleteOwn would end, the last used one first. text is that of the caller's own session,
// "" for none. Sessions that have ended are not listed.
func (d *WebSessions) Own(ctx context.Context, of Principal, text string) ([]WebSession, error) {
	args := ownArgs(of)
	args["idle"] = WebSessionIdle
	rows, err := d.pool.Query(ctx, `
		SELECT s.token, s.created_at, s.used_at,
			least(s.expires_at, s.used_at + @idle::interval, t.expires_at), s.sha256
		FROM web_sessions s
		JOIN tokens t ON t.id = s.token
		WHERE t.id IN (SELECT id FROM tokens WHERE `+ownToEnd+`) AND t.revoked_at IS NULL
		  AND (t.expires_at IS NULL OR t.expires_at > now())
		  AND s.expires_at > now() AND s.used_at > now() - @idle::interval
		ORDER BY s.used_at DESC, s.created_at DESC, s.sha256`, args)
	if err != nil {
		return nil, mapError(err, "session")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s WebSession, err error) {
		var sum []byte
		err = row.Scan(&s.Token, &s.CreatedAt, &s.UsedAt, &s.ExpiresAt, &sum)
		s.Current = subtle.ConstantTimeCompare(sum, webSessionSum(text)) == 1
		return s, err
	})
	return list, mapError(err, "session")
}

// DeleteOwn ends all sessions of the tokens with the name and the tenant of the caller, and returns their number.
// The tokens stay valid. Only an admin ends sessions of tokens of role admin, as in Tokens.RevokeOwn.
func (d *WebSessions) DeleteOwn(ctx context.Context, of Principal) (int64, error) {
	tag, err := d.pool.Exec(ctx, `
		DELETE FROM web_sessions
		WHERE token IN (SELECT id FROM tokens WHERE `+ownToEnd+`)`,
		ownArgs(of))
	return tag.RowsAffected(), mapError(err, "session")
}
