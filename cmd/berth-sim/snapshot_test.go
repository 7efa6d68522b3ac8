package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db/history"
	"berth/internal/control/controlplane"
	"berth/internal/lib/golden"
	"berth/spec"
)

// simulate runs a command line and returns its output.
func simulate(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// mustSimulate is simulate for a command that succeeds.
func mustSimulate(t *testing.T, args ...string) string {
	t.Helper()
	out, err := simulate(t, args...)
	if err != nil {
		t.Fatalf("berth-sim %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// handMade is a period of an hour on one machine of 2 cores, in which three jobs of 10, 20 and 30 minutes on 2 cores
// arrive at once. It fills in the fields that all files share.
func handMade() []snapshotLine {
	start := time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	ptr := func(minutes int) *time.Time { t := at(minutes); return &t }
	c := berth.Capacity{CPUMilli: 2000, MemoryMiB: 4096, DiskMiB: 10000}
	lines := []snapshotLine{
		{Snapshot: &snapshotHead{Version: 1, Program: "test", Since: start, TakenAt: at(60)}},
		{Tenant: &history.RecordedTenant{ID: "vision", Weight: 1}},
		{Class: &snapshotClass{Class: "c", Request: snapshotRequest{Request: spec.Request{CPUMilli: 2000, MemoryMiB: 1024, Members: 1,
			Execution: spec.AtLeastOnce}}}},
	}
	for i := range 2 {
		// The second machine comes when the first job is over; the tests leave it out.
		lines = append(lines, snapshotLine{Machine: &snapshotMachine{RecordedMachine: history.RecordedMachine{
			ID: berth.MachineID(fmt.Sprintf("m%d", i)), States: []history.RecordedState{ready(start.Add(-time.Hour), c)}}}})
	}
	placed := 0
	for i, run := range []int{10, 20, 30} {
		lines = append(lines, snapshotLine{Job: &history.RecordedJob{ID: berth.JobID(fmt.Sprintf("j%d", i)), Tenant: "vision", Class: "c", Like: "train",
			Priority: 500, State: berth.Succeeded, SubmittedAt: start, ReadyAt: ptr(0), FinishedAt: ptr(placed + run),
			Attempts: []history.RecordedAttempt{{Attempt: 1, PlacedAt: at(placed), StartedAt: ptr(placed), FreedAt: ptr(placed + run), Budget: "none"}}}})
		placed += run
	}
	return lines
}

// writeLines writes lines as a file, and the line that ends it.
func writeLines(t *testing.T, path string, lines []snapshotLine) string {
	t.Helper()
	w, err := createSnapshot(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if err := w.write(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMachinesMoreAndLessChangeTheWait checks exact waits. On one machine the jobs wait 0, 10 and 30 minutes. On two
// machines they wait 0, 0 and 10, and on three none waits.
func TestMachinesMoreAndLessChangeTheWait(t *testing.T) {
	t.Parallel()
	lines := handMade()
	one := writeLines(t, filepath.Join(t.TempDir(), "one.jsonl"), append(lines[:4:4], lines[5:]...))
	two := writeLines(t, filepath.Join(t.TempDir(), "two.jsonl.gz"), lines)
	for _, c := range []struct {
		path, change string
		waits        []float64 // seconds; nil: the recorded machines
		mean         string
	}{
		{one, "+1", []float64{0, 0, 600}, "3m20s"},
		{one, "+2:2cpu-4GiB", []float64{0, 0, 0}, "0s"},
		{two, "-1", []float64{0, 600, 1800}, "13m20s"},
		{two, "-2", []float64{3600, 3600, 3600}, "1h"},
	} {
		rec, err := loadSnapshot(c.path)
		if err != nil {
			t.Fatal(err)
		}
		fleet := rec.fleet()
		changed, err := changeFleet(rec, fleet, rec.shapes(fleet), []string{c.change})
		if err != nil {
			t.Fatal(err)
		}
		x := rec.build(setting{policy: leaderPolicy(defaultSettings()), tick: 10 * time.Second, machines: changed}, rec.lives())
		if err := x.runTo(t.Context(), origin.Add(rec.period())); err != nil {
			t.Fatal(err)
		}
		o := rec.replayed("changed", x, setting{policy: leaderPolicy(defaultSettings()), machines: changed})
		if got := fmt.Sprint(o.total.waits); got != fmt.Sprint(c.waits) {
			t.Errorf("%s %s: waits %s, want %v", filepath.Base(c.path), c.change, got, c.waits)
		}
		if out := mustSimulate(t, "replay", c.path, "--machines", c.change); !strings.Contains(out, " "+c.mean+" ") {
			t.Errorf("%s: the mean wait %s is not printed:\n%s", c.change, c.mean, out)
		}
	}
	golden.Check(t, "testdata/replay.txt", mustSimulate(t, "replay", one, "--machines", "+1", "--order", "srsf"))
}

// TestTheUnknownEndIsSaidAndBounded checks jobs that run or wait at the end of the period, and one that is canceled
// before it starts.
func TestTheUnknownEndIsSaidAndBounded(t *testing.T) {
	t.Parallel()
	lines := handMade()
	lines = append(lines[:4:4], lines[5:]...)
	j0, j1, j2 := lines[4].Job, lines[5].Job, lines[6].Job
	j0.State, j0.FinishedAt, j0.Attempts[0].FreedAt = berth.Running, nil, nil // it takes the machine without an end
	j1.State, j1.FinishedAt, j1.Attempts = berth.Queued, nil, nil
	j2.State, j2.Attempts = berth.Canceled, nil
	at := j2.SubmittedAt.Add(30 * time.Minute)
	j2.FinishedAt = &at
	path := writeLines(t, filepath.Join(t.TempDir(), "open.jsonl"), lines)
	out := mustSimulate(t, "replay", path, "--machines", "+1")
	for _, want := range []string{
		"1 run at the end, for an unknown time: they run to their limits, or to the end",
		"1 wait at the end, and their run times are unknown: those of similar jobs are used",
		"1 ended before they started: they leave the queue at the recorded time",
		"1 of 1 first starts are within 1m of the record, median difference 0s, largest 0s",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	rec, err := loadSnapshot(path)
	if err != nil {
		t.Fatal(err)
	}
	fleet := rec.fleet()
	o := rec.recorded(fleet)
	x := rec.build(setting{policy: leaderPolicy(defaultSettings()), machines: fleet}, rec.lives())
	if err := x.runTo(t.Context(), origin.Add(rec.period())); err != nil {
		t.Fatal(err)
	}
	// No wait is longer than the record: an hour for the job that waits, 30 minutes for the canceled one.
	for name, got := range map[string]*tally{"recorded": o, "replayed": rec.replayed("replayed", x, setting{machines: fleet})} {
		if fmt.Sprint(got.total.waits, got.total.waiting) != "[0 3600 1800] 2" {
			t.Errorf("%s: waits %v, %d of them did not start", name, got.total.waits, got.total.waiting)
		}
	}
}

// TestDamagedSnapshotsSayWhatIsWrong checks that each fault names the line, the fault and the allowed values.
func TestDamagedSnapshotsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	lines := handMade()
	for _, l := range append(lines, snapshotLine{End: &snapshotEnd{len(lines)}}) {
		x, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(x, '\n'))
	}
	good := b.String()
	for name, c := range map[string]struct{ text, want string }{
		"empty":         {"", ":1: the file is empty"},
		"no JSON":       {"PK\x03\x04", ":1: not a JSON object"},
		"cut off":       {good[:strings.LastIndex(good, `{"end"`)], ":8: the line end is missing: the file was cut off"},
		"half a line":   {good[:len(good)/2], ": not a JSON object"},
		"lost line":     {strings.Replace(good, good[strings.LastIndex(good, `{"job"`):strings.LastIndex(good, `{"end"`)], "", 1), ":8: end.lines 8: 7 lines come before it"},
		"version":       {strings.Replace(good, `"version":1`, `"version":2`, 1), ":1: snapshot.version 2: allowed is 1"},
		"unknown kind":  {strings.Replace(good, `{"tenant"`, `{"person"`, 1), `:2: kind "person" is unknown: allowed are snapshot, tenant, pool, burst, offer, class, machine, launch, job, end`},
		"unknown key":   {strings.Replace(good, `"weight"`, `"wight"`, 1), `:2: tenant has an unknown key "wight": allowed are id, parent, weight, guarantee`},
		"wrong type":    {strings.Replace(good, `"weight":1`, `"weight":"1"`, 1), ":2: tenant: json: cannot unmarshal string"},
		"no tenant":     {strings.Replace(good, `"tenant":"vision"`, `"tenant":"audio"`, 1), `:6: job.tenant "audio": the file has no such tenant`},
		"no class":      {strings.Replace(good, `"class":"c","like"`, `"class":"d","like"`, 1), `:6: job.class "d": the file has no such class`},
		"order":         {strings.Replace(good, `{"tenant"`, `{"job"`, 1), ":2: job has an unknown key"},
		"twice":         {strings.Replace(good, `"id":"m1"`, `"id":"m0"`, 1), `:5: machine.id "m0" is empty or appears twice`},
		"negative":      {strings.Replace(good, `"memory_mib":4096`, `"memory_mib":-1`, 1), ":4: machine.states has an amount -1: allowed are 0 to"},
		"state":         {strings.Replace(good, `"state":"ready"`, `"state":"happy"`, 1), `:4: machine.states.state "happy": allowed are`},
		"two objects":   {strings.Replace(good, "\n", " {}\n", 1), ":1: text follows the object"},
		"no kind":       {"{}\n", ":1: the object has 0 kinds"},
		"itself parent": {strings.Replace(good, `"id":"vision"`, `"id":"vision","parent":"vision"`, 1), `tenant "vision" is above itself: allowed is a tree`},
		"time":          {strings.Replace(good, `"taken_at":"2026-11-02T09`, `"taken_at":"2026-11-02T07`, 1), ":1: snapshot.taken_at"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f.jsonl")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.text == good {
				t.Fatal("the case changes nothing")
			}
			if _, err := simulate(t, "replay", path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "good.jsonl")
	if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"--machines 1", "allowed are +N:SHAPE and -N:SHAPE, such as +2:2cpu-4GiB"},
		{"--machines +1:8xH100", `shape "8xH100" is not in the snapshot: allowed are 2cpu-4GiB`},
		{"--machines -3", "there are 2 machines of the shape left"},
		{"--order lottery", "allowed are fair, priority, fifo and srsf"},
	} {
		if _, err := simulate(t, append([]string{"replay", path}, strings.Fields(c.args)...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}

// TestTheDefaultSettingsAreThoseOfBerthd compares the policy of a replay with the policy of a berthd without flags.
func TestTheDefaultSettingsAreThoseOfBerthd(t *testing.T) {
	t.Parallel()
	p, d := controlplane.Default().Policy, defaultSettings()
	got := controlplane.Policy{Order: d.Order, BandWidth: d.BandWidth, Aging: d.Aging.Std(), Overdue: d.Overdue.Std(), HalfLife: d.HalfLife.Std(),
		EntryPenalty: d.EntryPenalty.Std(), Backfill: d.Backfill, PreemptAfter: d.PreemptAfter.Std(), MinRuntime: d.MinRuntime.Std(),
		AssumeRun: d.AssumeRun.Std()}
	l := leaderPolicy(d)
	got.AgingCrosses, got.NominationFor, got.ShareGPUs, got.Exponent, got.Outrank = l.Cross, l.NominationFor, !l.KeepTenantsApart, l.Exponent, l.Outrank
	if got != p || l.Preempt != (p.PreemptAfter > 0) {
		t.Errorf("a replay uses %+v, berthd %+v", got, p)
	}
}

// TestTheScalerLaunchesInAReplay checks that a burst policy launches machines for the jobs that wait: two boot for
// four minutes, and the costs are the price of their time.
func TestTheScalerLaunchesInAReplay(t *testing.T) {
	t.Parallel()
	lines := handMade()
	lines = append(lines[:4:4], lines[5:]...)
	offer := snapshotLine{Offer: &history.RecordedOffer{Provider: "lab", Region: "here", Type: "small", Market: "on_demand", CPUs: 2, MemoryMiB: 8192, Price: 6, AsOf: "2026-11-01"}}
	lines = slices.Insert(lines, 2, offer)
	// The scaler replaces its own launch of the record, and not the one by hand, of $3.
	ended := lines[0].Snapshot.TakenAt
	for i, tenant := range []berth.TenantID{"vision", ""} {
		lines = slices.Insert(lines, 5+i, snapshotLine{Launch: &history.RecordedLaunch{Machine: berth.MachineID(fmt.Sprint("gone-", i)), N: 1, Tenant: tenant,
			Provider: "lab", Region: "here", Type: "small", Market: "on_demand", State: "gone", CreatedAt: lines[0].Snapshot.Since, EndedAt: &ended,
			Settled: []int64{100e6, 3e6}[i], SettledTo: &ended}})
	}
	path := writeLines(t, filepath.Join(t.TempDir(), "b.jsonl"), lines)
	policy := filepath.Join(t.TempDir(), "burst.yaml")
	text := "burst:\n  allow: [lab/here]\n  when: {waiting: [{jobs: 1, for: 0s}]}\n  idle: 5m\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	rec, err := loadSnapshot(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := rec.scaled(setting{policy: leaderPolicy(defaultSettings()), tick: 10 * time.Second, machines: rec.fleet()}, []string{"vision=" + policy})
	if err != nil {
		t.Fatal(err)
	}
	x := rec.build(s, rec.lives())
	if err := x.runTo(t.Context(), origin.Add(rec.period())); err != nil {
		t.Fatal(err)
	}
	o := rec.replayed("changed", x, s)
	// The first job starts at once. The launches are made 5 s later and join after four minutes.
	if got := fmt.Sprint(o.total.waits); got != "[0 245 245]" || len(s.burst.fleet) != 2 {
		t.Errorf("waits %s with %d launches", got, len(s.burst.fleet))
	}
	// Each machine runs its job, is empty for 5 minutes, and ends 15 s later: 4 + 20 or 30 + 5 minutes and some passes.
	if least, most := 3+6*(29.25+39.25)/60, 3+6*(30.0+40)/60; o.cost < least || o.cost > most {
		t.Errorf("the cost is $%.2f: want $%.2f to $%.2f", o.cost, least, most)
	}
	for _, m := range s.burst.fleet {
		if m.EndedFirst.IsZero() {
			t.Errorf("machine %s has not ended", m.Machine)
		}
	}
	out := mustSimulate(t, "replay", path, "--burst", "vision="+policy)
	if !strings.Contains(out, fmt.Sprintf("$%.2f", o.cost)) {
		t.Errorf("the cost $%.2f is not printed:\n%s", o.cost, out)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere.yaml")
	if err := os.WriteFile(elsewhere, []byte("burst: {allow: [lab/here, lap/here]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := simulate(t, "replay", path, "--burst", "vision="+elsewhere); err == nil ||
		!strings.Contains(err.Error(), `burst.allow[1] "lap/here": the snapshot has no offer there: allowed are lab/here`) {
		t.Errorf("a policy for a place without offers: %v", err)
	}
	for _, bad := range []string{"audio=" + policy, "vision"} {
		if _, err := simulate(t, "replay", path, "--burst", bad); err == nil || !strings.Contains(err.Error(), "allowed is TENANT=FILE") {
			t.Errorf("--burst %s: %v", bad, err)
		}
	}
}
