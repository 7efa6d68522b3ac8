package explain

import "time"

// PlanRest is the greatest age of a reading that a plan rests on.
const PlanRest = planRest

// ShortestBoard is the least time for which a board is used.
const ShortestBoard = shortestBoard

// Renews reports whether a reading that no question waits for is under way.
func (x *Explainer) Renews() bool { return x.renews.Load() }

// Took is the time that it took to make the board.
func (b *Board) Took() time.Duration { return b.took }
