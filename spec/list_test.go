package spec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
)

func TestAListBecomesTheVariablesOfElements(t *testing.T) {
	t.Parallel()
	each, err := spec.ParseList([]byte(`[{"LR": 0.10, "NAME": "a", "ON": true}, "x", 12345678901234567890, false]`))
	want := []map[string]string{{"LR": "0.10", "NAME": "a", "ON": "true"}, {"BERTH_ARRAY_VALUE": "x"},
		{"BERTH_ARRAY_VALUE": "12345678901234567890"}, {"BERTH_ARRAY_VALUE": "false"}}
	if diff := cmp.Diff(want, each); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	for text, want := range map[string]string{
		"":              "it is not a JSON list",
		"{}":            "it is not a JSON list",
		"[1":            "it is not a JSON list",
		"[1] [2]":       "it has text after the list",
		"[1, null]":     "entry 1 is no text, number, boolean or object of these",
		"[[1]]":         "entry 0 is no text, number, boolean or object of these",
		`[{"A": [1]}]`:  `entry 0 has a value of "A" that is no text, number or boolean`,
		`[{"A": null}]`: `entry 0 has a value of "A" that is no text, number or boolean`,
		"[" + strings.Repeat("1,", spec.MaxArray) + "1]": "it has 100001 entries; at most 100000 are allowed",
	} {
		if _, err := spec.ParseList([]byte(text)); berth.CodeOf(err) != berth.CodeInvalid || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
}

func TestEntriesBecomeElements(t *testing.T) {
	t.Parallel()
	job := spec.Job{Image: "busybox", Array: &spec.Array{From: "job:plan/items", Parallel: 2}}
	filled, err := spec.Filled(job, []map[string]string{{"A": "1"}, {spec.EnvArrayValue: "2"}})
	if err != nil || filled.Array.From != "" || filled.Array.Count() != 2 || filled.Array.Parallel != 2 || job.Array.Each != nil {
		t.Errorf("%+v, %v", filled.Array, err)
	}
	for what, each := range map[string][]map[string]string{
		`entry 1: "A=B" is not a valid variable`:              {{"A": "1"}, {"A=B": "1"}},
		`entry 0: "BERTH_RANK" is set by Berth`:               {{"BERTH_RANK": "1"}},
		`entry 0: "\x00" is not a valid variable`:             {{"\x00": "1"}}, // PostgreSQL stores no NUL
		`entry 0: it is not a valid variable`:                 {{spec.EnvArrayValue: "a\x00b"}},
		`entry 1: it is not a valid variable`:                 {{"A": "1"}, {spec.EnvArrayValue: strings.Repeat("x", 33<<10)}},
		"its entries take 300KiB; at most 256KiB are allowed": {{"A": strings.Repeat("x", 30<<10)}},
	} {
		if strings.HasPrefix(what, "its") {
			for range 9 {
				each = append(each, each[0])
			}
		}
		if _, err := spec.Filled(job, each); err == nil || !strings.HasPrefix(err.Error(), what[:20]) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestListsOfStepsAreValidated(t *testing.T) {
	t.Parallel()
	from := func(ref string) func(*spec.Job) {
		return func(s *spec.Job) { s.Array = &spec.Array{From: ref} }
	}
	line := changed(graph("a", "b: a", "c"), "a", output)
	for what, row := range map[string]struct {
		pipeline spec.Pipeline
		want     string // of the only fault; "" for none
	}{
		"an output of a need":      {changed(line, "b", from("job:a/log")), ""},
		"of another step":          {changed(line, "c", from("job:a/log")), "jobs.c.array.from: c does not need a"},
		"that is not declared":     {changed(line, "b", from("job:a/other")), `jobs.b.array.from: a has no output "other"`},
		"no output":                {changed(line, "b", from("a")), `jobs.b.array.from: "a" is not an output of a job`},
		"of a need that may fail":  {changed(changed(line, "b", from("job:a/log")), "b", when(spec.WhenAlways)), "jobs.b.array.from: b may start although a has not succeeded"},
		"with a size":              {changed(line, "b", func(s *spec.Job) { s.Array = &spec.Array{From: "job:a/log", Size: 3} }), "jobs.b.array.from: is set but size, each or grid is set too"},
		"with an unusual parallel": {changed(line, "b", func(s *spec.Job) { s.Array = &spec.Array{From: "job:a/log", Parallel: -1} }), "jobs.b.array.parallel: -1 is out of range"},
	} {
		if text := strings.Join(faultsOf(row.pipeline.WithDefaults()), "; "); text != row.want {
			t.Errorf("%s: got %q, want %q", what, text, row.want)
		}
	}
	alone := spec.Job{Name: "x", Image: "busybox", Array: &spec.Array{From: "job:a/log"}}.WithDefaults()
	if got := fmt.Sprint(alone.Validate()); !strings.Contains(got, "array.from is only for steps of a pipeline") {
		t.Errorf("a job: %s", got)
	}
}
