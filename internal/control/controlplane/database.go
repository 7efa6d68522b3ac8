package controlplane

import (
	"context"
	"fmt"
	"time"

	"berth"
	"berth/db"
)

// openDatabase migrates the schema and opens a pool. It waits for a database that does not
// answer, so that all parts of a cluster may start in any order; a database that refuses
// the schema is an error.
func (c *ControlPlane) openDatabase(ctx context.Context) (*db.DB, error) {
	const first, longest = 200 * time.Millisecond, 5 * time.Second
	for pause := first; ; pause = min(2*pause, longest) {
		d, err := c.tryDatabase(ctx)
		if err == nil {
			return d, nil
		}
		// Waiting mends an absent server, and neither a wrong password nor a newer schema.
		if berth.CodeOf(err) != berth.CodeUnavailable {
			return nil, fmt.Errorf("database %s: %w", redact(c.cfg.DatabaseURL), err)
		}
		c.log.Warn("waiting for PostgreSQL", "database_url", redact(c.cfg.DatabaseURL), "err", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// tryDatabase makes one attempt to migrate and open the database.
func (c *ControlPlane) tryDatabase(ctx context.Context) (*db.DB, error) {
	if err := db.Migrate(ctx, c.cfg.DatabaseURL); err != nil {
		return nil, err
	}
	o := db.Options{
		MaxConns: int32(c.cfg.DatabaseConns), Logger: c.log, LeaderIdle: c.opts.LeaderIdle,
		HalfLife: c.cfg.Policy.HalfLife, EntryPenalty: c.cfg.Policy.EntryPenalty,
	}
	if o.HalfLife == 0 {
		o.HalfLife = -1 // past use does not count
	}
	return db.Open(ctx, c.cfg.DatabaseURL, o)
}
