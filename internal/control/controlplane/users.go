package controlplane

import (
	"context"
	"fmt"

	"berth/spec"
)

// readUsers completes the configuration with the database's default of the user of containers, and stores a pool
// of users that the operator has set. It warns of a default that the operator has not chosen and that runs most
// containers as root.
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
	if a.cfg.ContainerUser != "" {
		return nil
	}
	if a.cfg.ContainerUser, err = a.db.Cluster.ContainerUser(ctx); err != nil {
		return err
	}
	if a.cfg.ContainerUser == spec.UserImage {
		a.log.Warn("jobs without user run as the user that their image names, often root; "+
			"set --container-user to tenant or image", "container_user", a.cfg.ContainerUser)
	}
	return nil
}
