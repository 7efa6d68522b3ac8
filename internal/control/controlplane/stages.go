package controlplane

import (
	"context"
	"errors"
	"sync"
)

// part is something that runs until its context ends.
type part func(ctx context.Context) error

// runStages runs every part until ctx ends or one of them does. Then it stops
// stage after stage, each only when the one before has ended. It returns the
// first error that is not the end of a context.
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
