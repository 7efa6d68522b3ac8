package spec_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
)

// flock is a gang of a head and two workers, with the defaults filled in.
func flock(edit func(*spec.Job)) spec.Job {
	s := spec.Job{Name: "flock", Image: "busybox", Command: []string{"all"}, Env: map[string]string{"A": "job", "B": "job"},
		Resources: spec.Resources{CPUs: new(spec.MilliCPU(2000)), Memory: new(spec.MiB(1024))},
		Groups: []spec.Group{
			{Name: "head", Leads: true, Command: []string{"head"}, Env: map[string]string{"B": "head"}},
			{Name: "workers", Members: 2, Resources: spec.GroupResources{CPUs: new(spec.MilliCPU(8000)), GPUs: new(spec.MilliGPU(1000)),
				GPUType: &spec.StringList{"H100"}}},
		}}
	if edit != nil {
		edit(&s)
	}
	return s.WithDefaults()
}

func TestMembersAreNumberedThroughAllGroups(t *testing.T) {
	t.Parallel()
	s := flock(nil)
	if faults := s.Validate(); faults != nil || s.Members != 3 {
		t.Fatalf("%d members, faults %v", s.Members, faults)
	}
	for member, want := range []struct{ name, number, size, command string }{
		{"head", "0", "1", "head"}, {"workers", "0", "2", "all"}, {"workers", "1", "2", "all"},
	} {
		m := spec.ChooseMember(s, member)
		if m.Env[spec.EnvGroup] != want.name || m.Env[spec.EnvGroupMember] != want.number || m.Env[spec.EnvGroupMembers] != want.size ||
			m.Env[spec.EnvGroups] != "head=1,workers=2" || m.Command[0] != want.command || m.Members != 3 || m.Groups != nil {
			t.Errorf("member %d: %+v", member, m)
		}
		if m.Env["A"] != "job" || (m.Env["B"] == "head") != (member == 0) {
			t.Errorf("member %d has the variables %v", member, m.Env)
		}
	}
	if first, last, ok := spec.Leading(s); first != 0 || last != 0 || !ok {
		t.Errorf("members %d to %d lead: %v", first, last, ok)
	}
	// The file of the job stays as it is, also its maps.
	if diff := cmp.Diff(flock(nil), s); diff != "" {
		t.Errorf("the job has changed:\n%s", diff)
	}
	other := spec.Job{Members: 2}.WithDefaults()
	if diff := cmp.Diff(other, spec.ChooseMember(other, 1)); diff != "" {
		t.Errorf("a job without groups has changed:\n%s", diff)
	}
}

// The variables of a group replace the job's env alone; all other values of the same name would be lost.
func TestVariablesOfAGroupReplaceNoElementsValueAndNoSecret(t *testing.T) {
	t.Parallel()
	s := flock(func(s *spec.Job) {
		s.Groups[0].Env = map[string]string{"LR": "1", "TOKEN": "x"}
		s.Array = &spec.Array{Each: []map[string]string{{"A1": "1"}, {"LR": "2"}}}
		s.Secrets = []string{"TOKEN"}
	})
	var got []string
	for _, f := range s.Validate() {
		got = append(got, f.Field)
	}
	if diff := cmp.Diff([]string{"groups[0].env.LR", "groups[0].env.TOKEN"}, got); diff != "" {
		t.Errorf("the faults (-want +got):\n%s", diff)
	}
	s.Groups[0].Env, s.SecretsAs = map[string]string{"TOKEN": "x", "B": "x"}, spec.SecretsFile
	if faults := s.Validate(); faults != nil {
		t.Errorf("secrets as files: %v", faults)
	}
	s.Array = &spec.Array{From: "job:x/list"}
	for name, ok := range map[string]bool{"B": false, "C": true} {
		if _, err := spec.Filled(s, []map[string]string{{name: "1"}}); (err == nil) != ok {
			t.Errorf("a list with %s: %v", name, err)
		}
	}
}

func TestElementsAndGroupsShareTheLimitOfVariables(t *testing.T) {
	t.Parallel()
	vars := func(prefix string, n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint(prefix, i)] = "x"
		}
		return m
	}
	for n, ok := range map[int]bool{500: true, 540: false} {
		s := flock(func(s *spec.Job) {
			s.Groups[0].Env, s.Array = vars("G", n), &spec.Array{Each: []map[string]string{vars("E", 500)}}
		})
		if faults := s.Validate(); (faults == nil) != ok {
			t.Errorf("%d variables of a group and 500 of an element: %v", n, faults)
		}
	}
}

func TestAGroupInheritsTheEntrypointAndTheCommandOneByOne(t *testing.T) {
	t.Parallel()
	s := flock(func(s *spec.Job) {
		s.Entrypoint, s.Command = []string{"python"}, []string{"all.py"}
		s.Groups[0].Command = []string{"head.py"}
		s.Groups[1].Entrypoint = []string{"torchrun"}
	})
	for member, want := range [][2]string{{"python", "head.py"}, {"torchrun", "all.py"}, {"torchrun", "all.py"}} {
		m := spec.ChooseMember(s, member)
		if !slices.Equal(m.Entrypoint, want[:1]) || !slices.Equal(m.Command, want[1:]) {
			t.Errorf("member %d runs %q %q, want %q", member, m.Entrypoint, m.Command, want)
		}
	}
}

