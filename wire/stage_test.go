package wire_test

import (
	"testing"

	"berth/wire"
)

func TestStagesReadAsText(t *testing.T) {
	t.Parallel()
	n := func(i int) *int { return &i }
	for want, s := range map[string]wire.JobStage{
		"pulling": {Stage: wire.Stage{Name: wire.StagePulling}, Members: 1},
		"pulling 40 %": {Stage: wire.Stage{Name: wire.StagePulling, Percent: n(40)},
			Members: 1},
		"fetching the code": {Stage: wire.Stage{Name: wire.StageFetching}, Members: 1},
		"fetching input 0 (try 9: no such host)": {Stage: wire.Stage{Name: wire.StageFetching, Input: n(0), Try: 9,
			Problem: "no such host"}, Members: 1},
		"restoring": {Stage: wire.Stage{Name: wire.StageRestoring}, Members: 1},
		"waiting for m1 to claim it": {Stage: wire.Stage{Name: wire.StageClaiming}, Members: 1,
			Machine: "m1"},
		"member 0 on m1: pulling": {Stage: wire.Stage{Name: wire.StagePulling}, Members: 2,
			Machine: "m1"},
		"waiting for the gang: member 1 on m2: pulling 7 % (1 of 2 ready)": {Stage: wire.Stage{Name: wire.StagePulling,
			Percent: n(7)},
			Members: 2, Ready: 1, Member: 1, Machine: "m2"},
		"member 0 on m1: starting (2 of 2 ready)": {Stage: wire.Stage{Name: wire.StageStarting}, Members: 2, Ready: 2,
			Machine: "m1"},
	} {
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
