package spec_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/spec"
)

// graph returns a pipeline from its steps with their needs: "a", "b: a", ...
func graph(steps ...string) spec.Pipeline {
	p := spec.Pipeline{Kind: "pipeline", Name: "p", Jobs: map[string]spec.Job{}}
	for _, s := range steps {
		key, needs, _ := strings.Cut(s, ":")
		p.Jobs[key] = spec.Job{Image: "busybox", Needs: strings.Fields(needs)}
	}
	return p.WithDefaults()
}

func TestPipelinesAreValidated(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		pipeline spec.Pipeline
		want     string // of the only fault; "" for none
	}{
		"a line":    {graph("a", "b: a", "c: b a"), ""},
		"a cycle":   {graph("a: c", "b: a", "c: b"), "jobs.a.needs: is a cycle: a needs c needs b needs a"},
		"a tail":    {graph("x: a", "a: b", "b: a"), "jobs.a.needs: is a cycle: a needs b needs a"},
		"itself":    {graph("a: a"), "jobs.a.needs[0]: a needs itself"},
		"unknown":   {graph("a: nobody"), `jobs.a.needs[0]: there is no step "nobody"`},
		"twice":     {graph("a", "b: a a"), "jobs.b.needs[1]: names a twice"},
		"nothing":   {graph(), "jobs: has 0 steps"},
		"bad names": {graph("A"), `jobs.A: "A" is not a valid name`},
	} {
		var got []string
		for _, f := range row.pipeline.Validate() {
			if f.Field != "jobs.A.name" {
				got = append(got, f.Field+": "+f.Detail)
			}
		}
		if text := strings.Join(got, "; "); text != row.want {
			t.Errorf("%s: got %q, want %q", what, text, row.want)
		}
	}
	inner := graph("a")
	a := inner.Jobs["a"]
	a.Image, a.Placement.MaxPricePerHour = "", -1
	inner.Jobs["a"] = a
	if got := fmt.Sprint(inner.Validate()); !strings.Contains(got, "jobs.a.image") || !strings.Contains(got, "jobs.a.placement.max_price_per_hour") {
		t.Errorf("faults of a step are %s", got)
	}
	alone := spec.Job{Name: "x", Image: "busybox", Needs: []string{"y"}}.WithDefaults()
	if got := alone.Validate(); len(got) != 1 || got[0].Field != "needs[0]" {
		t.Errorf("a job that needs others is refused by %v", got)
	}
}

func TestOrderPutsEachStepAfterItsNeeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 30).Draw(t, "steps")
		var steps []string
		for i := range n {
			s := fmt.Sprintf("s%d:", i)
			for range rapid.IntRange(0, min(i, 4)).Draw(t, "needs") {
				need := fmt.Sprintf(" s%d", rapid.IntRange(0, i-1).Draw(t, "need"))
				if !strings.Contains(s+" ", need+" ") {
					s += need
				}
			}
			steps = append(steps, s)
		}
		p := graph(steps...)
		if faults := p.Validate(); len(faults) > 0 {
			t.Fatal(faults)
		}
		order := p.Order()
		if len(order) != n {
			t.Fatalf("order has %d of %d steps", len(order), n)
		}
		for i, key := range order {
			for _, need := range p.Jobs[key].Needs {
				if slices.Index(order, need) > i {
					t.Fatalf("%s comes before %s, which it needs", key, need)
				}
			}
		}
		done := map[string]berth.JobID{}
		for _, key := range order[:n/2] {
			done[key] = berth.NewJobID(time.Now())
		}
		rest := p.Without(done)
		if len(rest.Jobs) > 0 && len(rest.Validate()) > 0 {
			t.Fatalf("without %v it is not valid: %v", order[:n/2], rest.Validate())
		}
	})
}

// A pipeline that is refused for its size is not examined further.
func TestOfTooManyStepsNothingElseIsSaid(t *testing.T) {
	t.Parallel()
	many := func(n int) spec.Pipeline {
		p := graph()
		for i := range n {
			p.Jobs[fmt.Sprintf("s%d", i)] = spec.Job{Needs: []string{"nobody"}} // no image either
		}
		return p
	}
	for _, row := range []struct {
		of   spec.Pipeline
		want []string
	}{
		{many(spec.MaxSteps + 1), []string{"jobs: has 501 steps"}},
		{many(spec.MaxAllSteps + 1), []string{"jobs: has 2001 steps", "jobs: has 2001 steps, including nested pipelines"}},
		{nest(many(1), "inner", many(spec.MaxSteps+1)), []string{"jobs.inner.jobs: has 501 steps"}},
	} {
		var got []string
		for _, f := range row.of.WithDefaults().Validate() {
			got = append(got, f.Field+": "+f.Detail)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("faults are %v, want %v", got, row.want)
		}
	}
}

// Indirect needs of a step are computed once, for any number of inputs. Not parallel:
// it counts allocations.
func TestNeedsAreWorkedOutOnceAStep(t *testing.T) {
	const steps = 200
	line := make([]string, steps)
	for i := range line {
		line[i] = fmt.Sprintf("s%d", i)
		if i > 0 {
			line[i] += ": " + fmt.Sprintf("s%d", i-1)
		}
	}
	taking := func(inputs int) float64 {
		p := graph(line...)
		first, last := p.Jobs["s0"], p.Jobs["s199"]
		first.Outputs = []spec.Output{{Name: "o", Path: "/out"}}
		for i := range inputs {
			last.Inputs = append(last.Inputs, spec.Input{From: "job:s0/o", To: fmt.Sprintf("/in%d", i)})
		}
		p.Jobs["s0"], p.Jobs["s199"] = first, last
		p = p.WithDefaults()
		if faults := p.Validate(); len(faults) > 0 {
			t.Fatal(faults)
		}
		return testing.AllocsPerRun(5, func() { p.Validate() })
	}
	if one, many := taking(1), taking(41); many > one+40*steps/2 {
		t.Errorf("40 inputs more take %.0f allocations more, with a line of %d steps before them", many-one, steps)
	}
}
