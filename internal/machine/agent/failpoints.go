//go:build failpoints

package agent

import (
	"context"

	"berth/activities/node"
	"berth/internal/lib/failpoint"
)

// withFailpoints returns a runtime of a member that may die before and after its calls.
func withFailpoints(r node.Runtime) node.Runtime { return failingRuntime{r} }

// failingRuntime decorates a Runtime with failpoints. Other calls pass through unchanged.
type failingRuntime struct{ node.Runtime }

func (f failingRuntime) EnsureImage(
	ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool,
) (node.Image, error) {
	// An error of a failpoint changes nothing here: these places stand for crashes between two acts of the agent.
	_ = failpoint.Hit("agent.pull.before")
	found, err := f.Runtime.EnsureImage(ctx, ref, auth, fresh)
	// The failpoint stands for a crash between a successful pull and its record.
	if err == nil {
		_ = failpoint.Hit("agent.pull.after")
	}
	return found, err
}

func (f failingRuntime) Signal(ctx context.Context, name, signal string) error {
	_ = failpoint.Hit("agent.stop.before")
	err := f.Runtime.Signal(ctx, name, signal)
	_ = failpoint.Hit("agent.stop.after")
	return err
}
