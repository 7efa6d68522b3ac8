package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"berth"
	"berth/internal/machine/firewall"
)

// Cluster returns the id of the stack's cluster, as the credential of its first machine has it.
func (s *Stack) Cluster() (string, error) {
	var c struct {
		Cluster string `json:"cluster"`
	}
	b, err := os.ReadFile(filepath.Join(s.StateDir("m001"), "credential.json"))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err == nil && c.Cluster == "" {
		err = errors.New("the credential of m001 names no cluster")
	}
	return c.Cluster, err
}

// RemoveContainers removes the containers, the networks and the firewall tables that the agents of a
// closed stack left on the host's own engine.
func (s *Stack) RemoveContainers(ctx context.Context) error {
	cluster, err := s.Cluster()
	if errors.Is(err, os.ErrNotExist) {
		return nil // no machine has joined
	}
	if err != nil {
		return err
	}
	err = RemoveOfCluster(ctx, cluster)
	for i := range s.agents {
		name := fmt.Sprintf("m%03d", i+1)
		err = errors.Join(err, firewall.Delete(ctx, s.StateDir(name)+"/"+name, ""))
	}
	return err
}

// leftLimit bounds the removal of containers that agents have left: an engine may be at work on it for minutes.
const leftLimit = 2 * time.Minute

// RemoveOfCluster removes the containers and networks with a cluster's label from the host's own engine.
// It tries again while the engine refuses: calls of an agent that has died may still be at work on them.
func RemoveOfCluster(ctx context.Context, cluster string) error {
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer api.Close()
	labels := filters.NewArgs(filters.Arg("label", berth.LabelCluster+"="+cluster))
	return Await(ctx, leftLimit, func(ctx context.Context) error {
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
