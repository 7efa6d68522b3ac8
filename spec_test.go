package berth_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
)

func TestMiBReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := berth.MiB(rapid.Int64Range(0, 1<<40).Draw(t, "mib"))
		got, err := berth.ParseMiB(m.String())
		if err != nil || got != m {
			t.Fatalf("%d -> %q -> %d, %v", m, m, got, err)
		}
	})
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]berth.MiB{
		`"4GiB"`: 4096, `"512MiB"`: 512, `1048576`: 1, `1`: 1, `"1.5GiB"`: 1536, `"16Gi"`: 16384, `"1GB"`: 954,
	} {
		var got berth.MiB
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{`"-1GiB"`, `"lots"`, `"NaN"`, `"1e30GiB"`, `""`, `"0x10"`, `true`, `"9EiB"`} {
		var got berth.MiB
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s: got %d, want an error", text, got)
		}
	}
}

func TestSharesOfAGPU(t *testing.T) {
	t.Parallel()
	var r berth.Resources
	if err := json.Unmarshal([]byte(`{"gpus": 0.25, "gpu_type": "H100"}`), &r); err != nil {
		t.Fatal(err)
	}
	if r.GPUs != 250 || !r.GPUs.IsShare() || r.GPUType[0] != "H100" {
		t.Errorf("got %+v", r)
	}
}

// minimal is the smallest job file there is.
func minimal() berth.JobSpec {
	return berth.JobSpec{Name: "digits", Image: "python:3.12-slim"}
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
	var back berth.JobSpec
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
	s.Resources.GPUType = berth.StringList{""}
	s.Retry.MaxAttempts = -1
	s.Placement.Site = "moon"
	s.Env = map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}
	s.Labels = map[string]string{"a=b": "", "a\nb": "", "vision.team/x": ""}
	s.Checkpoint = &berth.CheckpointPolicy{Path: "/etc/passwd"}
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

func TestEqualRequestsAreOneClass(t *testing.T) {
	t.Parallel()
	a, b := minimal().WithDefaults(), minimal().WithDefaults()
	b.Name, b.Env = "other", map[string]string{"A": "1"}
	if a.Request().Class() != b.Request().Class() {
		t.Error("name and environment changed the class")
	}
	b.Resources.GPUs = 1000
	if a.Request().Class() == b.Request().Class() {
		t.Error("a GPU did not change the class")
	}
}

func TestBackoffIsBoundedAndTheSameEverywhere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := berth.Backoff{Initial: berth.Duration(10 * time.Second), Factor: 2, Max: berth.Duration(10 * time.Minute)}
		id := berth.JobID(rapid.String().Draw(t, "id"))
		n := rapid.IntRange(1, 100).Draw(t, "n")
		d := b.Delay(id, n)
		if d != b.Delay(id, n) {
			t.Fatal("two processes compute different delays")
		}
		if d < 5*time.Second || d > 10*time.Minute {
			t.Fatalf("delay %s is out of bounds", d)
		}
	})
}

func TestJobIDsSortByTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, b := berth.NewJobID(now), berth.NewJobID(now.Add(2*time.Millisecond))
	if a >= b {
		t.Errorf("%s is not before %s", a, b)
	}
	if _, err := berth.ParseJobID(string(a)); err != nil {
		t.Error(err)
	}
}

func TestAShortfallNamesAmountsAndKinds(t *testing.T) {
	t.Parallel()
	for s, want := range map[berth.Shortfall]string{
		{Resource: "gpus", Asked: "9", Largest: "8"}:                                               "gpus: asked 9, largest available 8 | at most 8",
		{Resource: "gpu_type", Asked: "B200", Largest: "A100, H100"}:                               "gpu_type: asked B200, available A100, H100 | A100, H100",
		{Resource: "constraint", Asked: "machine.cpus > 100", Largest: "no machine matches"}:       "constraint: asked machine.cpus > 100, but no machine matches | ",
		{Resource: "machine", Asked: "4 cpus, 8 GPUs", Largest: "no single machine has all of it"}: "machine: asked 4 cpus, 8 GPUs, but no single machine has all of it | ",
	} {
		if got := s.String() + " | " + s.Allowed(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
