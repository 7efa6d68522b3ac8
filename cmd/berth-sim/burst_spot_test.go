package main

import (
	"math"
	"testing"
)

func readSpotTrace(t *testing.T) []spotRow {
	t.Helper()
	rows, err := readSpot("testdata/spot.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Python's random.Random(7) draws the starts.
func TestPythonRandomRepeats(t *testing.T) {
	t.Parallel()
	r := newPythonRandom(7)
	for i, want := range pythonDraws {
		if got := r.below(3581); got != want {
			t.Fatalf("draw %d is %d, in Python it is %d", i, got, want)
		}
	}
}

// The published means, in the order of spotCells, and the bound.
func TestBurstRepeatsThePublishedDeadlines(t *testing.T) {
	t.Parallel()
	published := map[string][4]float64{
		"greedy":  {118.8, 124.2, 100.5, 99.3},
		"uniform": {104.8, 118.0, 94.7, 103.2},
		"eager":   {95.4, 117.0, 90.9, 102.6},
		"bound":   {88.6, 88.6, 83.1, 79.1},
	}
	rows := readSpotTrace(t)
	for i, c := range spotCells {
		windows, err := spotWindows(eachZone(rows), c.deadline, spotSeed)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range published {
			got := spotMean{}
			if name == "bound" {
				got.cost = meanSpotBound(windows, c.deadline)
			} else {
				got = meanSpot(windows, c.deadline, c.restart, spotPolicies[name])
			}
			if math.Abs(got.cost-want[i]) > 0.1 || got.late > 0 {
				t.Errorf("%s, %s: $%.2f with %d late: published are $%.1f", cellName(c.deadline, c.restart), name, got.cost, got.late, want[i])
			}
		}
	}
}

// The rule of scaler.Deadline costs less than the best published policy in every cell, and no job is late, with one
// zone and with zones that are found by trying. No berthd applies this rule, see docs/adr/0101.
func TestBurstMeetsDeadlinesForLess(t *testing.T) {
	t.Parallel()
	rows := readSpotTrace(t)
	for _, c := range spotCells {
		one, err := spotWindows(eachZone(rows), c.deadline, spotSeed)
		if err != nil {
			t.Fatal(err)
		}
		several, err := spotWindows(byInstance(rows), c.deadline, spotSeed)
		if err != nil {
			t.Fatal(err)
		}
		name := cellName(c.deadline, c.restart)
		eager := meanSpot(one, c.deadline, c.restart, spotPolicies["eager"])
		single := meanSpot(one, c.deadline, c.restart, spotPolicies["berth"])
		trying := meanSpot(several, c.deadline, c.restart, spotPolicies["berth-trying"])
		t.Logf("%s: eager %.2f, berth %.2f, zones by trying %.2f", name, eager.cost, single.cost, trying.cost)
		if single.cost > eager.cost || single.late > 0 {
			t.Errorf("%s: $%.2f with %d late: allowed are $%.2f and none", name, single.cost, single.late, eager.cost)
		}
		if trying.cost > single.cost || trying.late > 0 {
			t.Errorf("%s: several zones cost $%.2f with %d late: allowed are $%.2f and none", name, trying.cost, trying.late, single.cost)
		}
	}
}
