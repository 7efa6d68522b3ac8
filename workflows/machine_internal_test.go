package workflows

import (
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
)

// The server repeats a step whose worker died only after its time.
func TestAStepOfADeadWorkerIsRepeatedWhileItsLaunchMayBeSent(t *testing.T) {
	t.Parallel()
	step := machineStep.StartToCloseTimeout
	if most := cloud.DefaultLimits.Patience / 2; step > most {
		t.Errorf("a step has %s; a launch is in doubt for %s and must be sent again in the first half", step, 2*most)
	}
	if least := cloudexec.MaxTimeout + 20*time.Second; step < least {
		t.Errorf("a step has %s; the longest call and its record need %s", step, least)
	}
	if whole := machineStep.ScheduleToCloseTimeout; whole < 10*step || whole > 24*time.Hour {
		t.Errorf("a step that never succeeds ends after %s", whole)
	}
}
