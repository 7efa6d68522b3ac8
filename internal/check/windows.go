package check

import "time"

// windowSlack is the longest time for which a transaction may wait for the lock of a machine: the time
// of a row is the start of its transaction.
const windowSlack = 10 * time.Second

// windowsKeptFree proves invariant 32: nothing was placed on a machine between the close and the end of
// its maintenance window. A window counts from its latest change on, since rows hold no earlier times.
func windowsKeptFree(c *machineCase) {
	for _, w := range c.m.Windows {
		from := w.ClosesAt
		if known := w.UpdatedAt.Add(windowSlack); known.After(from) {
			from = known
		}
		until := w.EndsAt.Add(-windowSlack)
		for _, a := range c.m.Allocations {
			if a.ReservedAt.After(from) && a.ReservedAt.Before(until) {
				c.of(a, []any{a, w}, "placed inside maintenance window %d of machine %s", w.ID, c.m.ID)
			}
		}
	}
}
