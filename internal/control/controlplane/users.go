package controlplane

import (
	"context"
	"fmt"

	"berth/spec"
)

// readUsers completes the configuration with the database's default of the user of containers, and stores a pool
// of users that the operator has set.
func (a *assembly) readUsers(ctx context.Context) (err error) {
	if a.cfg.ContainerUIDs != "" {
		pool, err := spec.ParseUserPool(a.cfg.ContainerUIDs)
		if err != nil {
			return fmt.Errorf("container-uids: %w", err)
		}
		changed, err := a.db.Cluster.SetUserPool(ctx, pool)
		if err != nil {
			return err
		}
		if changed {
			a.log.Info("pool of container users changed, existing ranges of tenants stay", "pool", pool)
		}
	}
	// Without the flag, the column decides, which an upgrade does not change.
	if a.cfg.ContainerUser == "" {
		a.cfg.ContainerUser, err = a.db.Cluster.ContainerUser(ctx)
	}
	return err
}
