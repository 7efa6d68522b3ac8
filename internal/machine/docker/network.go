package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"berth"
	"berth/activities/node"
)

// bridgeName is the option that names a network's bridge on the host. The engine
// lets two networks have one name, but no two bridges: so of several callers that
// make a network at the same time only one succeeds.
const bridgeName = "com.docker.network.bridge.name"

// Further options of the engine's bridge driver.
const (
	bridgeMasquerade = "com.docker.network.bridge.enable_ip_masquerade"
	bridgeMTU        = "com.docker.network.driver.mtu"
)

// identity are the labels that say whose network this is. Containers on the network carry them, too.
var identity = []string{berth.LabelCluster, berth.LabelJob, berth.LabelAttempt}

// EnsureNetwork creates a bridge network unless one of this name exists.
func (e *Engine) EnsureNetwork(ctx context.Context, n node.Network) (node.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, e.bounds.network)
	defer cancel()
	sum := sha256.Sum256([]byte(n.Name))
	bridge := "bn" + hex.EncodeToString(sum[:6])
	free := newSubnets(e.options, n, sum)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		found, err := e.network(ctx, n.Name)
		if err == nil && found == nil {
			err = createNetwork(ctx, e.api, n, bridge, free)
			if err == nil {
				continue // to return it as the engine has it
			}
		}
		switch {
		case err == nil:
			for _, k := range identity {
				if found.Labels[k] != n.Labels[k] {
					return node.Network{}, fmt.Errorf(
						"create network %s: the engine has another network of this name: %w", n.Name, node.ErrNoNetwork)
				}
			}
			return describeNetwork(*found), nil
		case isOverlap(err):
			free.skip()
			continue
		case !cerrdefs.IsConflict(err) && !cerrdefs.IsPermissionDenied(err):
			return node.Network{}, fmt.Errorf("create network %s: %w", n.Name, err)
		}
		// Another caller is creating the network, which is not listed yet.
		if err := pause(ctx, wait); err != nil {
			return node.Network{}, fmt.Errorf("create network %s: %w", n.Name, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// createNetwork creates a network. A walled one gets a free subnet.
func createNetwork(ctx context.Context, api client.NetworkAPIClient, n node.Network, bridge string, free *subnets,
) error {
	o := network.CreateOptions{
		Driver: network.NetworkBridge, Labels: n.Labels, Options: map[string]string{bridgeName: bridge},
	}
	if n.Hosts == 0 {
		_, err := api.NetworkCreate(ctx, n.Name, o)
		return err
	}
	subnet, mtu, err := free.next()
	if err != nil {
		return err
	}
	o.IPAM = &network.IPAM{Config: []network.IPAMConfig{
		{Subnet: subnet.String(), Gateway: subnet.Addr().Next().String()},
	}}
	o.Options[bridgeMasquerade], o.Options[bridgeMTU] = "false", strconv.Itoa(mtu)
	made, err := api.NetworkCreate(ctx, n.Name, o)
	if err != nil {
		return err
	}
	// Another engine of this host may have taken the subnet at the same time: its own check
	// knows its own networks alone.
	other, err := free.contested(subnet, bridge)
	if err == nil && !other {
		return nil
	}
	if removed := api.NetworkRemove(ctx, made.ID); err != nil || removed != nil {
		return errors.Join(err, removed)
	}
	return errOverlap
}

// describeNetwork translates the engine's word on a network.
func describeNetwork(n network.Summary) node.Network {
	d := node.Network{
		Name: n.Name, Labels: maps.Clone(n.Labels), CreatedAt: n.Created, Bridge: n.Options[bridgeName],
	}
	for _, c := range n.IPAM.Config {
		if p, err := netip.ParsePrefix(c.Subnet); err == nil && p.Addr().Is4() {
			d.Subnet = p
		}
	}
	return d
}

// network finds a network by its whole name, and returns nil if none exists. The engine's own
// filter takes parts of names for matches, and its inspection prefixes of ids.
func (e *Engine) network(ctx context.Context, name string) (*network.Summary, error) {
	list, err := e.api.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("name", name))})
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Name == name {
			return &list[i], nil
		}
	}
	return nil, nil
}

// RemoveNetwork removes a network that no container is on. The engine itself
// would spare only one that a running container is on.
func (e *Engine) RemoveNetwork(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := e.network(ctx, name)
	if err != nil || found == nil {
		return wrapNetwork("find", name, err)
	}
	// The engine's own filter by network does not see containers that were never
	// started. Containers for a network carry its identity, but not its further labels.
	on := filters.NewArgs()
	for _, k := range identity {
		if v, ok := found.Labels[k]; ok {
			on.Add("label", k+"="+v)
		}
	}
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: on})
	if err != nil {
		return wrapNetwork("find containers on", name, err)
	}
	for _, c := range list {
		if c.HostConfig.NetworkMode == name {
			return fmt.Errorf("remove network %s: container %s is on it: %w", name, c.ID, node.ErrNetworkInUse)
		}
	}
	err = e.api.NetworkRemove(ctx, found.ID)
	switch {
	case err == nil, cerrdefs.IsNotFound(err):
		return nil
	case cerrdefs.IsPermissionDenied(err), cerrdefs.IsConflict(err):
		return fmt.Errorf("remove network %s: %w: %w", name, node.ErrNetworkInUse, err)
	}
	return wrapNetwork("remove", name, err)
}

// wrapNetwork adds the operation and the network's name to an error, and keeps nil.
func wrapNetwork(doing, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s network %s: %w", doing, name, err)
}

// Networks lists the networks with every given label.
func (e *Engine) Networks(ctx context.Context, labels map[string]string) ([]node.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	want := filters.NewArgs()
	for k, v := range labels {
		want.Add("label", k+"="+v)
	}
	list, err := e.api.NetworkList(ctx, network.ListOptions{Filters: want})
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	found := make([]node.Network, 0, len(list))
	for _, n := range list {
		found = append(found, describeNetwork(n))
	}
	return found, nil
}
