package spec_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/spec"
)

var (
	someAddress  = berth.Address("sha256:" + strings.Repeat("a", 64))
	otherAddress = berth.Address("sha256:" + strings.Repeat("b", 64))
	pinned       = "busybox@" + string(someAddress)
)

func cachedStep() spec.Job {
	return spec.Job{
		Name: "x", Image: "busybox", Command: []string{"a"}, Entrypoint: []string{"sh"}, Env: map[string]string{"A": "1"}, Workdir: string(someAddress),
		Inputs:  []spec.Input{{From: "job:a/data", To: "/data"}, {From: string(someAddress), To: "/code"}, {From: "https://example.com/f", To: "/f", SHA256: strings.Repeat("1", 64)}},
		Outputs: []spec.Output{{Name: "model", Path: "/out"}, {Name: "log", Path: "/log"}},
		Secrets: []string{"TOKEN", "OTHER"}, Cache: true,
	}.WithDefaults()
}

func standing() spec.Standing {
	return spec.Standing{Inputs: map[int]berth.Address{0: someAddress}, Secrets: map[string]string{"TOKEN": "1", "OTHER": "1"}}
}

// Each field of a job file either makes another step, or does not; a new one is to
// be put on one of the two lists.
func TestWhatACachedStepIs(t *testing.T) {
	t.Parallel()
	want, ok := cachedStep().CacheKey(standing())
	if !ok {
		t.Fatal("it has no key")
	}
	grace, no := spec.Duration(time.Minute), false
	high, cpus, memory := spec.PriorityHigh, spec.MilliCPU(2000), spec.MiB(4096)
	decides := map[string][]func(*spec.Job){
		"Image":      {func(s *spec.Job) { s.Image = "busybox:2" }},
		"Entrypoint": {func(s *spec.Job) { s.Entrypoint = nil }, func(s *spec.Job) { s.Entrypoint, s.Command = nil, []string{"sh", "a"} }},
		"Command":    {func(s *spec.Job) { s.Command = []string{"a", ""} }},
		"Env":        {func(s *spec.Job) { s.Env = map[string]string{"A": "2"} }, func(s *spec.Job) { s.Env = nil }},
		"Workdir":    {func(s *spec.Job) { s.Workdir = string(otherAddress) }, func(s *spec.Job) { s.Workdir = "" }},
		"Alternatives": {
			func(s *spec.Job) { s.Alternatives = []spec.Alternative{{GPUs: new(spec.MilliGPU(1000))}} },
			func(s *spec.Job) { s.Alternatives = []spec.Alternative{{GPUs: new(spec.MilliGPU(2000))}} },
		},
		"Resources": {
			func(s *spec.Job) { s.Resources.GPUs = 1000 }, func(s *spec.Job) { s.Resources.CPUs = &cpus },
			func(s *spec.Job) { s.Resources.Memory = &memory }, func(s *spec.Job) { s.Resources.GPUType = spec.StringList{"H100"} },
		},
		"Members": {func(s *spec.Job) { s.Image, s.Members = pinned, 2 }},
		"Groups": {func(s *spec.Job) {
			s.Image, s.Groups = pinned, []spec.Group{{Name: "a"}, {Name: "b"}}
		}},
		"Checkpoint": {func(s *spec.Job) { s.Checkpoint = &spec.CheckpointPolicy{Path: "/c"} }},
		"Inputs": {
			func(s *spec.Job) { s.Inputs[0].To = "/elsewhere" }, func(s *spec.Job) { s.Inputs[1].From = string(otherAddress) },
			func(s *spec.Job) { s.Inputs[2].SHA256 = strings.Repeat("2", 64) }, func(s *spec.Job) { s.Inputs = s.Inputs[:2] },
		},
		"Outputs":      {func(s *spec.Job) { s.Outputs[0].Path = "/b" }, func(s *spec.Job) { s.Outputs = s.Outputs[:1] }},
		"Secrets":      {func(s *spec.Job) { s.Secrets = s.Secrets[:1] }},
		"Network":      {func(s *spec.Job) { s.Network.Egress = spec.EgressNone }},
		"SecretsAs":    {func(s *spec.Job) { s.SecretsAs = "file" }},
		"User":         {func(s *spec.Job) { s.User = spec.UserImage }, func(s *spec.Job) { s.User = spec.UserTenant }},
		"ReadOnlyRoot": {func(s *spec.Job) { s.ReadOnlyRoot = true }},
		"TmpSize":      {func(s *spec.Job) { s.ReadOnlyRoot, s.TmpSize = true, 128 }},
	}
	other := map[string]func(*spec.Job){
		"Name": func(s *spec.Job) { s.Name = "y" }, "Labels": func(s *spec.Job) { s.Labels = map[string]string{"a": "b"} },
		"Placement": func(s *spec.Job) { s.Placement.Regions = []string{"eu"} }, "Priority": func(s *spec.Job) { s.Priority = &high },
		"Preemptible": func(s *spec.Job) { s.Preemptible = &no }, "Execution": func(s *spec.Job) { s.Execution = spec.AtMostOne },
		"QueueTimeout": func(s *spec.Job) { s.QueueTimeout = grace }, "TimeLimit": func(s *spec.Job) { s.TimeLimit = grace },
		"StallTimeout": func(s *spec.Job) { s.StallTimeout = grace }, "StopGrace": func(s *spec.Job) { s.StopGrace = &grace },
		"Stall":         func(s *spec.Job) { s.Stall = &spec.StallPolicy{After: grace} },
		"HoldOnFailure": func(s *spec.Job) { s.HoldOnFailure = grace }, "LostAfter": func(s *spec.Job) { s.LostAfter = grace }, "Retry": func(s *spec.Job) { s.Retry.MaxAttempts = 3 },
		"ImageAuth": func(s *spec.Job) { s.ImageAuth = "LOGIN" }, "Needs": func(s *spec.Job) { s.Needs = []string{"b"} },
		"Notify": func(s *spec.Job) { s.Notify = []spec.Notify{{URL: "https://example.com"}} }, "Cache": func(s *spec.Job) { s.Cache = false },
		"When": func(*spec.Job) {}, "Final": func(*spec.Job) {}, // of a step that may not be cached
		"Array":     func(*spec.Job) {}, // has no result of its own, and is refused
		"Jobs":      func(*spec.Job) {}, // as well
		"OnFailure": func(*spec.Job) {}, // of a step that has jobs
	}
	for i := range reflect.TypeFor[spec.Job]().NumField() {
		field := reflect.TypeFor[spec.Job]().Field(i).Name
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
	s.Outputs[0].When = spec.OutputAlways
	s.Secrets[0], s.Secrets[1] = s.Secrets[1], s.Secrets[0]
	s.Inputs[1].From = "job:elsewhere/other"
	s.Inputs[2].From, s.Inputs[2].Secret = "https://example.net/g", "LOGIN"
	if got, _ := s.CacheKey(at); string(got) != string(want) {
		t.Error("order, or where the same content is from, makes another step")
	}
	for what, change := range map[string]func(*spec.Standing){
		"content of an output": func(a *spec.Standing) { a.Inputs = map[int]berth.Address{0: otherAddress} },
		"value of a secret":    func(a *spec.Standing) { a.Secrets["TOKEN"] = "2" },
	} {
		at := standing()
		change(&at)
		if got, ok := cachedStep().CacheKey(at); !ok || string(got) == string(want) {
			t.Errorf("another %s is the same step", what)
		}
	}
	for what, change := range map[string]func(*spec.Job, *spec.Standing){
		"an output that is not bound": func(_ *spec.Job, a *spec.Standing) { a.Inputs = nil },
		"a secret that is gone":       func(_ *spec.Job, a *spec.Standing) { delete(a.Secrets, "OTHER") },
		"a bucket":                    func(s *spec.Job, _ *spec.Standing) { s.Inputs[1].From = "s3://b/k" },
		"a file without its hash":     func(s *spec.Job, _ *spec.Standing) { s.Inputs[2].SHA256 = "" },
		"a gang of an image's name":   func(s *spec.Job, _ *spec.Standing) { s.Members = 2 },
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
		edit func(*spec.Job)
		want string // of the only fault; "" for none
	}{
		"a step":                  {func(*spec.Job) {}, ""},
		"a gang by a digest":      {func(s *spec.Job) { s.Members, s.Image = 2, pinned }, ""},
		"a gang by a name":        {func(s *spec.Job) { s.Members = 2 }, "jobs.a.image"},
		"an array":                {func(s *spec.Job) { s.Array = &spec.Array{Size: 2} }, "jobs.a.cache"},
		"a bucket":                {func(s *spec.Job) { s.Inputs = []spec.Input{{From: "s3://bucket/k/", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a bucket of Google's":    {func(s *spec.Job) { s.Inputs = []spec.Input{{From: "gs://bucket/k", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a container of Azure's":  {func(s *spec.Job) { s.Inputs = []spec.Input{{From: "azblob://acc/con/k", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a file without its hash": {func(s *spec.Job) { s.Inputs = []spec.Input{{From: "https://example.com/f", To: "/d"}} }, "jobs.a.inputs[0].from"},
		"a file with its hash": {func(s *spec.Job) {
			s.Inputs = []spec.Input{{From: "https://example.com/f", To: "/d", SHA256: strings.Repeat("1", 64)}}
		}, ""},
		"an upload": {func(s *spec.Job) { s.Inputs = []spec.Input{{From: string(someAddress), To: "/d"}} }, ""},
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
	alone := spec.Job{Name: "x", Image: "busybox", Cache: true}.WithDefaults()
	if got := alone.Validate(); len(got) != 1 || got[0].Field != "cache" {
		t.Errorf("a job by itself is refused by %v", got)
	}
	for ref, want := range map[string]bool{
		"busybox": false, "busybox:1": false, "busybox@sha256:ab": false, "busybox@" + string(someAddress): true, "h:5000/a/b:1@" + string(someAddress): true,
	} {
		if got := spec.PinnedImage(ref); got != want {
			t.Errorf("%s is pinned: %s", ref, fmt.Sprint(got))
		}
	}
}
