package rig

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"berth"
	"berth/internal/machine/firewall"
)

// RemoveContainers removes the containers, the networks and the firewall tables that the agents of a
// closed stack left on the host's own engine.
func (s *Stack) RemoveContainers(ctx context.Context) error { return removeLeft(ctx, s.Dir) }

// removeLeft removes the containers, networks and firewall tables of all machines whose folders are below the
// folder of a stack. A machine that has not joined has none.
func removeLeft(ctx context.Context, stack string) error {
	folders, err := filepath.Glob(filepath.Join(stack, "machines", "*"))
	removed := map[string]bool{}
	for _, folder := range folders {
		var c struct {
			Cluster string `json:"cluster"`
		}
		b, readErr := os.ReadFile(filepath.Join(folder, "credential.json"))
		if readErr != nil || json.Unmarshal(b, &c) != nil || c.Cluster == "" {
			continue
		}
		if !removed[c.Cluster] {
			removed[c.Cluster] = true
			err = errors.Join(err, RemoveOfCluster(ctx, c.Cluster))
		}
		err = errors.Join(err, firewall.Delete(ctx, folder+"/"+filepath.Base(folder), ""))
	}
	return err
}

// RemoveOfCluster removes the containers and networks with a cluster's label from the host's own engine.
// It tries again while the engine refuses: calls of an agent that has died may still be at work on them. A busy
// engine takes many seconds for each container.
func RemoveOfCluster(ctx context.Context, cluster string) error {
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer api.Close()
	labels := filters.NewArgs(filters.Arg("label", berth.LabelCluster+"="+cluster))
	return Await(ctx, Patience, func(ctx context.Context) error {
		left, err := api.ContainerList(ctx, container.ListOptions{All: true, Filters: labels})
		for _, c := range left {
			removed := api.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
			err = errors.Join(err, unlessGone(removed))
		}
		networks, listErr := api.NetworkList(ctx, network.ListOptions{Filters: labels})
		err = errors.Join(err, listErr)
		for _, n := range networks {
			err = errors.Join(err, unlessGone(api.NetworkRemove(ctx, n.ID)))
		}
		return err
	})
}

// unlessGone drops the error of a removal that something else has already done.
func unlessGone(err error) error {
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}
