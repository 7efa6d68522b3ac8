package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/internal/lib/framed"
	"berth/spec"
)

// portPair is a port of the container and the local port that forwards to it.
type portPair struct{ remote, local int }

// newPortForward builds "berth port-forward" over a session of kind forward.
func newPortForward(a *app) *cobra.Command {
	req := spec.NewSession{Kind: spec.SessionForward}
	address := "127.0.0.1"
	cmd := &cobra.Command{
		Use:   "port-forward JOB PORT[:LOCAL]...",
		Short: "Forward local ports to ports of a running job",
		Long: "Port-forward listens on this computer and carries each connection to a port of the job's container,\n" +
			"through the server. It runs until Ctrl-C, or until the job ends.\n\n" +
			"LOCAL is the local port, by default the same; 0 selects a free one. The machine opens no port, and a\n" +
			"job that uses the network of its machine has no ports to forward.",
		Example:           "  berth port-forward notebook 8888\n  berth port-forward train 6006:16006 --member 2",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeJobs(liveJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkSession(req); err != nil {
				return err
			}
			pairs := make([]portPair, len(args)-1)
			for i, text := range args[1:] {
				var err error
				if pairs[i], err = parsePorts(text); err != nil {
					return err
				}
			}
			return forward(cmd.Context(), a, args[0], req, address, pairs)
		},
	}
	f := cmd.Flags()
	addSessionFlags(f, &req)
	f.StringVar(&address, "address", address,
		"local address to listen on; any but 127.0.0.1 lets other computers connect")
	return cmd
}

// parsePorts reads PORT or PORT:LOCAL.
func parsePorts(text string) (p portPair, err error) {
	remote, local, both := strings.Cut(text, ":")
	if !both {
		local = remote
	}
	var ok1, ok2 bool
	p.remote, ok1 = parsePort(remote)
	p.local, ok2 = parsePort(local)
	if !ok1 || !ok2 || p.remote == 0 {
		return p, usagef("%q names no ports; allowed: PORT or PORT:LOCAL, each from 1 to 65535, LOCAL also 0", text)
	}
	return p, nil
}

// parsePort reads a port from 0 to 65535 in its one spelling: 080 may be octal to its author.
func parsePort(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && strconv.FormatUint(n, 10) == text
}

// forward listens, opens the session and carries connections until the session or ctx ends.
func forward(ctx context.Context, a *app, arg string, req spec.NewSession, address string, pairs []portPair) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	job, err := a.job(ctx, c, arg)
	if err != nil {
		return err
	}
	// A local port that is taken must not cost a session.
	listeners := make([]net.Listener, len(pairs))
	for i, p := range pairs {
		if listeners[i], err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(p.local))); err != nil {
			return usagef("cannot listen on port %d: %v", p.local, err)
		}
		defer listeners[i].Close()
	}
	f, err := c.Sessions().Forward(ctx, job.ID, req)
	if err != nil {
		return a.failed(ctx, err)
	}
	defer f.Close()
	var all sync.WaitGroup
	defer all.Wait()
	for i, l := range listeners {
		fmt.Fprintf(a.out, "Forwarding %s to port %d of %s\n", l.Addr(), pairs[i].remote, named(job))
		all.Go(func() { accept(a, l, f, pairs[i].remote) })
	}
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-f.Done():
		err = f.Err()
	}
	_ = f.Close() // before the listeners' goroutines are awaited
	for _, l := range listeners {
		_ = l.Close()
	}
	return err
}

// accept carries each connection to a listener to a port of the job.
func accept(a *app, l net.Listener, f *client.Forward, port int) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			a.say("cannot accept a connection: %v", err)
			return
		}
		all.Go(func() {
			defer conn.Close()
			stream, err := f.Dial(port)
			if err != nil {
				select {
				case <-f.Done(): // the command reports the reason
				default:
					a.say("connection refused: %s", oneLine(err.Error()))
				}
				return
			}
			framed.Splice(conn, stream)
		})
	}
}
