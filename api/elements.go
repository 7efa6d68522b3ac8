package api

import (
	"context"
	"fmt"
	"strings"

	"berth"
	"berth/spec"
	"berth/wire"
)

// cancelElements cancels some elements of an array, given as numbers and ranges.
func (h *jobHandlers) cancelElements(ctx context.Context, in *cancelInput) (*jobOutput, error) {
	which, err := spec.ParseIndexes(in.Index)
	if err != nil {
		return nil, invalid("", []berth.FieldError{{Field: "index",
			Detail:  fmt.Sprintf("%q are no elements of an array", clip(in.Index)),
			Allowed: "numbers and ranges such as 3-7,9"}}, nil)
	}
	return h.act(ctx, &in.JobInput, func(tenant berth.TenantID, id berth.JobID) error {
		reason := &berth.Reason{Code: berth.ReasonCanceledByUser, Message: "canceled by " + caller(ctx).Name}
		_, err := h.parents.CancelElements(ctx, tenant, id, which, actor(ctx), reason)
		return err
	})
}

// describeParent explains an array or a pipeline by the states of its children: a parent
// holds no capacity and has no place in the queue.
func describeParent(j wire.Job) wire.Explanation {
	e := wire.Explanation{Job: j.ID, Status: j.Status, Blockers: []wire.Blocker{}}
	var parts []string
	for _, state := range berth.States {
		if n := j.Tally.ByStatus[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if j.Tally.Unmade > 0 {
		parts = append(parts, fmt.Sprintf("%d not made", j.Tally.Unmade))
	}
	elements := "elements"
	if j.Kind == berth.KindPipeline {
		elements = "steps"
	}
	e.Summary = fmt.Sprintf("%d %s: %s", j.Tally.Total, elements, strings.Join(parts, ", "))
	// A hold and the array's own bound concern all children. Other blockers belong to
	// single children, which are explained one by one.
	if j.Held && !j.Status.Terminal() {
		e.Blockers = append(e.Blockers, wire.Blocker{Code: "held", Message: fmt.Sprintf("the %s is on hold", j.Kind),
			Hint: "release it"})
	}
	// A parent without a job spec, such as a pipeline, has no bound on its children.
	if j.Spec == nil {
		return e
	}
	if a := j.Spec.Array; a != nil && a.Parallel > 0 && j.Tally.Holding() >= a.Parallel {
		e.Blockers = append(e.Blockers, wire.Blocker{
			Code: "parallel", Message: fmt.Sprintf("%d elements hold room, as many as may at once (parallel)",
				j.Tally.Holding()), Hint: "wait: others start when they end",
		})
	}
	return e
}
