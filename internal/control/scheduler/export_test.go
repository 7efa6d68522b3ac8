package scheduler

import "context"

// Parents is the step of the reconciler that looks at parents, each call that of
// another pass, in which so many jobs are told to stop.
func (s *Scheduler) Parents(stops int) func(context.Context) error {
	return (&reconciler{Scheduler: s, stops: stops}).parents
}
