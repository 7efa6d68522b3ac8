package lifecycle

import (
	"errors"
	"fmt"

	"berth"
)

// Starting is the parent of jobs that are about to start, under lock. Its counts follow the
// jobs of one batch as they are admitted. A nil one stands for jobs without a parent: it
// refuses nothing.
type Starting struct {
	State    berth.State
	Held     bool
	Parallel int  // bound of Holding; 0: no limit
	Holding  int  // children that hold capacity
	Step     bool // the parent is part of a pipeline, which begins with it
	started  bool
}

// Refusal returns the reason why no child of the parent may start now, or nil.
func (p *Starting) Refusal() error {
	switch {
	case p == nil:
		return nil
	case p.State != berth.Queued && p.State != berth.Running:
		return fmt.Errorf("its array is %s", p.State)
	case p.Held:
		return errors.New("its array is held")
	case p.Parallel > 0 && p.Holding >= p.Parallel:
		return fmt.Errorf("%d elements of its array hold capacity, as many as may at once", p.Holding)
	}
	return nil
}

// Admit counts one more child that starts.
func (p *Starting) Admit() {
	if p != nil {
		p.Holding++
		p.started = true
	}
}

// Begins reports whether the first child of the parent starts, so that the parent becomes
// running.
func (p *Starting) Begins() bool { return p.started && p.State == berth.Queued }
