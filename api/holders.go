package api

import (
	"context"

	"berth"
	"berth/placement"
	"berth/wire"
)

// namedHolders is the greatest number of holders that an explanation names.
const namedHolders = 5

// nameHolders adds the jobs that hold the room of a waiting job: the first to end by name, if the
// caller may see them, and the number of all others. A job of another tenant only counts, so no caller
// learns its name. A job that has ended since the reading counts among the others.
func (h *planHandlers) nameHolders(ctx context.Context, e *wire.Explanation, list []placement.Holder) error {
	var seen []placement.Holder
	var ids []berth.JobID
	for _, x := range list {
		if tenant := scope(ctx); (tenant == "" || tenant == x.Tenant) && len(seen) < namedHolders {
			seen, ids = append(seen, x), append(ids, x.Job)
		}
	}
	e.OtherHolders = len(list)
	if len(seen) == 0 {
		return nil
	}
	rows, err := h.jobs.Among(ctx, scope(ctx), ids)
	if err != nil {
		return err
	}
	for _, x := range seen {
		if j, ok := rows[x.Job]; ok {
			e.Holders = append(e.Holders, wire.Holder{Job: j.ID, Handle: j.Handle, Name: j.Name,
				ArrayIndex: j.ArrayIndex, Tenant: j.Tenant, Machines: x.Machines, EndsBy: known(x.EndsBy)})
		}
	}
	e.OtherHolders -= len(e.Holders)
	return nil
}
