package main

import (
	"strings"
	"testing"

	"berth/spec"
	"berth/wire"
)

// led is the stored job of a head and two workers.
func led(edit func(*spec.Job)) wire.Job {
	s := spec.Job{Image: "busybox", Entrypoint: []string{"python"}, Command: []string{"all.py"}, Groups: []spec.Group{
		{Name: "head", Leads: true, Command: []string{"head.py"}},
		{Name: "workers", Members: 2, Entrypoint: []string{"torchrun"}},
	}}
	if edit != nil {
		edit(&s)
	}
	s = s.WithDefaults()
	return wire.Job{ID: "01900000-0000-7000-8000-00000000000a", Spec: &s}
}

func TestShowNamesTheWholeCommandOfAGroup(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(120, false)
	if err := describeJob(a, led(nil), false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"python head.py", "torchrun all.py"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

func TestAVariableOfTheCommandLineHoldsInEveryGroup(t *testing.T) {
	t.Parallel()
	old := led(func(s *spec.Job) { s.Groups[0].Env = map[string]string{"LR": "1", "A": "head"} })
	changed, err := changedSpec(old, overrides{env: map[string]string{"LR": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	for member := range 3 {
		env := spec.ChooseMember(changed.WithDefaults(), member).Env
		if env["LR"] != "2" || (env["A"] == "head") != (member == 0) {
			t.Errorf("member %d has the variables %v", member, env)
		}
	}
	if old.Spec.Groups[0].Env["LR"] != "1" {
		t.Error("the old job has changed")
	}
	if _, ok := changed.Groups[1].Env["LR"]; ok {
		t.Error("a group without the variable has it now")
	}
}

func TestTheSizesOfGroupsCanBeChangedForARetry(t *testing.T) {
	t.Parallel()
	old := led(nil)
	for set, want := range map[string]int{"groups.1.members=4": 5, "members=9": 9, "name=other": 3} {
		changed, err := changedSpec(old, overrides{set: []string{set}})
		if got := changed.WithDefaults().Members; err != nil || got != want {
			t.Errorf("with %s it has %d members, want %d; %v", set, got, want, err)
		}
	}
	if old.Spec.Members != 3 {
		t.Errorf("the old job has %d members now", old.Spec.Members)
	}
}
