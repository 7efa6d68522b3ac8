package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"berth"
	"berth/db"
	"berth/spec"
)

// The tenant and the name of the first admin token.
const (
	adminTenant = berth.TenantID("default")
	adminName   = "admin"
)

// makeFirstToken makes sure that an operator has an admin token. An operator's own text comes
// first, then the token file, then Options.FirstToken, which shows a new token once.
//
// The token file at the start of a replica, and the admin tokens of the database:
//
//	file                    no valid admin token       a valid admin token exists
//	absent                  a token is created, then   nothing; the log shows that no
//	                        the file, then the commit  file was written
//	text of a valid token   (cannot be)                nothing
//	text that is unknown    the text becomes a token   the text becomes a token
//	text of a revoked token a token is created and     nothing; the log warns
//	                        replaces the file
//	unreadable, no token,   the start fails            the start fails
//	others may write
//
// The file is written before the transaction commits. A crash in between leaves a text that
// is unknown, which the next start makes a token. A file that cannot be written fails the
// start and leaves no token. Of several replicas that start at once one creates the token,
// under a lock of the database, so the file is on the host of that one.
func (c *ControlPlane) makeFirstToken(ctx context.Context, d *db.DB) error {
	if c.opts.AdminToken != "" {
		valid, err := d.Tokens.Ensure(ctx, c.opts.AdminToken, adminToken(), startActor())
		if err == nil && !valid {
			c.log.Warn("the admin token of BERTH_ADMIN_TOKEN is revoked or expired")
		}
		return err
	}
	if !c.cfg.Plays(RoleAPI) {
		return nil
	}
	if c.cfg.AdminTokenFile != "" {
		return c.keepFirstToken(ctx, d, tokenFile(c.cfg.AdminTokenFile))
	}
	if c.opts.FirstToken == nil {
		return nil
	}
	text, err := d.Tokens.CreateFirst(ctx, adminTenant, adminName, startActor(), nil)
	if text != "" {
		c.opts.FirstToken(text)
	}
	return err
}

// keepFirstToken makes the text of the token file an admin token, or creates the file with the
// first admin token.
func (c *ControlPlane) keepFirstToken(ctx context.Context, d *db.DB, f tokenFile) error {
	text, err := f.read()
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	default:
		valid, err := d.Tokens.Ensure(ctx, text, adminToken(), startActor())
		if err != nil {
			return fmt.Errorf("admin token file %s: %w", f, err)
		}
		if valid {
			return nil
		}
	}
	dead := text != "" // Ensure has found the token revoked or expired
	created, err := d.Tokens.CreateFirst(ctx, adminTenant, adminName, startActor(), func(text string) error {
		if dead {
			return f.replace(text)
		}
		return f.create(text)
	})
	switch {
	case err != nil:
		return err
	case created != "":
		c.log.Info("created the first admin token", "file", f)
	case dead:
		c.log.Warn("the admin token of the token file is revoked or expired; another admin token is valid", "file", f)
	default:
		c.log.Info("an admin token exists, no token file was written", "file", f)
	}
	return nil
}

// adminToken is the token that a text of the operator stands for.
func adminToken() spec.NewToken {
	return spec.NewToken{Name: adminName, Tenant: adminTenant, Role: spec.RoleAdmin}
}

// startActor is the actor of tokens that a start of this process creates.
func startActor() string {
	host, _ := os.Hostname()
	return "start:" + cmp.Or(host, "unknown")
}
