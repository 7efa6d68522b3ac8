package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth/failure"
	"berth/spec"
)

func TestProcessesThatMoveAreMarked(t *testing.T) {
	t.Parallel()
	before := []failure.HangProcess{{PID: 1, State: "S"}, {PID: 2, State: "D"}, {PID: 3, State: "D"}}
	now := []failure.HangProcess{{PID: 3, State: "D"}, {PID: 2, State: "S"}, {PID: 1, State: "S"}, {PID: 4, State: "D"}}
	markChanged(now, before)
	var moved []int
	for _, p := range now {
		if p.Changed {
			moved = append(moved, p.PID)
		}
	}
	if !slices.Equal(moved, []int{2, 4}) {
		t.Errorf("processes %v are marked", moved)
	}
}

func TestTheLastLinesFitTheEvidence(t *testing.T) {
	t.Parallel()
	var lines []string
	for range failure.MaxHangLines + 7 {
		lines = append(lines, strings.Repeat("é", failure.MaxHangLine)+"\x00\xff")
	}
	lines = append(lines, "the\x00last")
	cut := hangLines(lines)
	if err := (failure.HangEvidence{Lines: cut}).Valid(); err != nil || len(cut) != failure.MaxHangLines || cut[len(cut)-1] != "thelast" {
		t.Errorf("%d lines, the last %q, %v", len(cut), cut[len(cut)-1], err)
	}
	if got := hangLines(nil); len(got) != 0 {
		t.Errorf("no lines become %q", got)
	}
}

// CPU use is the mean of the last minute, however often it is read.
func TestTheCPUUseOfAHungMemberIsOfTheLastMinute(t *testing.T) {
	t.Parallel()
	w := &progressWatcher{core: &core{claim: &claim{}}}
	w.claim.Spec.Stall = &spec.StallPolicy{After: spec.Duration(time.Hour), Signs: []spec.StallSign{spec.SignLog}}
	begin := time.Now()
	if _, _, ok := w.cpuMean(begin); ok {
		t.Error("without a reading there is a mean")
	}
	for s := range 601 { // busy for nine minutes and a half, then idle
		w.noteCPU(begin.Add(time.Duration(s)*time.Second), time.Duration(min(s, 570))*time.Second)
	}
	cores, over, ok := w.cpuMean(begin.Add(10 * time.Minute))
	if !ok || over != time.Minute || cores < 0.49 || cores > 0.51 || len(w.cpuReadings) > 62 {
		t.Errorf("%.2f cores over %s of %d readings, %v", cores, over, len(w.cpuReadings), ok)
	}
}