func TestAGroupInheritsTheResourcesThatItLeavesOut(t *testing.T) {
	t.Parallel()
	r := flock(nil).Request()
	want := []spec.GroupRequest{
		{Name: "head", Members: 1, CPUMilli: 2000, MemoryMiB: 1024},
		{Name: "workers", Members: 2, CPUMilli: 8000, MemoryMiB: 1024, GPUs: 1, GPUMilli: 1000, GPUTypes: []string{"H100"}},
	}
	if diff := cmp.Diff(want, r.Groups); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := r.Total(); got != (berth.Capacity{CPUMilli: 18_000, MemoryMiB: 3072, GPUMilli: 2000}) {
		t.Errorf("the sum is %+v", got)
	}
	if r.Members != 3 || r.Capacity() != (berth.Capacity{}) || r.Labels[spec.GroupsLabel] == "" {
		t.Errorf("the request is %+v", r)
	}
	for _, one := range r.Split() {
		if _, ok := one.Labels[spec.GroupsLabel]; ok || one.Groups != nil {
			t.Errorf("a group requests %+v", one)
		}
	}
	if alike := (spec.Request{Members: 2, CPUMilli: 5}); cmp.Diff([]spec.Request{alike}, alike.Split()) != "" || alike.Total().CPUMilli != 10 {
		t.Errorf("equal members are split into %+v", alike.Split())
	}
}

// A program that does not know groups reads a request of no resources and of a label that no machine has.
func TestARequestWithGroupsIsNoRequestForOtherReaders(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(flock(nil).Request())
	if err != nil {
		t.Fatal(err)
	}
	var old struct {
		CPUMilli int64             `json:"cpu_milli"`
		Labels   map[string]string `json:"labels"`
	}
	if err := json.Unmarshal(raw, &old); err != nil || old.CPUMilli != 0 || old.Labels[spec.GroupsLabel] == "" {
		t.Errorf("it reads %+v, %v", old, err)
	}
	for _, labels := range []map[string]string{{spec.GroupsLabel: "x"}} {
		s := flock(func(s *spec.Job) { s.Groups, s.Placement.Labels = nil, labels })
		if !slices.ContainsFunc(s.Validate(), func(f berth.FieldError) bool { return strings.HasPrefix(f.Field, "placement.labels") }) {
			t.Errorf("labels %v are accepted", labels)
		}
	}
}

func TestGroupsThatContradictThemselvesAreRefused(t *testing.T) {
	t.Parallel()
	for field, edit := range map[string]func(*spec.Job){
		"groups":                       func(s *spec.Job) { s.Groups = s.Groups[:1] },
		"groups[1].name":               func(s *spec.Job) { s.Groups[1].Name = "head" },
		"groups[0].name":               func(s *spec.Job) { s.Groups[0].Name = "a=b" },
		"groups[1].members":            func(s *spec.Job) { s.Groups[1].Members = -1 },
		"groups[1].leads":              func(s *spec.Job) { s.Groups[1].Leads = true },
		"groups[1].resources.cpus":     func(s *spec.Job) { s.Groups[1].Resources.CPUs = new(spec.MilliCPU(0)) },
		"groups[0].resources.gpu_type": func(s *spec.Job) { s.Groups[0].Resources.GPUType = &spec.StringList{"H100"} },
		"groups[1].env.BERTH_GROUP":    func(s *spec.Job) { s.Groups[1].Env = map[string]string{"BERTH_GROUP": "x"} },
		"groups[1].command[0]":         func(s *spec.Job) { s.Groups[1].Command = []string{"\x00"} },
		"members":                      func(s *spec.Job) { s.Members = 2 },
		"alternatives":                 func(s *spec.Job) { s.Alternatives = []spec.Alternative{{CPUs: new(spec.MilliCPU(1000))}} },
		"stall.signs": func(s *spec.Job) {
			s.Stall = &spec.StallPolicy{After: spec.Duration(3600e9), Signs: []spec.StallSign{spec.SignGPU}}
		},
	} {
		faults := flock(edit).Validate()
		if !slices.ContainsFunc(faults, func(f berth.FieldError) bool { return f.Field == field }) {
			t.Errorf("%s: the faults are %v", field, faults)
		}
	}
	many := flock(func(s *spec.Job) { s.Groups[0].Members, s.Groups[1].Members = 500, 500 })
	if !slices.ContainsFunc(many.Validate(), func(f berth.FieldError) bool { return f.Field == "groups" }) {
		t.Errorf("1000 members are accepted: %v", many.Validate())
	}
	// The stored file of a job has the sum of its members, and is valid again.
	if faults := flock(func(s *spec.Job) { s.Members = 3 }).Validate(); faults != nil {
		t.Errorf("the stored file has the faults %v", faults)
	}
}

func TestGroupsArePartOfTheIdentityOfAStep(t *testing.T) {
	t.Parallel()
	pinned := func(s *spec.Job) { s.Image = "busybox@sha256:" + strings.Repeat("ab", 32) }
	a, ok := flock(pinned).CacheKey(spec.Standing{})
	b, also := flock(func(s *spec.Job) { pinned(s); s.Groups[1].Command = []string{"other"} }).CacheKey(spec.Standing{})
	if !ok || !also || slices.Equal(a, b) {
		t.Errorf("keys %x and %x, %v %v", a, b, ok, also)
	}
}
