package spec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
)

func TestIndexesAreReadAndWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]spec.IndexRange{
		"3":            {{3, 3}},
		"3-7,9":        {{3, 7}, {9, 9}},
		"9, 3-7 ,8":    {{3, 9}},
		"0-5,2-3,5-10": {{0, 10}},
	} {
		got, err := spec.ParseIndexes(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{"", "a", "-3", "7-3", "1,", "3-", "1-100000", "1--2"} {
		if got, err := spec.ParseIndexes(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	for want, indexes := range map[string][]int{"": nil, "4": {4}, "0-2,5,7-8": {0, 1, 2, 5, 7, 8}} {
		if got := spec.FormatIndexes(indexes); got != want {
			t.Errorf("%v is written %q, want %q", indexes, got, want)
		}
	}
}

// Each element has a copy of its job: a hundred thousand of the largest would be
// 25 GiB of one submit.
func TestArraysOfLargeJobsAreBounded(t *testing.T) {
	t.Parallel()
	large := func(size, values int) spec.Job {
		s := spec.Job{Name: "x", Image: "busybox", Array: &spec.Array{Size: size}, Env: map[string]string{}}
		for i := range values {
			s.Env[fmt.Sprint("V", i)] = strings.Repeat("x", 32<<10)
		}
		return s.WithDefaults()
	}
	for _, row := range []struct {
		spec spec.Job
		says string // "": nothing
	}{
		{large(spec.MaxArray, 0), ""},
		{large(4000, 7), ""},
		{large(5000, 7), "array.size: 5000 elements with 224."},
		{large(spec.MaxArray, 1), "array.size: 100000 elements with 32."},
		{large(spec.MaxArray+1, 1), "array.size: 100001 is out of range"},
	} {
		var got []string
		for _, f := range row.spec.Validate() {
			got = append(got, f.Field+": "+f.Detail+"; "+f.Allowed)
		}
		if all := strings.Join(got, "\n"); (all == "") != (row.says == "") || !strings.HasPrefix(all, row.says) || len(got) > 1 {
			t.Errorf("%d elements: %q, want %q", row.spec.Array.Size, all, row.says)
		}
	}
	p := spec.Pipeline{Kind: "pipeline", Name: "p", Jobs: map[string]spec.Job{"a": large(4000, 7), "b": large(1000, 7)}}.WithDefaults()
	if faults := p.Validate(); len(faults) != 1 || faults[0].Field != "jobs" || faults[0].Allowed != "at most 1.0 GiB in total" {
		t.Errorf("a pipeline of two arrays that are too much together: %+v", faults)
	}
}

func TestArraysAreValidated(t *testing.T) {
	t.Parallel()
	two := []map[string]string{{"LR": "0.1"}, {"LR": "0.01"}}
	less, none := -1, 0
	for name, row := range map[string]struct {
		array spec.Array
		field string // that is wrong; "" if none is
	}{
		"a size":            {spec.Array{Size: 5, Parallel: 2, MaxFailures: &none}, ""},
		"each":              {spec.Array{Each: two}, ""},
		"both, and equal":   {spec.Array{Size: 2, Each: two}, ""},
		"both":              {spec.Array{Size: 3, Each: two}, "array.size"},
		"neither":           {spec.Array{Parallel: 2}, "array.size"},
		"too large":         {spec.Array{Size: spec.MaxArray + 1}, "array.size"},
		"negative":          {spec.Array{Size: 2, Parallel: -1}, "array.parallel"},
		"negative failures": {spec.Array{Size: 2, MaxFailures: &less}, "array.max_failures"},
		"reserved variable": {spec.Array{Each: []map[string]string{{"BERTH_ARRAY_INDEX": "7"}}}, "array.each[0].BERTH_ARRAY_INDEX"},
		"no variable":       {spec.Array{Each: []map[string]string{{"A": "1"}, {"A=B": "1"}}}, "array.each[1].A=B"},
	} {
		jobSpec := spec.Job{Name: "x", Image: "busybox", Array: &row.array}.WithDefaults()
		var got []string
		for _, f := range jobSpec.Validate() {
			got = append(got, f.Field)
		}
		want := []string(nil)
		if row.field != "" {
			want = []string{row.field}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: faults in %v, want %v", name, got, want)
		}
	}
}
