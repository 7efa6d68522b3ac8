package workflows_test

import (
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"berth"
	"berth/wire"
)

// outcomeKey is the attribute that the tests look for.
var outcomeKey = temporal.NewSearchAttributeKeyKeyword(wire.AttributeOutcome)

// Temporal shows every ended job as completed: the attribute distinguishes failed ones.
func TestTheOutcomeOfAJobIsASearchAttribute(t *testing.T) {
	t.Parallel()
	for _, outcome := range []berth.State{berth.Succeeded, berth.Failed, berth.Canceled} {
		w := newWorld(t, granted(1, 1))
		w.input.Outcome = true
		w.env.OnUpsertTypedSearchAttributes(temporal.NewSearchAttributes(outcomeKey.ValueSet(string(outcome)))).Return(
			nil).Once()
		w.at(time.Hour, func() {
			w.decide(1, outcome)
			w.exit(100, exited(0))
		})
		w.execute()
		w.env.AssertExpectations(t)
	}
}

func TestTheOutcomeIsRecordedOnceAlsoWhenTheRowHasEndedBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wire.JobView{State: berth.Failed, Attempt: 1})
	w.input.Outcome = true
	w.env.OnUpsertTypedSearchAttributes(temporal.NewSearchAttributes(outcomeKey.ValueSet("failed"))).Return(nil).Once()
	w.execute()
	w.env.AssertExpectations(t)
}

// A workflow of an earlier version, or in a namespace without the attribute, ends as before. An
// upsert of an attribute that the namespace lacks would fail its task again and again.
func TestAWorkflowWithoutTheFlagRecordsNoOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wire.JobView{State: berth.Succeeded, Attempt: 1})
	w.env.OnUpsertTypedSearchAttributes(temporal.NewSearchAttributes(outcomeKey.ValueSet("succeeded"))).Return(
		nil).Maybe()
	w.execute()
	w.env.AssertNotCalled(t, "workflow.UpsertTypedSearchAttributes")
}
