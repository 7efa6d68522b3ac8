package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/activities/node"
)

// gangNetwork is the machine's network of gangs, as the server compares it with
// those of other machines.
func gangNetwork(configured string, engine node.RuntimeInfo) string {
	switch configured {
	case "":
		return berth.EngineNetwork(engine.EngineID)
	case node.HostNetwork:
		return berth.NetworkHost
	default:
		return berth.NamedNetwork(configured)
	}
}

// addressToward is this host's address on the way to the server, which is most
// often the one under which other machines reach it.
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

// gang reports whether the rank has others beside it.
func (r *member) gang() bool { return len(r.claim.Peers) > 1 }

// joinNetwork puts the container of a gang's rank on the network where it can
// reach the others. One that this engine has for the gang alone becomes r.network.
func (r *member) joinNetwork(spec *node.ContainerSpec) error {
	if !r.gang() {
		return nil
	}
	for _, p := range r.claim.Peers {
		if p.Network != r.claim.Peers[r.number].Network {
			return berth.Errorf(berth.CodeInvalid, "rank %d on machine %s is on network %q, and this one on %q: they cannot reach each other", p.Rank, p.Machine, p.Network, r.claim.Peers[r.number].Network)
		}
	}
	if spec.Network = r.sup.cfg.GangNetwork; spec.Network != "" {
		return nil
	}
	r.network = berth.GangNetworkName(r.job, r.attempt)
	spec.Network, spec.Labels[berth.LabelNetwork] = r.network, r.network
	return nil
}

// ensureNetwork makes the network of the rank's gang, unless it is there.
func (r *member) ensureNetwork(ctx context.Context) error {
	return r.runtime().EnsureNetwork(ctx, node.Network{Name: r.network, Labels: map[string]string{
		berth.LabelCluster: r.sup.control.clusterID(),
		berth.LabelJob:     string(r.job),
		berth.LabelAttempt: strconv.Itoa(r.attempt),
	}})
}

// rendezvous is what the process needs to find the others.
func (r *member) rendezvous() map[string]string {
	if !r.gang() {
		return map[string]string{"BERTH_PEERS": "127.0.0.1:" + masterPort, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": masterPort}
	}
	peers := make([]string, len(r.claim.Peers))
	for i, p := range r.claim.Peers {
		peers[i] = p.Endpoint(r.job, r.attempt)
	}
	first := r.claim.Peers[0]
	return map[string]string{
		"BERTH_PEERS": strings.Join(peers, ","),
		"MASTER_ADDR": first.Host(r.job, r.attempt),
		"MASTER_PORT": strconv.Itoa(first.Port),
	}
}

// leave removes the network made for the rank's gang, if it is the last one
// there. Where that fails the sweep comes by.
func (r *member) leave(ctx context.Context) {
	if r.network == "" {
		return
	}
	err := r.runtime().RemoveNetwork(ctx, r.network)
	if err != nil && !errors.Is(err, node.ErrNetworkInUse) && ctx.Err() == nil {
		r.log.Warn("network of the gang not removed; it will be swept", "network", r.network, "err", err)
	}
}

// networkSweeper removes, now and then, networks of this cluster that gangs have
// left and that no container is on. Machines that share an engine do it for each
// other. A network is young between its creation and that of its first container, so
// the sweeper takes only networks of a certain age.
type networkSweeper struct {
	runtime node.Runtime
	cluster func() string
	timing  Timing
	log     *slog.Logger
}

// watch sweeps until ctx ends.
func (w networkSweeper) watch(ctx context.Context, b beat) {
	for {
		if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("networks of gangs not looked through", "err", err)
		}
		if b.sleep(ctx, w.timing.NetworkSweep) != nil {
			return
		}
	}
}

func (w networkSweeper) sweep(ctx context.Context) error {
	found, err := w.runtime.Networks(ctx, map[string]string{berth.LabelCluster: w.cluster()})
	if err != nil {
		return err
	}
	for _, n := range found {
		if n.Labels[berth.LabelJob] == "" || time.Since(n.CreatedAt) < w.timing.NetworkAge {
			continue
		}
		switch err := w.runtime.RemoveNetwork(ctx, n.Name); {
		case err == nil:
			w.log.Info("network of a gang that is gone was removed", "network", n.Name)
		case !errors.Is(err, node.ErrNetworkInUse):
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

// sweepNetworks sweeps networks of gangs, unless the operator has made the one that
// gangs use.
func (s *Supervisor) sweepNetworks(ctx context.Context) {
	if s.cfg.GangNetwork != "" || s.waitAdopted(ctx) != nil {
		return
	}
	w := networkSweeper{runtime: s.cfg.Runtime, cluster: s.control.clusterID, timing: s.cfg.Timing, log: s.log}
	w.watch(ctx, s.beat)
}
