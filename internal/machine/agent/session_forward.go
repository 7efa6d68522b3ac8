package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"berth/activities/node"
	"berth/internal/lib/framed"
	"berth/wire"
)

// forwardDial bounds the connection to a port of a container, on this machine's own networks.
const forwardDial = 5 * time.Second

// forward carries connections to ports of the container, until the user leaves or the container
// ends.
func (v *visit) forward() {
	own, err := v.runtime.Inspect(v.inside, v.name())
	if err != nil || own.State != node.ContainerRunning {
		framed.Close(v.ws, wire.CauseRefused, "the container does not run")
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(v.inside))
	defer cancel()
	mux, err := framed.Mux(v.ws, false, v.beats)
	if err != nil {
		framed.Close(v.ws, wire.CauseRefused, err.Error())
		return
	}
	var streams sync.WaitGroup
	accepting := make(chan struct{})
	var open atomic.Int64
	go func() {
		defer close(accepting)
		for {
			stream, err := mux.Accept()
			if err != nil {
				return
			}
			streams.Go(func() {
				defer stream.Close()
				if open.Add(1) > framed.MaxStreams {
					_ = framed.AnswerPort(stream,
						fmt.Errorf("a session carries %d connections at most", framed.MaxStreams))
				} else {
					v.carry(ctx, stream, own.ID)
				}
				open.Add(-1)
			})
		}
	}()
	select {
	case <-accepting: // the connection has ended
	case <-v.inside.Done():
		status := v.over()
		framed.Close(v.ws, status.Cause, status.Message)
	}
	_ = mux.Close()
	cancel()
	<-accepting
	streams.Wait()
}

// carry connects one stream to a port of the container.
func (v *visit) carry(ctx context.Context, stream net.Conn, id string) {
	port, err := framed.TakePort(stream)
	if err != nil {
		return
	}
	conn, err := v.connect(ctx, port, id)
	if framed.AnswerPort(stream, err) != nil || err != nil {
		if conn != nil {
			_ = conn.Close()
		}
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	framed.Splice(conn, stream)
}

// connect dials a port of the container. It asks the engine for the address before and after the
// dial, by the container's id, so the connection cannot belong to another container.
func (v *visit) connect(ctx context.Context, port int, id string) (net.Conn, error) {
	c, err := v.reachable(ctx, id)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: forwardDial}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(c.Address, strconv.Itoa(port)))
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, fmt.Errorf("port %d of the container: %w", port, err)
	}
	if again, err := v.reachable(ctx, id); err != nil || again.Address != c.Address || again.Subnet != c.Subnet {
		_ = conn.Close()
		return nil, errors.New("the container has ended")
	}
	own, err := net.InterfaceAddrs()
	if err != nil || !onContainerNetwork(conn.LocalAddr(), c.Address, c.Subnet, own) {
		_ = conn.Close()
		return nil, errors.Join(errors.New("the machine is not connected to the container's network"), err)
	}
	return conn, nil
}

// onContainerNetwork reports whether a connection from local to the address remote stayed in subnet, the network of the
// container: it used an interface of this machine in exactly that network, and remote is no address of this machine.
// Other connections have passed another interface: the machine has lost its interface in the container's network, and
// something else has the same address. The interface of a wider network, as of a LAN, is another one too. The loopback
// network has no other machine, and no container of an engine: programs of tests listen there.
func onContainerNetwork(local net.Addr, remote string, subnet netip.Prefix, own []net.Addr) bool {
	from, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return false
	}
	to, err := netip.ParseAddr(remote)
	if err != nil || !subnet.Contains(to.Unmap()) {
		return false
	}
	inside := false
	for _, a := range own {
		network, err := netip.ParsePrefix(a.String())
		switch {
		case err != nil:
		case network.Addr() == to.Unmap() && !to.IsLoopback():
			return false
		case network.Addr() == from.Addr().Unmap() && network.Masked() == subnet.Masked():
			inside = true
		}
	}
	return inside
}

// reachable returns the container with this id, which has an address on its own network.
func (v *visit) reachable(ctx context.Context, id string) (node.Container, error) {
	c, err := v.runtime.Inspect(ctx, v.name())
	switch {
	case err != nil:
		return c, fmt.Errorf("find the container: %w", err)
	case c.ID != id || c.State != node.ContainerRunning:
		return c, errors.New("the container has ended")
	case c.Address == "":
		return c, errors.New("the container has no address of its own: it uses the network of its machine, " +
			"whose ports are not forwarded")
	}
	return c, nil
}
