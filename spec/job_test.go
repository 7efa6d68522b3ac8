package spec_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
)

// minimal is the smallest job file there is.
func minimal() spec.Job {
	return spec.Job{Name: "digits", Image: "python:3.12-slim"}
}

func TestDefaultsAreIdempotentAndValid(t *testing.T) {
	t.Parallel()
	once := minimal().WithDefaults()
	if diff := cmp.Diff(once, once.WithDefaults()); diff != "" {
		t.Errorf("(-once +twice):\n%s", diff)
	}
	if faults := once.Validate(); faults != nil {
		t.Errorf("the smallest job file is refused: %v", faults)
	}
	b, err := json.Marshal(once)
	if err != nil {
		t.Fatal(err)
	}
	var back spec.Job
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(once, back.WithDefaults()); diff != "" {
		t.Errorf("JSON round trip (-want +got):\n%s", diff)
	}
}

func TestEveryFaultIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	s := minimal()
	s.Name = "Digits!"
	s.Resources.GPUs = 1500
	s.Resources.GPUType = spec.StringList{""}
	s.Retry.MaxAttempts = -1
	s.Placement.Site = "moon"
	s.Env = map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}
	s.Labels = map[string]string{"a=b": "", "a\nb": "", "vision.team/x": ""}
	s.Checkpoint = &spec.CheckpointPolicy{Path: "/etc/passwd"}
	var fields []string
	for _, f := range s.WithDefaults().Validate() {
		fields = append(fields, f.Field)
		if f.Detail == "" || f.Allowed == "" {
			t.Errorf("%+v does not say what is wrong and what is allowed", f)
		}
	}
	want := "name env.NVIDIA_VISIBLE_DEVICES resources.gpus resources.gpu_type[0] placement.site retry.max_attempts checkpoint.path labels.a\nb labels.a=b"
	if got := strings.Join(fields, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRequeueAtTheTimeLimitNeedsALimitAndACheckpoint(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*spec.Job){
		"": func(s *spec.Job) {
			s.TimeLimit, s.Checkpoint = spec.Duration(time.Hour), &spec.CheckpointPolicy{Path: "/checkpoint"}
			s.Retry.OnTimeLimit, s.Retry.MaxRequeues = "requeue", 1000
		},
		"retry.on_time_limit": func(s *spec.Job) {
			s.TimeLimit, s.Retry.OnTimeLimit = spec.Duration(time.Hour), "requeue"
		},
		"retry.max_requeues": func(s *spec.Job) { s.Retry.MaxRequeues = 3 },
		"outputs[0].when": func(s *spec.Job) {
			s.Outputs = []spec.Output{{Name: "x", Path: "/x", When: "sometimes"}, {Name: "y", Path: "/y", When: "always"}}
		},
	} {
		s := minimal()
		edit(&s)
		var fields []string
		for _, f := range s.WithDefaults().Validate() {
			fields = append(fields, f.Field)
		}
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("faults are in %q, want %q", got, want)
		}
	}
}
