package berth_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
)

// graph is a pipeline of steps by what they need: "a", "b: a", ...
func graph(steps ...string) berth.PipelineSpec {
	p := berth.PipelineSpec{Kind: "pipeline", Name: "p", Jobs: map[string]berth.JobSpec{}}
	for _, s := range steps {
		key, needs, _ := strings.Cut(s, ":")
		p.Jobs[key] = berth.JobSpec{Image: "busybox", Needs: strings.Fields(needs)}
	}
	return p.WithDefaults()
}

func TestPipelinesAreValidated(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		pipeline berth.PipelineSpec
		want     string // of the only fault; "" for none
	}{
		"a line":    {graph("a", "b: a", "c: b a"), ""},
		"a cycle":   {graph("a: c", "b: a", "c: b"), "jobs.a.needs: is a cycle: a needs c needs b needs a"},
		"a tail":    {graph("x: a", "a: b", "b: a"), "jobs.a.needs: is a cycle: a needs b needs a"},
		"itself":    {graph("a: a"), "jobs.a.needs[0]: a needs itself"},
		"unknown":   {graph("a: nobody"), `jobs.a.needs[0]: there is no step "nobody"`},
		"twice":     {graph("a", "b: a a"), "jobs.b.needs[1]: names a twice"},
		"nothing":   {graph(), "jobs: has 0 steps"},
		"bad names": {graph("A"), `jobs.A: "A" is not a name`},
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
	a.Image, a.Placement.MaxPricePerHour = "", 1
	inner.Jobs["a"] = a
	if got := fmt.Sprint(inner.Validate()); !strings.Contains(got, "jobs.a.image") || !strings.Contains(got, "jobs.a.placement.max_price_per_hour") {
		t.Errorf("faults of a step are %s", got)
	}
	alone := berth.JobSpec{Name: "x", Image: "busybox", Needs: []string{"y"}}.WithDefaults()
	if got := alone.Validate(); len(got) != 1 || got[0].Field != "needs" {
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
