package docker

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"berth/activities/node"
)

// look returns the state of a listed container, and the zero Container if the container is gone. The list has neither
// exit codes nor OOM flags, and its state may be an old one. A container whose state the engine does not give in time,
// or answers with a fault of its own, is unknown; why is then the reason, and nil if the list left no time to ask. An
// engine that cannot be reached is an error.
func look(ctx context.Context, e *Engine, listed container.Summary) (c node.Container, why, err error) {
	name := listed.Names[0][1:]
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.bounds.look)
	defer cancel()
	c, err = e.inspect(ctx, name, name)
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil:
		return c, nil, nil
	case errors.Is(err, node.ErrNoContainer):
		return node.Container{}, nil, nil
	case !late && !cerrdefs.IsInternal(err) && !cerrdefs.IsUnavailable(err):
		return node.Container{}, nil, err
	case !late || time.Since(begun) >= e.bounds.look/2: // else the time of the whole list was over
		why = err
	}
	return node.Container{ID: listed.ID, Name: name, Labels: listed.Labels, State: node.ContainerUnknown}, why, nil
}

const (
	// shownNames is how many containers one log line names at most.
	shownNames = 5
	// unansweredAgain is the time after which a container that is still without an answer is logged again.
	unansweredAgain = time.Hour
)

// unanswered remembers the containers that were logged because the engine did not give their state. Lists are made
// every few seconds, and log such a container once an hour. The zero value is empty. Its method may be called
// concurrently.
type unanswered struct {
	mu     sync.Mutex
	logged map[string]time.Time // by the container's id
}

// note takes the answers of one list: all[i] and why[i] are what look returned for listed[i]. It returns the names of
// the containers that are to be logged, and the reason of the first one. A container that has answered is forgotten at
// once, so that its next silence is logged. One that was removed without an answer is forgotten after an hour.
func (u *unanswered) note(listed []container.Summary, all []node.Container, why []error) (names []string, first error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(u.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= unansweredAgain })
	for i, c := range all {
		if c.State != node.ContainerUnknown { // it has answered, or is gone
			delete(u.logged, listed[i].ID)
			continue
		}
		if _, again := u.logged[c.ID]; again || why[i] == nil {
			continue
		}
		if u.logged == nil {
			u.logged = map[string]time.Time{}
		}
		u.logged[c.ID] = now
		if names = append(names, c.Name); first == nil {
			first = why[i]
		}
	}
	return names, first
}
