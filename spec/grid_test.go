package spec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
)

// gridJob returns a valid job with defaults and the array.
func gridJob(a spec.Array) spec.Job {
	return spec.Job{Name: "sweep", Image: "busybox", Array: &a}.WithDefaults()
}

func TestAGridIsWrittenOutWithTheLastNameFastest(t *testing.T) {
	t.Parallel()
	written := spec.Array{Grid: map[string][]string{"LR": {"0.1", "0.01"}, "BATCH": {"32", "64", "128"}}, Parallel: 2}
	job := gridJob(written)
	var want []map[string]string
	for _, batch := range []string{"32", "64", "128"} {
		for _, rate := range []string{"0.1", "0.01"} {
			want = append(want, map[string]string{"BATCH": batch, "LR": rate})
		}
	}
	if diff := cmp.Diff(&spec.Array{Each: want, Parallel: 2}, job.Array); diff != "" {
		t.Errorf("the array has other elements (-want +got):\n%s", diff)
	}
	if faults := job.Validate(); len(faults) > 0 {
		t.Errorf("the grid is refused: %v", faults)
	}
	if diff := cmp.Diff(job, job.WithDefaults()); diff != "" {
		t.Errorf("a second WithDefaults changes the job:\n%s", diff)
	}
	if len(written.Grid) != 2 || written.Each != nil || written.Count() != 6 {
		t.Errorf("WithDefaults changed the caller's array: %+v", written)
	}
}

func TestGridsHaveBounds(t *testing.T) {
	t.Parallel()
	long := func(n int, form string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(form, i)
		}
		return list
	}
	for name, row := range map[string]struct {
		array       spec.Array
		field, says string
	}{
		"with size": {spec.Array{Size: 2, Grid: map[string][]string{"LR": {"1", "2"}}},
			"array.size", "is 2 but array.grid is set"},
		"with each": {spec.Array{Each: []map[string]string{{"LR": "1"}}, Grid: map[string][]string{"LR": {"1"}}},
			"array.each", "is set but array.grid is set too"},
		"an empty list": {spec.Array{Grid: map[string][]string{"LR": {}, "B": {"1"}}},
			"array.grid.LR", "has no values, so the grid has no elements"},
		"a value twice": {spec.Array{Grid: map[string][]string{"LR": {"1", "2", "1"}}},
			"array.grid.LR[2]", `"1" is also value 0 of the list`},
		"a reserved name": {spec.Array{Grid: map[string][]string{"BERTH_X": {"1"}}},
			"array.grid.BERTH_X", "is set by Berth or the GPU runtime"},
		"a bad value": {spec.Array{Grid: map[string][]string{"LR": {"a\x00"}}},
			"array.grid.LR[0]", "is not a valid variable"},
		"too many elements": {spec.Array{Grid: map[string][]string{"A": long(400, "%d"), "B": long(400, "%d")}},
			"array.grid", "the product of its 2 lists has more than 100000 elements"},
		"too long": {spec.Array{Grid: map[string][]string{"A": long(100, "%d"),
			"B": long(100, strings.Repeat("x", 50)+"%d")}},
			"array.grid", "its 10000 elements take"},
	} {
		faults := gridJob(row.array).Validate()
		if len(faults) != 1 || faults[0].Field != row.field || !strings.HasPrefix(faults[0].Detail, row.says) {
			t.Errorf("%s: %v, want one fault of %s: %s", name, faults, row.field, row.says)
		}
	}
	// The largest product is judged without building it.
	huge := map[string][]string{}
	for i := range 60 {
		huge[fmt.Sprint("V", i)] = long(1000, "%d")
	}
	if faults := gridJob(spec.Array{Grid: huge}).Validate(); len(faults) != 1 || faults[0].Field != "array.grid" {
		t.Errorf("60 lists of 1000 values: %v", faults)
	}
}
