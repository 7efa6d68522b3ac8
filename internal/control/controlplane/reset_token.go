package controlplane

import (
	"context"
	"fmt"
	"os"

	"berth/db"
)

// TokenReset says which admin tokens to replace, and where the new one goes.
type TokenReset struct {
	DatabaseURL string
	Name        string // of the tokens; "": the first admin token's
	File        string // absolute path that gets the new token; "": none
	Actor       string // of the events
}

// ResetToken revokes the admin tokens of a name and creates one in their place. It needs the
// database, and neither a running berthd nor a token.
//
// Nothing has changed if the file cannot be written, or the database refuses. After a crash
// between the commit and the new file, or an error of the rename, the old token is revoked
// and the file still holds it; a repeated call mends that.
func ResetToken(ctx context.Context, o TokenReset) (db.TokenReset, error) {
	if o.Name == "" {
		o.Name = adminName
	}
	if o.DatabaseURL == "" {
		return db.TokenReset{}, fmt.Errorf(
			"no database: set --database-url or BERTH_DATABASE_URL to postgres://user@host/berth")
	}
	f := tokenFile(o.File)
	if o.File != "" {
		// Before the database: a folder that refuses the file is the likely fault.
		temp, err := f.prepare("")
		if err != nil {
			return db.TokenReset{}, err
		}
		_ = os.Remove(temp)
	}
	d, err := db.Open(ctx, o.DatabaseURL, db.Options{MaxConns: 4})
	if err != nil {
		return db.TokenReset{}, fmt.Errorf("database %s: %w", redact(o.DatabaseURL), err)
	}
	defer d.Close()
	r, err := d.Tokens.Reset(ctx, adminTenant, o.Name, o.Actor, o.File != "")
	if err != nil || o.File == "" {
		return r, err
	}
	if err := f.replace(r.Text); err != nil {
		return db.TokenReset{}, fmt.Errorf(
			"the old tokens are revoked and the new one is lost, run the reset again: %w", err)
	}
	return r, nil
}
