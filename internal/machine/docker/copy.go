package docker

import (
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"

	"berth/activities/node"
)

// CopyOut returns the content at a path of a container as a tar; see node.Runtime.
func (e *Engine) CopyOut(ctx context.Context, name, path string) (io.ReadCloser, error) {
	// The id names this container alone; a later container may have the same name.
	c, err := e.Inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	in, _, err := e.api.CopyFromContainer(ctx, c.ID, path)
	switch {
	case err == nil:
		return in, nil
	case cerrdefs.IsNotFound(err), leadsNowhere(err):
		return nil, fmt.Errorf("%s in container %s: %w", path, name, node.ErrNoPath)
	default:
		return nil, fmt.Errorf("copy %s out of container %s: %w", path, name, err)
	}
}

// leadsNowhere reports whether an error of the engine means that a path leads through a file or in a
// circle, or has a name that no file can have. The engine answers 500, with the kernel's words or its own.
func leadsNowhere(err error) bool {
	// The engine sends the cause as text alone, so the end of the text is all there is to compare.
	says := err.Error()
	return strings.HasSuffix(says, syscall.ENOTDIR.Error()) || strings.HasSuffix(says, syscall.ELOOP.Error()) ||
		strings.HasSuffix(says, syscall.ENAMETOOLONG.Error()) || strings.Contains(says, "too many links")
}
