package docker

import (
	"context"

	"berth/activities/node"
	"berth/internal/machine/unfinished"
)

var _ node.LineReader = (*Engine)(nil)

// lineReaders start the readers of unfinished lines.
type lineReaders struct{ engine *Engine }

// UnfinishedLines shows the unfinished line of a container; see node.LineReader. A process of its own is attached to
// the container, since the engine stops a container whose attached client stops to read.
func (r *lineReaders) UnfinishedLines(
	ctx context.Context, name string, emit func(node.UnfinishedLine),
) error {
	c, err := r.engine.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if c.State != node.ContainerRunning {
		return nil
	}
	return unfinished.Read(ctx, r.engine.socket, c.ID, emit)
}
