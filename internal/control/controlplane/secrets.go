package controlplane

import (
	"context"
	"time"

	"berth/db"
	"berth/internal/lib/sealer"
)

const (
	resealEvery = 10 * time.Minute
	resealBatch = 100
)

// reseal seals all secrets under the first key at intervals, so that older keys can be
// removed from the file. Any number of processes may do so at once: each replaces only the
// value that it has read.
func (c *ControlPlane) reseal(d *db.DB, keys *sealer.Keys) part {
	return func(ctx context.Context) error {
		for {
			if err := c.resealAll(ctx, d, keys); err != nil && ctx.Err() == nil {
				c.log.Error("cannot reseal secrets", "err", err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(resealEvery):
			}
		}
	}
}

// resealAll seals all secrets under the current key that are sealed under another one. Secrets
// under an unknown key are logged and left as they are.
func (c *ControlPlane) resealAll(ctx context.Context, d *db.DB, keys *sealer.Keys) error {
	done, stuck := 0, 0
	for after := (db.SealedSecret{}); ; {
		list, err := d.Secrets.NotUnder(ctx, keys.Current(), after, resealBatch)
		if err != nil {
			return err
		}
		for _, s := range list {
			after = s
			value, err := keys.Open(s.Tenant, s.Name, s.Key, s.Sealed)
			if err != nil {
				// The key may have been removed too early; an operator can put it back.
				stuck++
				c.log.Error("secret cannot be opened with this server's keys", "tenant", s.Tenant, "err", err)
				continue
			}
			fresh := s
			fresh.Key, fresh.Sealed = keys.Seal(s.Tenant, s.Name, value)
			if err := d.Secrets.Reseal(ctx, s, fresh); err != nil {
				return err
			}
			done++
		}
		// A short page is the last one.
		if len(list) < resealBatch {
			break
		}
	}
	if done+stuck > 0 {
		c.log.Info("secrets resealed", "key", keys.Current(), "count", done, "left_under_unknown_keys", stuck)
	}
	return nil
}
