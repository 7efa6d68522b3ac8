package berth_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth"
)

var (
	someAddress  = berth.Address("sha256:" + strings.Repeat("a", 64))
	otherAddress = berth.Address("sha256:" + strings.Repeat("b", 64))
	pinned       = "busybox@" + string(someAddress)
)

func cachedStep() berth.JobSpec {
	return berth.JobSpec{
		Name: "x", Image: "busybox", Command: []string{"a"}, Entrypoint: []string{"sh"}, Env: map[string]string{"A": "1"}, Workdir: string(someAddress),
		Inputs:  []berth.Input{{From: "job:a/data", To: "/data"}, {From: string(someAddress), To: "/code"}, {From: "https://example.com/f", To: "/f", SHA256: strings.Repeat("1", 64)}},
		Outputs: []berth.Output{{Name: "model", Path: "/out"}, {Name: "log", Path: "/log"}},
		Secrets: []string{"TOKEN", "OTHER"}, Cache: true,
	}.WithDefaults()
}

func standing() berth.Standing {
	return berth.Standing{Inputs: map[int]berth.Address{0: someAddress}, Secrets: map[string]string{"TOKEN": "1", "OTHER": "1"}}
}

// Each field of a job file either makes another step, or does not; a new one is to
// be put on one of the two lists.
func TestWhatACachedStepIs(t *testing.T) {
	t.Parallel()
	want, ok := cachedStep().CacheKey(standing())
	if !ok {
		t.Fatal("it has no key")
	}
	grace, no := berth.Duration(time.Minute), false
	high, cpus, memory := berth.PriorityHigh, berth.MilliCPU(2000), berth.MiB(4096)
	decides := map[string][]func(*berth.JobSpec){
		"Image":      {func(s *berth.JobSpec) { s.Image = "busybox:2" }},
		"Entrypoint": {func(s *berth.JobSpec) { s.Entrypoint = nil }, func(s *berth.JobSpec) { s.Entrypoint, s.Command = nil, []string{"sh", "a"} }},
		"Command":    {func(s *berth.JobSpec) { s.Command = []string{"a", ""} }},
		"Env":        {func(s *berth.JobSpec) { s.Env = map[string]string{"A": "2"} }, func(s *berth.JobSpec) { s.Env = nil }},
		"Workdir":    {func(s *berth.JobSpec) { s.Workdir = string(otherAddress) }, func(s *berth.JobSpec) { s.Workdir = "" }},
		"Resources": {
			func(s *berth.JobSpec) { s.Resources.GPUs = 1000 }, func(s *berth.JobSpec) { s.Resources.CPUs = &cpus },
			func(s *berth.JobSpec) { s.Resources.Memory = &memory }, func(s *berth.JobSpec) { s.Resources.GPUType = berth.StringList{"H100"} },
		},
		"Members":    {func(s *berth.JobSpec) { s.Image, s.Members = pinned, 2 }},
		"Checkpoint": {func(s *berth.JobSpec) { s.Checkpoint = &berth.CheckpointPolicy{Path: "/c"} }},
		"Inputs": {
			func(s *berth.JobSpec) { s.Inputs[0].To = "/elsewhere" }, func(s *berth.JobSpec) { s.Inputs[1].From = string(otherAddress) },
			func(s *berth.JobSpec) { s.Inputs[2].SHA256 = strings.Repeat("2", 64) }, func(s *berth.JobSpec) { s.Inputs = s.Inputs[:2] },
		},
		"Outputs":   {func(s *berth.JobSpec) { s.Outputs[0].Path = "/b" }, func(s *berth.JobSpec) { s.Outputs = s.Outputs[:1] }},
		"Secrets":   {func(s *berth.JobSpec) { s.Secrets = s.Secrets[:1] }},
		"SecretsAs": {func(s *berth.JobSpec) { s.SecretsAs = "file" }},
	}
	other := map[string]func(*berth.JobSpec){
		"Name": func(s *berth.JobSpec) { s.Name = "y" }, "Labels": func(s *berth.JobSpec) { s.Labels = map[string]string{"a": "b"} },
		"Placement": func(s *berth.JobSpec) { s.Placement.Regions = []string{"eu"} }, "Priority": func(s *berth.JobSpec) { s.Priority = &high },
		"Preemptible": func(s *berth.JobSpec) { s.Preemptible = &no }, "Execution": func(s *berth.JobSpec) { s.Execution = berth.AtMostOne },
		"QueueTimeout": func(s *berth.JobSpec) { s.QueueTimeout = grace }, "TimeLimit": func(s *berth.JobSpec) { s.TimeLimit = grace },
		"StallTimeout": func(s *berth.JobSpec) { s.StallTimeout = grace }, "StopGrace": func(s *berth.JobSpec) { s.StopGrace = &grace },
		"LostAfter": func(s *berth.JobSpec) { s.LostAfter = grace }, "Retry": func(s *berth.JobSpec) { s.Retry.MaxAttempts = 3 },
		"ImageAuth": func(s *berth.JobSpec) { s.ImageAuth = "LOGIN" }, "Needs": func(s *berth.JobSpec) { s.Needs = []string{"b"} },
		"Notify": func(s *berth.JobSpec) { s.Notify = []berth.Notify{{URL: "https://example.com"}} }, "Cache": func(s *berth.JobSpec) { s.Cache = false },
		"Array":     func(*berth.JobSpec) {}, // has no result of its own, and is refused
		"Jobs":      func(*berth.JobSpec) {}, // as well
		"OnFailure": func(*berth.JobSpec) {}, // of a step that has jobs
	}
	for i := range reflect.TypeFor[berth.JobSpec]().NumField() {
		field := reflect.TypeFor[berth.JobSpec]().Field(i).Name
		_, same := other[field]
		if _, differs := decides[field]; same == differs {
			t.Errorf("whether %s makes another step is not said, or twice", field)
		}
	}
	for field, edits := range decides {
		for i, edit := range edits {
			s := cachedStep()
			edit(&s)
			if got, ok := s.CacheKey(standing()); !ok || string(got) == string(want) {
				t.Errorf("%s, %d: it is the same step", field, i)
			}
		}
	}
	for field, edit := range other {
		s := cachedStep()
		edit(&s)
		if got, ok := s.CacheKey(standing()); !ok || string(got) != string(want) {
			t.Errorf("%s: it is another step", field)
		}
	}
}

