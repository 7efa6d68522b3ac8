package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/spec"
)

// work is one job of a trace or of a scenario.
type work struct {
	id        string
	tenant    berth.TenantID
	gpus      int
	submitted time.Duration // since the trace's start
	length    time.Duration // of its run, without start costs
	startCost time.Duration // work that each start adds

	request    spec.Request
	priority   int
	firm       bool          // not preemptible
	timeLimit  time.Duration // 0: none
	declared   bool          // the planner knows the run time
	saves      bool          // a preempted run resumes where it stopped
	checkpoint time.Duration // without saves: interval of checkpoints; 0: none

	early    time.Duration // time from its submission to submitted, in which it could not start
	like     string        // equal for jobs that tend to run equally long; "": unknown
	parent   berth.JobID   // array or pipeline; "": none
	parallel int           // jobs of the parent that may run at once; 0: no limit
}

// The required columns of the two known traces. Further columns are ignored.
var (
	muriColumns   = []string{"job_id", "num_gpu", "submit_time", "iterations", "model_name", "iteration_time"}
	phillyColumns = []string{"timestamp", "duration", "num_gpus", "cluster"}
)

// muriOverhead is the factor on each iteration in the simulator that published the results
// of Muri's trace; the same factor makes the figures comparable.
const muriOverhead = 1.015

// readTrace reads a trace of either form, and returns the jobs in order of submission.
func readTrace(path string) ([]work, error) {
	muri, err := hasColumns(path, muriColumns)
	if err != nil {
		return nil, err
	}
	philly, err := hasColumns(path, phillyColumns)
	if err != nil {
		return nil, err
	}
	var list []work
	seen := map[string]bool{}
	add := func(w work, err error) error {
		if err != nil {
			return err
		}
		if seen[w.id] {
			return fmt.Errorf("job_id %q appears twice", w.id)
		}
		seen[w.id] = true
		list = append(list, w)
		return nil
	}
	switch {
	case muri:
		err = eachRow(path, muriColumns, func(t *table) error { return add(readMuri(t)) })
	case philly:
		var start time.Time
		err = eachRow(path, phillyColumns, func(t *table) error { return add(readPhilly(t, &start, len(list))) })
	default:
		return nil, fmt.Errorf("%s:1: columns of no known trace: allowed are %s, or %s",
			path, strings.Join(muriColumns, ","), strings.Join(phillyColumns, ","))
	}
	if err != nil {
		return nil, err
	}
	// Stable: jobs of one moment stay in the order of the file.
	slices.SortStableFunc(list, func(a, b work) int { return int(sign(a.submitted - b.submitted)) })
	return list, nil
}

// sign returns -1, 0 or 1, for comparison functions.
func sign(d time.Duration) time.Duration {
	switch {
	case d < 0:
		return -1
	case d > 0:
		return 1
	}
	return 0
}

// Bounds of the numbers in a trace: decades, and more GPUs than any cluster has.
const (
	maxSeconds  = 1e9
	maxJobGPUs  = 1 << 20
	maxMuriTime = maxSeconds * 1000 // milliseconds
)

// readMuri converts one row. Muri's times are milliseconds.
func readMuri(t *table) (work, error) {
	w := work{id: t.text("job_id")}
	if w.id == "" {
		return w, fmt.Errorf("job_id is empty")
	}
	gpus, err := t.number("num_gpu", 1, maxJobGPUs)
	if err != nil {
		return w, err
	}
	submitted, err := t.decimal("submit_time", 0, maxMuriTime)
	if err != nil {
		return w, err
	}
	iterations, err := t.number("iterations", 1, maxMilli)
	if err != nil {
		return w, err
	}
	each, err := t.decimal("iteration_time", 0, maxMuriTime)
	if err != nil {
		return w, err
	}
	run := float64(iterations) * each / 1000 * muriOverhead
	if run > maxSeconds {
		return w, fmt.Errorf("iterations x iteration_time is %.0f s: allowed are up to %.0f s", run,
			float64(maxSeconds))
	}
	w.gpus = int(gpus)
	// A run of no time would never occupy a machine; the least run is a nanosecond.
	w.submitted, w.length = seconds(submitted/1000), max(seconds(run), time.Nanosecond)
	w.startCost = startCost(t.text("model_name"), w.gpus)
	return w, nil
}

// phillyLayout is the layout of times in the Philly trace.
const phillyLayout = "2006-01-02 15:04:05"

// readPhilly converts one row. Times count from start, the submission of the first row; the
// row number is the job's id.
func readPhilly(t *table, start *time.Time, row int) (work, error) {
	w := work{id: strconv.Itoa(row), tenant: berth.TenantID(t.text("cluster"))}
	at, err := time.Parse(phillyLayout, t.text("timestamp"))
	if err != nil {
		return w, fmt.Errorf("timestamp %q: allowed are times like %s", t.text("timestamp"), phillyLayout)
	}
	if start.IsZero() {
		*start = at
	}
	if at.Before(*start) {
		return w, fmt.Errorf("timestamp %q is before the first row's: rows are in order of submission",
			t.text("timestamp"))
	}
	gpus, err := t.number("num_gpus", 1, maxJobGPUs)
	if err != nil {
		return w, err
	}
	run, err := t.decimal("duration", 0, maxSeconds)
	if err != nil {
		return w, err
	}
	w.gpus, w.submitted = int(gpus), at.Sub(*start)
	w.length, w.startCost = max(seconds(run), time.Nanosecond), usualStartCost
	return w, nil
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }

// usualStartCost is the work that a start adds where nothing else is published.
const usualStartCost = 10 * time.Second

// startCosts is the work that a start adds, in seconds, on 1, 2, 4, 8, 16 and 32 GPUs, in
// the simulator of Muri (Zhao et al., SIGCOMM '22).
var startCosts = map[string][6]time.Duration{
	"vgg16":              {7, 7, 8, 9, 9, 10},
	"vgg19":              {7, 7, 8, 9, 10, 10},
	"resnet18":           {4, 5, 5, 7, 7, 7},
	"shufflenet_v2_x1_0": {4, 4, 5, 5, 7, 8},
	"a2c":                {38, 39, 39, 46, 46, 46},
	"dqn":                {5, 5, 6, 6, 8, 8},
}

// startCost returns the work that a start of a model adds; between two sizes, the larger
// size counts.
func startCost(model string, gpus int) time.Duration {
	list, ok := startCosts[model]
	if !ok {
		return usualStartCost
	}
	i := 0
	// Column i is for 2^i GPUs; more than 32 GPUs cost as much as 32.
	for i < len(list)-1 && 1<<i < gpus {
		i++
	}
	return list[i] * time.Second
}
