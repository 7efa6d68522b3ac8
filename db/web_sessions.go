package db

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Times of a session of the dashboard. A session ends WebSessionIdle after its last use, at the
// latest WebSessionLife after the sign-in, and with its token.
const (
	WebSessionIdle = 12 * time.Hour
	WebSessionLife = 7 * 24 * time.Hour
)

// webSessionsOfToken is the number of browsers that one token may sign in; the oldest session
// gives way to a new one. webSessionsSwept is the number of expired rows that a sign-in deletes.
const (
	webSessionsOfToken = 50
	webSessionsSwept   = 1000
)

// errNoWebSession is the answer to every text that opens no session. It hides the cause.
func errNoWebSession() error {
	return berth.Errorf(berth.CodeUnauthorized, "the session has ended; sign in again")
}

// webSessionSum is the stored form of a session's text.
func webSessionSum(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// Create starts a session for a token that the caller has just authenticated, and returns its
// text of 256 random bits, which is stored nowhere. A token that was revoked meanwhile is an error
// of code unauthorized.
func (d *WebSessions) Create(ctx context.Context, token string) (text string, err error) {
	text = berth.NewSecret()
	args := namedArgs{"sha256": webSessionSum(text), "token": token, "life": WebSessionLife, "idle": WebSessionIdle,
		"keep": webSessionsOfToken - 1, "swept": webSessionsSwept}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		for _, sql := range []string{`
			DELETE FROM web_sessions
			WHERE sha256 IN (
				SELECT sha256
				FROM web_sessions
				WHERE expires_at < now()
				ORDER BY expires_at
				LIMIT @swept
				FOR UPDATE SKIP LOCKED)`, `
			DELETE FROM web_sessions
			WHERE sha256 IN (
				SELECT sha256
				FROM web_sessions
				WHERE token = @token
				ORDER BY created_at DESC
				OFFSET @keep
				FOR UPDATE SKIP LOCKED)`} {
			if _, err := tx.Exec(ctx, sql, args); err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO web_sessions (sha256, token, expires_at)
			SELECT @sha256, id, least(now() + @life::interval, expires_at)
			FROM tokens
			WHERE id = @token AND machine_id IS NULL AND revoked_at IS NULL
			  AND (expires_at IS NULL OR expires_at > now())`, args)
		if err == nil && tag.RowsAffected() == 0 {
			return errNoWebSession()
		}
		return err
	})
	return text, mapError(err, "session")
}

// Find returns the principal of a session: that of its token at this moment. A session that is
// unknown or expired, or whose token is revoked or expired, is an error of code unauthorized.
func (d *WebSessions) Find(ctx context.Context, text string) (Principal, error) {
	return d.find(ctx, text, true)
}

// Look is Find for a program that acts without its reader. It is no use of the session, so that a page that
// is left open does not keep its session from ending.
func (d *WebSessions) Look(ctx context.Context, text string) (Principal, error) {
	return d.find(ctx, text, false)
}

func (d *WebSessions) find(ctx context.Context, text string, use bool) (Principal, error) {
	args := namedArgs{"sha256": webSessionSum(text), "idle": WebSessionIdle}
	var p Principal
	var stale bool // used_at is older than a minute
	err := d.pool.QueryRow(ctx, `
		SELECT t.id, t.name, t.tenant, `+shownRole+`, t.expires_at, s.used_at < now() - interval '1 minute'
		FROM web_sessions s
		JOIN tokens t ON t.id = s.token
		WHERE s.sha256 = @sha256 AND s.expires_at > now() AND s.used_at > now() - @idle::interval
		  AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())`, args).
		Scan(&p.TokenID, &p.Name, &p.Tenant, &p.Role, &p.ExpiresAt, &stale)
	if errors.Is(err, pgx.ErrNoRows) {
		return Principal{}, errNoWebSession()
	}
	if err == nil && stale && use {
		_, err = d.pool.Exec(ctx, `UPDATE web_sessions SET used_at = now() WHERE sha256 = @sha256`, args)
	}
	return p, mapError(err, "session")
}

// Delete ends a session. An unknown text is no error.
func (d *WebSessions) Delete(ctx context.Context, text string) error {
	_, err := d.pool.Exec(ctx, `DELETE FROM web_sessions WHERE sha256 = @sha256`,
		namedArgs{"sha256": webSessionSum(text)})
	return mapError(err, "session")
}
