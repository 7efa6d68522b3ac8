package api

import (
	"strings"
	"testing"

	"berth"
	"berth/placement"
	"berth/placement/fit"
	"berth/wire"
)

// TestFitNamesTheGPUsThatAJobIsKeptOff: the machine fields carry what the summary says.
func TestFitNamesTheGPUsThatAJobIsKeptOff(t *testing.T) {
	t.Parallel()
	var w placement.JobExplanation
	w.Fit.Scarce = &fit.Scarce{Models: []string{"T4"}, Requested: 0.25, Free: 0.1}
	w.Fit.ScarceBlocks = &fit.ScarceBlocks{GPUs: 8, Requested: 0.3, Free: 0.125}
	got := fitOf(w)
	if got.Scarce == nil || got.Scarce.GPUTypes[0] != "T4" || got.Scarce.Requested != 0.25 || got.Scarce.Free != 0.1 {
		t.Errorf("scarce is %+v", got.Scarce)
	}
	if got.Blocks == nil || got.Blocks.GPUs != 8 || got.Blocks.Requested != 0.3 || got.Blocks.Free != 0.125 {
		t.Errorf("scarce_blocks is %+v", got.Blocks)
	}
	const want = "kept off machines with 8 free GPUs: 30 % of the requested GPUs are for jobs for 8 or more " +
		"on a machine, and 12 % of the free GPUs are on such machines"
	if text := w.Fit.ScarceBlocks.String(); text != want {
		t.Errorf("the summary says %q, want %q", text, want)
	}
	if text := w.Fit.Scarce.String(); !strings.HasPrefix(text, "kept off T4: 25 %") {
		t.Errorf("the summary says %q", text)
	}
}

// TestTheSummaryOfAnEndedJobIsItsEnd: the summary does not begin with the fact that the job has ended.
func TestTheSummaryOfAnEndedJobIsItsEnd(t *testing.T) {
	t.Parallel()
	for want, j := range map[string]wire.Job{
		"it succeeded":               {Status: berth.Succeeded},
		"it failed with exit code 3": {Status: berth.Failed, Reason: &berth.Reason{Code: berth.ReasonExitCode, Message: "exit code 3"}},
		"it failed: reached its time_limit": {Status: berth.Failed,
			Reason: &berth.Reason{Code: berth.ReasonTimeLimit, Message: "reached its time_limit"}},
		"it was canceled by ann": {Status: berth.Canceled, Reason: &berth.Reason{Message: "canceled by ann"}},
	} {
		if text := placed(j); text != want {
			t.Errorf("the summary is %q, want %q", text, want)
		}
	}
}