func TestACachedStepIsItsContentInAnyOrder(t *testing.T) {
	t.Parallel()
	want, _ := cachedStep().CacheKey(standing())
	s, at := cachedStep(), standing()
	s.Inputs[0], s.Inputs[1] = s.Inputs[1], s.Inputs[0]
	at.Inputs = map[int]berth.Address{1: someAddress}
	s.Outputs[0], s.Outputs[1] = s.Outputs[1], s.Outputs[0]
	s.Secrets[0], s.Secrets[1] = s.Secrets[1], s.Secrets[0]
	s.Inputs[1].From = "job:elsewhere/other"
	s.Inputs[2].From, s.Inputs[2].Secret = "https://example.net/g", "LOGIN"
	if got, _ := s.CacheKey(at); string(got) != string(want) {
		t.Error("order, or where the same content is from, makes another step")
	}
	for what, change := range map[string]func(*berth.Standing){
		"content of an output": func(a *berth.Standing) { a.Inputs = map[int]berth.Address{0: otherAddress} },
		"value of a secret":    func(a *berth.Standing) { a.Secrets["TOKEN"] = "2" },
	} {
		at := standing()
		change(&at)
		if got, ok := cachedStep().CacheKey(at); !ok || string(got) == string(want) {
			t.Errorf("another %s is the same step", what)
		}
	}
	for what, change := range map[string]func(*berth.JobSpec, *berth.Standing){
		"an output that is not bound": func(_ *berth.JobSpec, a *berth.Standing) { a.Inputs = nil },
		"a secret that is gone":       func(_ *berth.JobSpec, a *berth.Standing) { delete(a.Secrets, "OTHER") },
		"a bucket":                    func(s *berth.JobSpec, _ *berth.Standing) { s.Inputs[1].From = "s3://b/k" },
		"a file without its hash":     func(s *berth.JobSpec, _ *berth.Standing) { s.Inputs[2].SHA256 = "" },
		"a gang of an image's name":   func(s *berth.JobSpec, _ *berth.Standing) { s.Members = 2 },
	} {
		s, at := cachedStep(), standing()
		change(&s, &at)
		if _, ok := s.CacheKey(at); ok {
			t.Errorf("with %s it has a key", what)
		}
	}
}

func TestCachedStepsAreValidated(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		edit func(*berth.JobSpec)
		want string // of the only fault; "" for none
	}{
		"a step":                  {func(*berth.JobSpec) {}, ""},
		"a gang by a digest":      {func(s *berth.JobSpec) { s.Members, s.Image = 2, pinned }, ""},
		"a gang by a name":        {func(s *berth.JobSpec) { s.Members = 2 }, "jobs.a.image"},
		"an array":                {func(s *berth.JobSpec) { s.Array = &berth.Array{Size: 2} }, "jobs.a.cache"},
		"a bucket":                {func(s *berth.JobSpec) { s.Inputs = []berth.Input{{From: "s3://bucket/k/", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a bucket of Google's":    {func(s *berth.JobSpec) { s.Inputs = []berth.Input{{From: "gs://bucket/k", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a container of Azure's":  {func(s *berth.JobSpec) { s.Inputs = []berth.Input{{From: "azblob://acc/con/k", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a file without its hash": {func(s *berth.JobSpec) { s.Inputs = []berth.Input{{From: "https://example.com/f", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a file with its hash": {func(s *berth.JobSpec) {
			s.Inputs = []berth.Input{{From: "https://example.com/f", To: "/d", SHA256: strings.Repeat("1", 64)}}
		}, ""},
		"an upload": {func(s *berth.JobSpec) { s.Inputs = []berth.Input{{From: string(someAddress), To: "/d"}} }, ""},
	} {
		p := graph("a")
		s := p.Jobs["a"]
		s.Cache = true
		row.edit(&s)
		p.Jobs["a"] = s
		faults := p.Validate()
		if row.want == "" && len(faults) > 0 || row.want != "" && (len(faults) != 1 || faults[0].Field != row.want) {
			t.Errorf("%s: %v", what, faults)
		}
	}
	alone := berth.JobSpec{Name: "x", Image: "busybox", Cache: true}.WithDefaults()
	if got := alone.Validate(); len(got) != 1 || got[0].Field != "cache" {
		t.Errorf("a job by itself is refused by %v", got)
	}
	for ref, want := range map[string]bool{
		"busybox": false, "busybox:1": false, "busybox@sha256:ab": false, "busybox@" + string(someAddress): true, "h:5000/a/b:1@" + string(someAddress): true,
	} {
		if got := berth.PinnedImage(ref); got != want {
			t.Errorf("%s is pinned: %s", ref, fmt.Sprint(got))
		}
	}
}
