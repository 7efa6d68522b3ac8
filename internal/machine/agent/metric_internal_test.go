package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/spec"
	"berth/wire"
)

// at returns a time that many seconds after a fixed one.
func at(seconds int) time.Time { return time.Unix(1_000_000_000+int64(seconds), 0) }

func TestACheckpointHasTheValueThatItsJobReportedForIt(t *testing.T) {
	t.Parallel()
	workspace, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer workspace.Close()
	b := &bestMetric{name: "accuracy", workspace: workspace}
	for i, content := range []string{
		`{"step": 1, "values": {"accuracy": 0.1}}`, `{"step": 2, "values": {"loss": 9}}`, `{"step": 3`,
		`{"step": 4, "values": {"accuracy": "high"}}`, `{"step": 5, "values": {"accuracy": 0.5}}`,
	} {
		b.add([]byte(content), at(10*i))
	}
	b.add([]byte(`{"step": 9, "values": {"accuracy": 0.9}}`), at(40)) // an older file, read again
	for _, c := range []struct {
		what        string
		step        int64
		since, done time.Time
		want        float64 // 0: none
	}{
		{"its own step, reported after the end", 5, time.Time{}, at(39), 0.5},
		{"the last value before the end", 300, time.Time{}, at(39), 0.1},
		{"a value at the end", 300, time.Time{}, at(40), 0.5},
		{"a value from before the checkpoint before", 300, at(0), at(39), 0},
		{"no value yet", 300, time.Time{}, at(-1), 0},
	} {
		got := b.of(c.step, c.since, c.done)
		if (got == nil) != (c.want == 0) || got != nil && *got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
	for i := range 2 * maxMetricValues {
		b.add(fmt.Appendf(nil, `{"step": %d, "values": {"accuracy": 1}}`, i), at(100+i))
	}
	if len(b.read) != maxMetricValues {
		t.Errorf("%d values are kept, want %d", len(b.read), maxMetricValues)
	}
}

// A value that the watcher has not read yet is read with the checkpoint.
func TestTheProgressFileIsReadWithTheCheckpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	workspace, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer workspace.Close()
	b := &bestMetric{name: "loss", workspace: workspace}
	if got := b.of(1, time.Time{}, time.Now()); got != nil {
		t.Errorf("without a file the value is %v", *got)
	}
	if err := os.Mkdir(filepath.Join(dir, ".berth"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, progressFile), []byte(`{"step": 1, "values": {"loss": 2.5}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := b.of(1, time.Time{}, time.Now()); got == nil || *got != 2.5 {
		t.Errorf("the value is %v, want 2.5", got)
	}
}

func TestStepsThatWouldBePrunedAtOnceAreNotStored(t *testing.T) {
	t.Parallel()
	values := map[int64]*float64{1: new(0.5), 2: new(0.9), 3: nil, 4: new(0.9), 5: new(0.1), 6: new(0.2)}
	for _, c := range []struct {
		keep int
		best *spec.KeepBest
		want []int64
	}{
		{6, nil, []int64{1, 2, 3, 4, 5, 6}},
		{2, nil, []int64{5, 6}},
		{1, &spec.KeepBest{Mode: spec.BestIsMax, Count: 1}, []int64{4, 6}}, // of equal values, the newer step
		{1, &spec.KeepBest{Mode: spec.BestIsMax, Count: 3}, []int64{1, 2, 4, 6}},
		{1, &spec.KeepBest{Mode: spec.BestIsMin, Count: 2}, []int64{5, 6}},
		{1, &spec.KeepBest{Mode: spec.BestIsMin, Count: 20}, []int64{1, 2, 4, 5, 6}},
	} {
		work := spec.Job{Checkpoint: &spec.CheckpointPolicy{Keep: c.keep, Best: c.best}}
		u := &checkpointUploader{core: &core{claim: &claim{Claim: wire.Claim{Spec: work}}}, values: values}
		if c.best != nil {
			u.metric = &bestMetric{}
		}
		if got := u.withinKeep([]int64{1, 2, 3, 4, 5, 6}); !slices.Equal(got, c.want) {
			t.Errorf("keep %d and %+v store %v, want %v", c.keep, c.best, got, c.want)
		}
	}
}
