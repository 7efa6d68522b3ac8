package scheduler

import "context"

// Parents returns the step of the reconciler for parents. Each call is another pass,
// which stops at most so many jobs.
func (s *Scheduler) Parents(stops int) func(context.Context) error {
	return (&reconciler{Scheduler: s, stops: stops}).parents
}
