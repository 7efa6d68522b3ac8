package chaos_test

import (
	"context"
	"fmt"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// An array of cells. berth-check verifies that no more elements run at once than allowed.
const (
	sweepSize     = 4
	sweepParallel = 2
)

// sweep is an array whose elements print their index.
func (s *stack) sweep(lane string) *work {
	jobSpec := s.spec(lane, "env", spec.EnvArrayIndex)
	jobSpec.Checkpoint, jobSpec.Array = nil, &spec.Array{Size: sweepSize, Parallel: sweepParallel}
	w := &work{attempt: 1, drive: func() error { return nil }}
	w.submit = func() (err error) {
		w.job, err = s.submit(jobSpec)
		return err
	}
	w.gone = func() error { return s.forgotten(w.job) }
	w.ended = func() error { return s.wantSwept(w.job) }
	return w
}

// wantSwept waits for an array's success: each of its elements was there once,
// and ran once.
func (s *stack) wantSwept(id berth.JobID) error {
	array, err := s.becomes(id, berth.Succeeded)
	if err != nil {
		return err
	}
	if t := array.Tally; t == nil || t.Total != sweepSize || t.ByStatus[berth.Succeeded] != sweepSize {
		return fmt.Errorf("array %s has succeeded, and counts %+v", id, t)
	}
	var elements []wire.Job
	err = await("the elements of array "+string(id)+" are listed", func() error {
		page, err := s.api.Jobs(context.Background(), client.JobsQuery{Parent: id})
		elements = page.Items
		return err
	})
	if err != nil {
		return err
	}
	seen := map[int]bool{}
	for _, e := range elements {
		if e.ArrayIndex == nil || seen[*e.ArrayIndex] {
			return fmt.Errorf("array %s has an element twice, or without an index: %+v", id, e)
		}
		seen[*e.ArrayIndex] = true
		if err := s.wantEnded(e.ID, once); err != nil {
			return fmt.Errorf("element %d: %w", *e.ArrayIndex, err)
		}
		if err := s.wantPrinted(e.ID, fmt.Sprintf("%s=%d", spec.EnvArrayIndex, *e.ArrayIndex)); err != nil {
			return fmt.Errorf("element %d: %w", *e.ArrayIndex, err)
		}
	}
	if len(seen) != sweepSize {
		return fmt.Errorf("array %s has %d elements, want %d", id, len(seen), sweepSize)
	}
	return nil
}
