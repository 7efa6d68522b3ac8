package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"berth/activities/node"
)

// Wait blocks until the container has exited, even if the container has yet to be started. It
// registers for the next exit first and inspects second, so that no exit falls between the two;
// the engine's "not-running" condition would be true of a container that was never started.
func (e *Engine) Wait(ctx context.Context, name string) (node.Container, error) {
	c, err := e.Inspect(ctx, name)
	for err == nil && c.State != node.ContainerExited {
		c, err = e.nextExit(ctx, c)
	}
	if err != nil || c.ExitCode == 0 {
		return c, err
	}
	return e.postMortem(ctx, c)
}

// killed is the exit code of a process that was ended by SIGKILL.
const killed = 128 + 9

// lateOOM is the longest wait for the engine's report that a process ended by SIGKILL had exceeded its
// memory limit. A busy machine took longer than 250 ms. Only a container whose end has no known cause
// waits, and it delays nothing else.
const lateOOM = 3 * time.Second

// kernelLog reports whether the kernel has killed a process because its control group reached the memory limit.
type kernelLog interface {
	OutOfMemory(group string) (bool, error)
}

// postMortem asks for details of a bad end.
//
// The engine receives the exit and the end for lack of memory separately. If the exit arrives first,
// as on a busy machine, or if a child was killed, the flag on the container stays false permanently.
// The engine's event comes later, or never if the process ended before the engine watched it. The
// kernel's log is written before the process dies, but omits messages when there are many, and only
// root can read it. So one of the two is enough.
//
// Only the engine knows which containers got a signal: an engine that shuts down stops its
// containers first, and then their ends look like any other. A missing answer is an error here,
// since the engine may be shutting down.
func (e *Engine) postMortem(ctx context.Context, c node.Container) (node.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if !c.OOMKilled {
		var err error
		if c.OOMKilled, err = e.kernel.OutOfMemory(c.ID); err != nil {
			e.log.Debug("kernel log not readable, only the engine tells of memory limits", "err", err)
		}
	}
	now := time.Now()
	signal, err := readEnd(ctx, e.api, &c, c.StartedAt.Add(-time.Second), now)
	if err == nil && c.ExitCode == killed && !c.OOMKilled && !isKill(signal) {
		_, err = readEnd(ctx, e.api, &c, now, now.Add(lateOOM))
	}
	if err != nil {
		return node.Container{}, fmt.Errorf("ask how container %s ended: %w", c.Name, err)
	}
	return c, nil
}

// readEnd reads the engine's events of a span of time into c, and returns the last signal that
// reached the container. If the span ends in the future, it returns after the first event that
// says who killed the container.
func readEnd(ctx context.Context, api *client.Client, c *node.Container, since, until time.Time) (signal string,
	err error,
) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found, failed := api.Events(ctx, events.ListOptions{
		Since: unixTime(since),
		Until: unixTime(until),
		Filters: filters.NewArgs(filters.Arg("container", c.ID), filters.Arg("event", "oom"),
			filters.Arg("event", "kill")),
	})
	for {
		select {
		case m := <-found:
			switch m.Action {
			case events.ActionOOM:
				c.OOMKilled = true
			case events.ActionKill:
				signal = strings.TrimPrefix(m.Actor.Attributes["signal"], "SIG")
				c.Signaled = c.Signaled || ends(signal)
			}
			if time.Now().Before(until) && (c.OOMKilled || isKill(signal)) {
				return signal, nil
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) { // the end of the list
				return signal, nil
			}
			return signal, err
		}
	}
}

// isKill reports whether a signal, as the engine writes it, is SIGKILL.
func isKill(signal string) bool { return signal == "9" || signal == "KILL" }

// ends reports whether a signal, by its number or its name without SIG, both asks a process to end
// and ends a process without a handler.
func ends(signal string) bool {
	switch signal {
	case "1", "2", "3", "9", "15", "HUP", "INT", "QUIT", "KILL", "TERM":
		return true
	}
	return false
}

// unixTime formats a time for the engine's API: seconds.nanoseconds.
func unixTime(t time.Time) string {
	return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
}

// nextExit returns the container's state after its next exit, or its present state if the exit
// came before the engine's listener.
func (e *Engine) nextExit(ctx context.Context, c node.Container) (node.Container, error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	exited, failed := e.api.ContainerWait(waiting, c.ID, container.WaitConditionNextExit)
	now, err := e.Inspect(ctx, c.Name)
	if err != nil || now.State == node.ContainerExited {
		cancel()
		select { // the client's goroutine ends only when its result is received
		case <-exited:
		case <-failed:
		}
		return now, err
	}
	select {
	case <-exited:
		return e.Inspect(ctx, c.Name)
	case err := <-failed: // also when ctx ends
		if cerrdefs.IsNotFound(err) {
			return node.Container{}, fmt.Errorf("container %s: %w", c.Name, node.ErrNoContainer)
		}
		return node.Container{}, fmt.Errorf("wait for container %s: %w", c.Name, err)
	}
}
