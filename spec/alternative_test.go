package spec_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
)

// picky asks for 8 H100 and, after ten minutes, for 8 A100.
func picky() spec.Job {
	s := minimal()
	s.Resources = spec.Resources{CPUs: new(spec.MilliCPU(64_000)), Memory: new(spec.MiB(512 << 10)), ShmSize: 1 << 10, GPUs: 8000,
		GPUType: spec.StringList{"H100"}, GPUMemory: 80 << 10}
	s.Alternatives = []spec.Alternative{{After: spec.Duration(10 * time.Minute), GPUType: &spec.StringList{"A100"}}}
	return s
}

func TestAnAlternativeInheritsTheFieldsThatItLeavesOut(t *testing.T) {
	t.Parallel()
	s := picky()
	s.Alternatives = append(s.Alternatives,
		spec.Alternative{After: spec.Duration(time.Hour), Memory: new(spec.MiB(256 << 10)), GPUs: new(spec.MilliGPU(4000)), GPUType: &spec.StringList{}, GPUMemory: new(spec.MiB(0))},
		spec.Alternative{After: spec.Duration(time.Hour), CPUs: new(spec.MilliCPU(128_000)), Disk: new(spec.MiB(9)), GPUs: new(spec.MilliGPU(0)), ShmSize: new(spec.MiB(0))})
	s = s.WithDefaults()
	if faults := s.Validate(); faults != nil {
		t.Fatal(faults)
	}
	want := []spec.Resources{s.Resources, s.Resources, s.Resources, s.Resources}
	want[1].GPUType = spec.StringList{"A100"}
	want[2].Memory, want[2].GPUs, want[2].GPUType, want[2].GPUMemory = new(spec.MiB(256<<10)), 4000, nil, 0
	want[3].CPUs, want[3].Disk, want[3].GPUs, want[3].GPUType, want[3].GPUMemory, want[3].ShmSize = new(spec.MilliCPU(128_000)), 9, 0, nil, 0, 0
	for i, r := range want {
		if diff := cmp.Diff(r, s.ResourcesOf(i)); diff != "" {
			t.Errorf("%d (-want +got):\n%s", i, diff)
		}
		if got := spec.RequestsOf(s)[i]; got.GPUs != int(r.GPUs/1000) || got.MemoryMiB != int64(*r.Memory) || got.GPUMemoryMiB != int64(r.GPUMemory) {
			t.Errorf("the request of %d is %+v", i, got)
		}
	}
	if !reflect.DeepEqual(s.ResourcesOf(4), s.Resources) || !reflect.DeepEqual(s.ResourcesOf(-1), s.Resources) {
		t.Error("a number that the job does not have is not resources")
	}
}

func TestAJobThatGotAnAlternativeIsOneWithoutOthers(t *testing.T) {
	t.Parallel()
	s := picky().WithDefaults()
	got := spec.Choose(s, 1)
	if got.Alternatives != nil || got.Resources.GPUType[0] != "A100" || got.Env[spec.EnvAlternative] != "1" || s.Env != nil {
		t.Errorf("got %+v with %v, and the file has %v", got.Resources, got.Env, s.Env)
	}
	if diff := cmp.Diff(minimal(), spec.Choose(minimal(), 0)); diff != "" {
		t.Errorf("a job without alternatives changes:\n%s", diff)
	}
}

func TestFaultsOfAlternativesNameTheirPlace(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration, edit func(*spec.Alternative)) spec.Alternative {
		a := spec.Alternative{After: spec.Duration(d), GPUType: &spec.StringList{"A100"}}
		if edit != nil {
			edit(&a)
		}
		return a
	}
	many := make([]spec.Alternative, spec.MaxAlternatives+1)
	for i := range many {
		many[i] = spec.Alternative{GPUs: new(spec.MilliGPU((i%7 + 1) * 1000)), Memory: new(spec.MiB(1<<20 + i))}
	}
	for want, list := range map[string][]spec.Alternative{
		"alternatives[1].after: 5m is before the 10m of alternatives[0]": {
			at(10*time.Minute, nil), at(5*time.Minute, func(a *spec.Alternative) { a.GPUType = &spec.StringList{"L40S"} })},
		"alternatives[0]: has the same resources as resources":               {{After: spec.Duration(time.Minute)}},
		"alternatives[1]: has the same resources as alternatives[0]":         {at(0, nil), at(time.Minute, nil)},
		"alternatives[0].gpus: 1.5 is neither":                               {at(0, func(a *spec.Alternative) { a.GPUs = new(spec.MilliGPU(1500)) })},
		"alternatives[0].gpu_type: is set, but alternatives[0].gpus":         {at(0, func(a *spec.Alternative) { a.GPUs = new(spec.MilliGPU(0)) })},
		"alternatives[0].shm_size: 1GiB is more than alternatives[0].memory": {at(0, func(a *spec.Alternative) { a.Memory = new(spec.MiB(512)) })},
		"alternatives[0].after: 2h is not before the queue_timeout of 1h":    {at(2*time.Hour, nil)},
		"alternatives: too many entries":                                     many,
	} {
		s := picky()
		s.QueueTimeout = spec.Duration(time.Hour)
		s.Alternatives = list
		var got []string
		for _, f := range s.WithDefaults().Validate() {
			got = append(got, fmt.Sprintf("%s: %s", f.Field, f.Detail))
		}
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	hung := picky()
	hung.Stall = &spec.StallPolicy{After: spec.Duration(time.Hour), Signs: []spec.StallSign{spec.SignGPU}}
	hung.Alternatives = append(hung.Alternatives, spec.Alternative{GPUs: new(spec.MilliGPU(0)), After: spec.Duration(time.Hour)})
	if faults := hung.WithDefaults().Validate(); len(faults) != 1 || faults[0].Field != "stall.signs" {
		t.Errorf("the sign gpu of a job without GPUs: %v", faults)
	}
}
