package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"berth"
	"berth/db"
)

// openDatabase migrates the schema and opens a pool. It waits for a database
// that does not answer; one that refuses the schema is an error.
func openDatabase(ctx context.Context, cfg Config, log *slog.Logger) (*db.DB, error) {
	const first, longest = 200 * time.Millisecond, 5 * time.Second
	for pause := first; ; pause = min(2*pause, longest) {
		d, err := tryDatabase(ctx, cfg, log)
		if err == nil {
			return d, nil
		}
		if berth.CodeOf(err) != berth.CodeUnavailable {
			return nil, fmt.Errorf("database %s: %w", redact(cfg.DatabaseURL), err)
		}
		log.Warn("waiting for PostgreSQL", "database_url", redact(cfg.DatabaseURL), "err", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func tryDatabase(ctx context.Context, cfg Config, log *slog.Logger) (*db.DB, error) {
	if err := db.Migrate(ctx, cfg.DatabaseURL); err != nil {
		return nil, err
	}
	o := db.Options{MaxConns: int32(cfg.DatabaseConns), Logger: log, HalfLife: cfg.Policy.HalfLife, EntryPenalty: cfg.Policy.EntryPenalty}
	if o.HalfLife == 0 {
		o.HalfLife = -1 // past use does not count
	}
	return db.Open(ctx, cfg.DatabaseURL, o)
}
