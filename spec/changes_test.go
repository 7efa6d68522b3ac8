package spec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
)

func TestChangesNameTheFieldsThatDiffer(t *testing.T) {
	t.Parallel()
	before := spec.Schedule{Name: "nightly", Cron: "0 3 * * *", Job: &spec.Job{Image: "a:1", Command: []string{"x"},
		Env: map[string]string{"LR": "1", "OLD": "y"}, Notify: []spec.Notify{{URL: "https://a.test/key"}}}}
	after := before
	job := *before.Job
	after.Cron, after.Job = "", &job
	after.Every = spec.Duration(3600e9)
	job.Image, job.Command = "a:2", []string{"x", strings.Repeat("z", 300)}
	job.Env = map[string]string{"LR": "2"}
	job.Notify = nil
	got, err := spec.Changes(before, after)
	if err != nil {
		t.Fatal(err)
	}
	want := []spec.Change{
		{Field: "cron", From: `"0 3 * * *"`},
		{Field: "every", To: `"1h"`},
		{Field: "job.command", From: `["x"]`, To: `["x","` + strings.Repeat("z", 194) + "..."},
		{Field: "job.env.LR", From: `"1"`, To: `"2"`},
		{Field: "job.env.OLD", From: `"y"`},
		{Field: "job.image", From: `"a:1"`, To: `"a:2"`},
		{Field: "job.notify"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if same, err := spec.Changes(before, before); err != nil || len(same) != 0 {
		t.Errorf("equal documents differ: %v, %v", same, err)
	}
}
