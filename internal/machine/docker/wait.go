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

// lateOOM is how long after an exit the engine may still hear why.
const lateOOM = 250 * time.Millisecond

// postMortem asks the engine for details of a bad end. The engine learns of a process
// that was killed for memory on another way than of the exit. If the exit arrives
// first, as on a busy machine, or if a child was killed, the flag on the container
// stays false permanently. And only the engine knows which containers got a signal:
// an engine that shuts down stops its containers first, and then their ends look like
// any other. A missing answer is an error here, since the engine may be shutting down.
func (e *Engine) postMortem(ctx context.Context, c node.Container) (node.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	until := time.Now()
	if c.ExitCode == killed && !c.OOMKilled {
		until = until.Add(lateOOM)
	}
	found, failed := e.api.Events(ctx, events.ListOptions{
		Since: unixTime(c.StartedAt.Add(-time.Second)),
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
				c.Signaled = c.Signaled || ends(m.Actor.Attributes["signal"])
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) { // the end of the list
				return c, nil
			}
			return node.Container{}, fmt.Errorf("ask how container %s ended: %w", c.Name, err)
		}
	}
}

// ends reports whether a signal, by the engine's name for it, both asks a process to end and ends
// a process without a handler.
func ends(signal string) bool {
	switch strings.TrimPrefix(signal, "SIG") {
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
