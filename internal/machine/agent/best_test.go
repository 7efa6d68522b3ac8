package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth"
	"berth/spec"
)

// The best checkpoint by a value of the progress file stays stored, beyond keep.
func TestTheBestCheckpointIsKept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(func(j *spec.Job) {
		checkpointed(1)(j)
		j.Checkpoint.Best = &spec.KeepBest{Metric: "accuracy", Mode: spec.BestIsMax}
	}, "trap-term", "0")
	req, w := m.run(id)
	m.running(req)
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(m.scratch(req), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, accuracy := range []float64{0.5, 0.9, 0.7, 0.8} {
		step := int64(i + 1)
		write("workspace/.berth/progress", fmt.Sprintf(`{"step":%d,"values":{"accuracy":%g}}`, step, accuracy))
		write(fmt.Sprintf("checkpoint/step-%d/weights", step), "w")
		write(fmt.Sprintf("checkpoint/step-%d/DONE", step), "")
		s.until(fmt.Sprintf("step %d is stored", step), func() bool { return slices.Contains(s.verified(id), step) })
	}
	if got := s.verified(id); !slices.Equal(got, []int64{4, 2}) {
		t.Errorf("stored are %v, want the newest and the best", got)
	}
	for _, c := range s.job(id).Checkpoints {
		best := c.Step == 2
		if c.State == berth.CheckpointVerified && (c.Metric == nil || (c.Best == 1) != best || best && *c.Metric != 0.9) {
			t.Errorf("checkpoint is %+v", c)
		}
		if c.State == berth.CheckpointVerified && (c.Store == nil || *c.Store <= 0 || c.Write == nil) {
			t.Errorf("times of step %d: written in %v s, stored in %v s", c.Step, c.Write, c.Store)
		}
	}
	s.cancel(id)
	w.exit()
}
