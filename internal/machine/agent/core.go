package agent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"berth/activities/node"
	"berth/spec"
	"berth/wire"
)

// core is the part of a member that nearly all of its phases and helpers use. All of
// it is safe for concurrent use once the claim is answered.
type core struct {
	*identity
	ctx     context.Context // ends with errAbandoned, errDisowned or errAgentStops
	log     *slog.Logger
	timing  Timing
	beat    beat
	runtime node.Runtime
	reports *reporter
	claim   *claim
}

// claim is the server's answer to the claim of an allocation: the work.
type claim struct {
	wire.Claim
	sent time.Time // when the claim was sent
}

// atMostOne reports whether the member must never have a second live container.
func (c *claim) atMostOne() bool { return c.Spec.Execution == spec.AtMostOne }

// checkpoints returns the folder of checkpoints in the container; "" for none. A debug job has the folder of the
// member that it holds, and saves no checkpoints.
func (c *claim) checkpoints() string {
	switch {
	case c.Spec.Checkpoint != nil:
		return c.Spec.Checkpoint.Path
	case c.Held != nil:
		return c.Held.Checkpoint
	}
	return ""
}

// mounts reports whether the container reads shared folders themselves instead of copies.
func (c *claim) mounts() bool { return slices.ContainsFunc(c.Spec.Inputs, spec.Input.Mounted) }

// gang reports whether the member has peers.
func (c *claim) gang() bool { return len(c.Peers) > 1 }

// grace returns the time between SIGTERM and SIGKILL that the job asked for.
func (c *claim) grace() time.Duration {
	if g := c.Spec.StopGrace; g != nil {
		return g.Std()
	}
	return spec.DefaultStopGrace
}
