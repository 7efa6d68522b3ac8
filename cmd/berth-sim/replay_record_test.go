package main

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

// planted are names and secrets in the rows of TestAnonymisedSnapshotsHaveNoNames.
var planted = []string{"zebra-tenant", "yak-tenant", "walrus-machine", "vulture-pool", "unicorn-label", "tapir-value", "squid-job", "raccoon-image",
	"quail-command", "panda-env", "otter-secret", "newt-user", "moose-address", "lemur-reason", "koala-network", "jackal-step", "ibis-mail",
	"heron-digest", "gecko-key", "ferret-provider", "egret-zone-name"}

// zoo fills a database with machines and jobs that have the planted names.
func zoo(t *testing.T) (url string) {
	t.Helper()
	url = dbtest.URL(t)
	d := dbtest.Open(t, url, db.Options{})
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := d.Pool().Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
	for _, x := range []spec.NewTenant{{ID: "zebra-tenant", Weight: 2}, {ID: "yak-tenant", Parent: "zebra-tenant", Weight: 1}} {
		if err := d.Tenants.Create(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Pools.Set(t.Context(), "vulture-pool", spec.PoolRules{Tenants: []berth.TenantID{"zebra-tenant"}, Description: "ibis-mail"}, "user:newt-user"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		exec(`INSERT INTO machines (id, pool, state, region, network, labels, address, reason, cpu_m, mem_mb, disk_mb, gpu_milli)
			VALUES ($1, 'vulture-pool', 'ready', 'eu-west-1', 'koala-network', $2, 'moose-address', 'lemur-reason', 16000, 65536, 100000, 2000)`,
			fmt.Sprintf("walrus-machine-%d", i), map[string]string{"unicorn-label": fmt.Sprintf("tapir-value-%d", i%2)})
		for g := range 2 {
			exec(`INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb) VALUES ($1, $2, $3, 'H100', 81920)`, fmt.Sprintf("walrus-machine-%d", i), g, fmt.Sprint("heron-digest-", i, g))
		}
	}
	exec(`INSERT INTO offers (provider, region, zone, type, market, cpus, memory_mib, gpus, gpu_type, price, source, as_of, loaded_by)
		VALUES ('ferret-provider', 'eu-west-1', 'a', 'p5', 'spot', 8, 1024, 1, 'H100', 4.5, 'ibis-mail', '2026-01-01', 'user:newt-user')`)
	if err := d.Burst.Set(t.Context(), "zebra-tenant", spec.Burst{Allow: []string{"ferret-provider/eu-west-1"}}, "user:newt-user"); err != nil {
		t.Fatal(err)
	}
	for i := range 24 {
		s := spec.Job{Name: "squid-job", Image: "raccoon-image", Command: []string{"quail-command"}, Env: map[string]string{"PANDA": "panda-env"},
			Secrets: []string{"otter-secret"}}.WithDefaults()
		s.Resources.GPUs = spec.MilliGPU(1000 * (1 + i%2))
		cpus := spec.MilliCPU(12000)
		s.Resources.CPUs = &cpus
		if i%3 == 0 {
			s.Placement.Labels = map[string]string{"unicorn-label": "tapir-value-0"}
		}
		if i%4 == 0 {
			s.Placement.Constraint = `machine.labels["unicorn-label"] == "tapir-value-1" || machine.id == "walrus-machine-0"`
		}
		if i%5 == 0 {
			s.Placement.AvoidMachines = []berth.MachineID{"walrus-machine-2"}
		}
		request := s.Request()
		exec(`INSERT INTO classes (class, request) VALUES ($1, $2) ON CONFLICT DO NOTHING`, request.Class(), request)
		id := fmt.Sprintf("01900000-0000-7000-8000-%012d", i)
		exec(`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor, run_limit_ms, idem_key, labels, submitted_at, eligible_at)
			VALUES ($1, $2, 'squid-job', $3, 500, true, 0, 90000, 'user:newt-user', $4, $5, '{"gecko-key": "x"}', now() - $6::interval, now() - $6::interval)`,
			id, []string{"zebra-tenant", "yak-tenant"}[i%2], request.Class(), 3600_000, fmt.Sprint("gecko-key-", i), time.Duration(300-10*i)*time.Minute)
		exec(`INSERT INTO job_specs (job, spec) VALUES ($1, $2)`, id, s)
		if i >= 20 {
			continue // it waits
		}
		begin, run := 290-10*i, 30+30*(i%3)
		exec(`INSERT INTO attempts (job, attempt, leader_epoch, placed_at, started_at, ended_at, outcome, next_state, budget)
			VALUES ($1, 1, 1, now() - $2::interval, now() - $2::interval + interval '20 s', now() - $3::interval, '{"code": "exit_code", "message": "lemur-reason"}', 'succeeded', 'none')`,
			id, time.Duration(begin)*time.Minute, time.Duration(begin-run)*time.Minute)
	}
	// The machines were in service all the time, and the jobs with an attempt have ended.
	exec(`UPDATE machine_events SET at = now() - interval '1 day'`)
	tx, err := d.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`SET LOCAL session_replication_role = replica`,
		`UPDATE jobs j SET state = 'succeeded', attempt = 1, finished_at = t.ended_at FROM attempts t WHERE t.job = j.id`,
		`UPDATE jobs SET state = 'queued' WHERE state = 'submitted'`,
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return url
}

// content returns the text of a file, decompressed.
func content(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAnonymisedSnapshotsHaveNoNames exports rows with known names and secrets with and without pseudonyms. Neither
// file has the secrets, only the plain one has the names, and both give the same figures.
func TestAnonymisedSnapshotsHaveNoNames(t *testing.T) {
	t.Parallel()
	url := zoo(t)
	dir := t.TempDir()
	plain, hidden, again := filepath.Join(dir, "plain.jsonl.gz"), filepath.Join(dir, "hidden.jsonl.gz"), filepath.Join(dir, "again.jsonl.gz")
	mustSimulate(t, "snapshot", "--database-url", url, "--since", "10h", "--out", again, "--anonymise")
	h, err := db.OpenHistory(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	now, err := h.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for path, names := range map[string]pseudonyms{plain: {}, hidden: newPseudonyms()} { // of one moment, for equal figures
		out, err := createSnapshot(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := (&exporter{history: h, out: out, names: names}).export(t.Context(), now, 10*time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := out.finish(); err != nil {
			t.Fatal(err)
		}
	}
	open, closed := content(t, plain), content(t, hidden)
	for _, name := range planted {
		if strings.Contains(closed, name) {
			t.Errorf("the anonymised file contains %s", name)
		}
		secret := !strings.HasSuffix(name, "-tenant") && !strings.HasPrefix(name, "walrus") && !strings.HasPrefix(name, "vulture") &&
			!strings.HasPrefix(name, "unicorn") && !strings.HasPrefix(name, "tapir") && !strings.HasPrefix(name, "squid") &&
			!strings.HasPrefix(name, "koala") && !strings.HasPrefix(name, "ferret")
		if has := strings.Contains(open, name); has && secret {
			t.Errorf("the plain file contains %s", name)
		} else if !has && !secret {
			t.Errorf("the plain file lacks %s: the test looks for nothing", name)
		}
	}
	for _, kept := range []string{"H100", "eu-west-1", "4.5"} {
		if !strings.Contains(closed, kept) {
			t.Errorf("the anonymised file lacks %s", kept)
		}
	}
	if strings.Contains(content(t, again), "tenant-") && tenantOf(closed) == tenantOf(content(t, again)) {
		t.Error("two snapshots have equal pseudonyms: the key is not random")
	}
	figures := func(path string) string {
		out := mustSimulate(t, "replay", path, "--machines", "+1", "--order", "srsf")
		table := out[strings.Index(out, "shapes"):]
		for _, name := range []string{"zebra-tenant", "yak-tenant"} {
			table = strings.ReplaceAll(table, name, "tenant")
		}
		return strings.Join(strings.Fields(hideTenants(table)), " ")
	}
	a, b := figures(plain), figures(hidden)
	if a != b {
		t.Errorf("the anonymised file gives other figures:\n%s\n%s", a, b)
	}
	if !strings.Contains(a, "replayed fair 3 24") || strings.Contains(a, "replayed fair 3 24 0 0s") {
		t.Errorf("the replay does not show 24 jobs that compete:\n%s", a)
	}
}

// tenantOf returns the second line of a file, its first tenant.
func tenantOf(text string) string { return strings.Split(text, "\n")[1] }

// hideTenants replaces pseudonyms of tenants by one word.
func hideTenants(text string) string {
	fields := strings.Split(text, "\n")
	for i, l := range fields {
		if strings.HasPrefix(l, "tenant-") {
			_, rest, _ := strings.Cut(l, " ")
			fields[i] = "tenant " + rest
		}
	}
	return strings.Join(fields, "\n")
}

// TestASnapshotIsOneTransaction checks that changes during the export are not in the file.
func TestASnapshotIsOneTransaction(t *testing.T) {
	t.Parallel()
	url := zoo(t)
	d := dbtest.Open(t, url, db.Options{})
	h, err := db.OpenHistory(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	path := filepath.Join(t.TempDir(), "s.jsonl.gz")
	out, err := createSnapshot(path)
	if err != nil {
		t.Fatal(err)
	}
	now, err := h.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('late-machine', 'ready', 1, 1, 1)`,
		`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		 SELECT gen_random_uuid(), tenant, 'late-job', class, 500, true, 0, 90000, 'user:x' FROM jobs LIMIT 1`,
	} {
		if _, err := d.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := (&exporter{history: h, out: out}).export(t.Context(), now, 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := out.finish(); err != nil {
		t.Fatal(err)
	}
	text := content(t, path)
	if strings.Contains(text, "late-") || !strings.Contains(text, "walrus-machine-0") {
		t.Error("the file has rows from after its transaction, or none")
	}
	if _, err := loadSnapshot(path); err != nil {
		t.Error(err)
	}
}

// TestTheReplayOfALeaderIsItsRecord runs a real leader on rows in virtual time, exports the rows, and replays them.
// The replay under the recorded setting must agree with the record.
func TestTheReplayOfALeaderIsItsRecord(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile("testdata/saturated.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := readScenario("testdata/saturated.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	predicted := newReplay(s.fleet(), s.arrivals(), s.planner(), ticking{s.tick()})
	predicted.open(s.tenants())
	if err := predicted.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, s)
	moments := w.moments(predicted)
	for at, ok := w.next(moments); ok; at, ok = w.next(moments) {
		w.pass(at)
	}
	w.exec(`UPDATE machine_events SET at = now() - interval '1 day'`) // the shifts of time leave them behind
	dir := t.TempDir()
	path, policy := filepath.Join(dir, "week.jsonl.gz"), filepath.Join(dir, "policy.yaml")
	mustSimulate(t, "snapshot", "--database-url", w.db.Pool().Config().ConnString(), "--since", "23h", "--out", path)
	text := "{order: fair, half_life: 6h, backfill: 6, preempt: true, preempt_after: 5m, min_runtime: 10m, band_width: 100, aging: 0s, overdue: 0s}\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out := mustSimulate(t, "replay", path, "--policy", policy, "--machines", "+1")
	t.Log(out)
	want := fmt.Sprintf("%d of %[1]d first starts are within 1m of the record", len(s.arrivals()))
	if !strings.Contains(out, want) {
		t.Errorf("%q is missing", want)
	}
	// The record and its replay have the same preemptions.
	var recorded, replayed, changed string
	for _, l := range strings.Split(out, "\n") {
		f := strings.Fields(l)
		if len(f) > 8 && f[0] == "recorded" && f[1] == "-" {
			recorded = f[8]
		} else if len(f) > 8 && f[0] == "replayed" {
			replayed = f[8]
		} else if len(f) > 8 && f[0] == "changed" {
			changed = f[5]
		}
	}
	if recorded == "" || recorded == "0" || recorded != replayed || changed == "" {
		t.Errorf("%q preemptions are recorded, the replay has %q; the changed mean is %q", recorded, replayed, changed)
	}
}
