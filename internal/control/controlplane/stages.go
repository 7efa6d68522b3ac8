package controlplane

import (
	"context"
	"errors"
	"sync"
)

// part is something that runs until its context ends.
type part func(ctx context.Context) error

// runStages runs every part until ctx ends or a part ends by itself. Then it stops one stage
// after the other, each only after all parts of the stage before have ended. It returns the first
// error other than the end of a context.
func runStages(ctx context.Context, stages ...[]part) error {
	failed := make(chan error, 1)
	fail := func(err error) {
		if err == nil {
			err = errEnded
		}
		select {
		case failed <- err:
		default:
		}
	}
	type running struct {
		stop context.CancelFunc
		all  *sync.WaitGroup
	}
	var started []running
	for _, stage := range stages {
		// Each stage has a context of its own, detached from ctx: the end of ctx must not stop
		// the later stages before their turn.
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		all := &sync.WaitGroup{}
		for _, p := range stage {
			all.Go(func() {
				if err := p(own); own.Err() == nil {
					fail(err)
				}
			})
		}
		started = append(started, running{stop, all})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	for _, s := range started {
		s.stop()
		s.all.Wait()
	}
	return err
}

// errEnded is the error of a part that ended without a request to stop.
var errEnded = errors.New("a part of the control plane ended by itself")
