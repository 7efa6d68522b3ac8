package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"berth"
	"berth/activities/node"
	"berth/wire"
)

// gangNetwork returns the machine's network of gangs, in the form in which the server
// compares machines.
func gangNetwork(configured string, engine node.RuntimeInfo) string {
	switch configured {
	case "":
		return wire.EngineNetwork(engine.EngineID)
	case node.HostNetwork:
		return wire.NetworkHost
	default:
		return wire.NamedNetwork(configured)
	}
}

// addressToward returns this host's address on the way to the server. Other machines
// mostly reach the host under the same address.
func addressToward(server *url.URL) (string, error) {
	port := server.Port()
	if port == "" {
		port = "443"
	}
	conn, err := net.Dial("udp", net.JoinHostPort(server.Hostname(), port)) // sends nothing
	if err != nil {
		return "", err
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}

// networkSweeper periodically removes networks of this cluster that jobs have left and that
// connect no container. Machines that share an engine sweep for each other. A network is young
// between its creation and that of its first container, so the sweeper takes only networks of a
// certain age.
type networkSweeper struct {
	runtime node.Runtime
	walls   *walls
	cluster func() string
	timing  Timing
	log     *slog.Logger
}

// watch sweeps until ctx ends.
func (w networkSweeper) watch(ctx context.Context, b beat) {
	for {
		if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("cannot sweep networks, will retry", "err", err)
		}
		if b.sleep(ctx, w.timing.NetworkSweep) != nil {
			return
		}
	}
}

// sweep makes one pass over the cluster's networks. Younger ones than NetworkAge stay: a member
// may be about to connect its container.
func (w networkSweeper) sweep(ctx context.Context) error {
	found, err := w.runtime.Networks(ctx, map[string]string{berth.LabelCluster: w.cluster()})
	if err != nil {
		return err
	}
	for _, n := range found {
		if !w.leftover(n) {
			continue
		}
		switch err := w.walls.remove(ctx, n.Name); {
		case err == nil:
			w.log.Info("leftover network removed", "network", n.Name)
		case !errors.Is(err, node.ErrNetworkInUse):
			return fmt.Errorf("sweep: %w", err)
		}
	}
	// Rules of networks that another agent of this engine has removed go, too.
	return w.walls.restore(ctx)
}

// leftover reports whether a network is to be removed unless a container is on it. Networks that were created ahead
// concern only the agent that created them, and a network that this process does not know is never used again.
func (w networkSweeper) leftover(n node.Network) bool {
	if owner := n.Labels[labelPool]; owner != "" {
		return w.walls.held() && owner == w.walls.Table.Name() && !w.walls.pool.isLive(n.Name)
	}
	return n.Labels[berth.LabelJob] != "" && time.Since(n.CreatedAt) >= w.timing.NetworkAge
}

// sweepNetworks sweeps networks of jobs, unless this machine creates none: the operator has
// created the one that gangs use, and single containers use the engine's.
func (s *Supervisor) sweepNetworks(ctx context.Context) {
	if s.cfg.GangNetwork != "" && !s.walls.held() || s.waitAdopted(ctx) != nil {
		return
	}
	w := networkSweeper{
		runtime: s.cfg.Runtime, walls: s.walls, cluster: s.control.clusterID, timing: s.cfg.Timing, log: s.log,
	}
	w.watch(ctx, s.beat)
}
