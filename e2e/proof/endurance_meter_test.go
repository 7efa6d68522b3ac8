package proof_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tenths is how many parts a run is compared by.
const tenths = 10

// sampleEvery is the pause between two looks at processes, queue and machine.
const sampleEvery = 5 * time.Second

// meter reads the costs of a run. The cost of reading does not grow with the history.
type meter struct {
	s       *stack
	began   time.Time
	watched []*watched
	db      *pgxpool.Pool   // Berth's
	others  []*pgxpool.Pool // Temporal's two
	scratch *os.File

	samples  []sample
	readings []reading // at the beginning of the run, and after each tenth
}

// watched is one of Berth's processes, or Temporal's.
type watched struct {
	name string
	pid  int
	log  string
	off  int64
	heap float64
}

// sample holds the readings of one moment.
type sample struct {
	at    time.Duration
	rss   map[string]float64 // MiB by process
	heap  map[string]float64 // MiB that the last collection kept
	files map[string]float64 // open ones
	queue map[string]float64 // live jobs by state

	processes       float64 // of PostgreSQL
	private, shared float64 // MiB of all of them

	spin, flush time.Duration // of the probes
}

// reading holds the counters since the start.
type reading struct {
	at     time.Duration
	cpu    map[string]time.Duration // by process
	all    time.Duration            // of the machine
	sizes  map[string]float64       // MiB by database
	tables map[string]table         // Berth's
	nodes  float64                  // rows of Temporal's histories
	blobs  float64                  // files of the object store
	state  float64                  // entries of the agents' folders
}

// table holds PostgreSQL's figures of one table.
type table struct {
	size             float64 // MiB with its indexes
	live, dead       float64 // rows
	scanned, fetched float64 // rows read by scans of the whole, and by way of an index
}

func (s *stack) startMeter(r *replicas) *meter {
	s.t.Helper()
	m := &meter{s: s}
	m.watched = append(m.watched, &watched{name: "temporal", pid: s.dev.pid, log: filepath.Join(s.dir, "berth-dev.log")})
	for _, p := range r.all {
		m.watched = append(m.watched, &watched{name: p.name, pid: p.now.pid, log: p.log()})
	}
	for i, p := range s.others[len(r.all):] {
		m.watched = append(m.watched, &watched{name: fmt.Sprintf("agent-%d", i), pid: p.pid, log: filepath.Join(s.dir, fmt.Sprintf("agent-m%d.log", i+1))})
	}
	for _, name := range []string{"berth", "temporal", "temporal_visibility"} {
		cfg, err := pgxpool.ParseConfig(s.at.DatabaseURL)
		if err != nil {
			s.t.Fatal(err)
		}
		cfg.MaxConns, cfg.ConnConfig.Database = 1, name
		pool, err := pgxpool.NewWithConfig(s.t.Context(), cfg)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(pool.Close)
		m.others = append(m.others, pool)
	}
	m.db, m.others = m.others[0], m.others[1:]
	var err error
	if m.scratch, err = os.Create(filepath.Join(s.dir, "probe")); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = m.scratch.Close() })
	m.began = time.Now()
	return m
}

// runUntil samples until then.
func (m *meter) runUntil(then time.Time) {
	for time.Now().Before(then) {
		m.samples = append(m.samples, m.sample())
		sleepUntil(m.s.t.Context(), minTime(then, time.Now().Add(sampleEvery)))
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// sample looks once.
func (m *meter) sample() sample {
	x := sample{rss: map[string]float64{}, heap: map[string]float64{}, files: map[string]float64{}, queue: map[string]float64{}}
	x.spin, x.flush = spin(), m.flush()
	for _, w := range m.watched {
		x.rss[w.name], x.heap[w.name] = resident(w.pid), w.kept()
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.pid))
		x.files[w.name] = float64(len(entries))
	}
	for _, pid := range m.postgresProcesses() {
		private, shared := portion(pid)
		x.processes, x.private, x.shared = x.processes+1, x.private+private, x.shared+shared
	}
	rows, err := m.db.Query(context.Background(), `
		SELECT state, count(*)
		FROM jobs
		WHERE state NOT IN ('succeeded', 'failed', 'canceled')
		GROUP BY state`)
	if err != nil {
		m.s.t.Error(err)
		return x
	}
	var state string
	var n float64
	if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { x.queue[state] = n; return nil }); err != nil {
		m.s.t.Error(err)
	}
	x.at = time.Since(m.began)
	return x
}

// spin is how long a fixed piece of work takes: the machine's share in every
// other figure.
func spin() time.Duration {
	began := time.Now()
	block := make([]byte, 1<<16)
	for range 64 {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
	}
	return time.Since(began)
}

// flush is how long a page takes to the disk, as each commit waits for one.
func (m *meter) flush() time.Duration {
	began := time.Now()
	if _, err := m.scratch.WriteAt(make([]byte, 8192), 0); err != nil {
		m.s.t.Error(err)
	}
	if err := m.scratch.Sync(); err != nil {
		m.s.t.Error(err)
	}
	return time.Since(began)
}

// resident is a process's resident memory in MiB.
func resident(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	field := strings.Fields(string(b))
	if err != nil || len(field) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(field[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20)
}

var collection = regexp.MustCompile(`(?m)^gc \d+ @.* \d+->\d+->(\d+) MB,`)

// kept is the live heap in MiB after the process's last collection, which GODEBUG=gctrace=1
// prints.
func (w *watched) kept() float64 {
	f, err := os.Open(w.log)
	if err != nil {
		return w.heap
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, w.off, 1<<26))
	if err != nil {
		return w.heap
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	w.off += int64(len(b))
	if all := collection.FindAllSubmatch(b, -1); all != nil {
		w.heap, _ = strconv.ParseFloat(string(all[len(all)-1][1]), 64)
	}
	return w.heap
}

// postgresProcesses are the server's, the first of them its parent.
func (m *meter) postgresProcesses() []int {
	master := readPID(m.s.t, filepath.Join(m.s.dir, "postgres", "data", "postmaster.pid"))
	pids := []int{master}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", master, master))
	if err != nil {
		m.s.t.Error(err)
	}
	for _, word := range strings.Fields(string(b)) {
		pid, _ := strconv.Atoi(word)
		pids = append(pids, pid)
	}
	return pids
}

// portion is a process's part in memory, in MiB: its private part, and its share of the part that
// it has in common with other processes.
func portion(pid int) (private, shared float64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0 // it has ended
	}
	for line := range strings.Lines(string(b)) {
		field := strings.Fields(line)
		if len(field) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(field[1], 64)
		switch field[0] {
		case "Pss_Anon:":
			private = kib / 1024
		case "Pss_Shmem:":
			shared = kib / 1024
		}
	}
	return private, shared
}

// clockTick is USER_HZ, which is 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// used is the CPU time of a process, and of its children that have ended.
func used(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The fields after the command, which may itself hold blanks: state, ppid, …
	field := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var sum time.Duration
	for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime
		n, _ := strconv.Atoi(field[i])
		sum += time.Duration(n) * clockTick
	}
	return sum
}

// busy is the CPU time of the whole machine.
func busy() time.Duration {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	var sum time.Duration
	for i, word := range strings.Fields(line) {
		if n, err := strconv.Atoi(word); err == nil && i != 4 && i != 5 && i < 9 { // not idle, iowait, guests
			sum += time.Duration(n) * clockTick
		}
	}
	return sum
}

// read takes a reading.
func (m *meter) read() {
	ctx := context.Background()
	x := reading{at: time.Since(m.began), cpu: map[string]time.Duration{}, all: busy(), sizes: map[string]float64{}, tables: map[string]table{}}
	for _, w := range m.watched {
		x.cpu[w.name] = used(w.pid)
	}
	for _, pid := range m.postgresProcesses() {
		x.cpu["postgres"] += used(pid)
	}
	x.cpu["this bench"] = used(os.Getpid())
	rows, err := m.db.Query(ctx, `SELECT datname, pg_database_size(datname) / 1048576.0 FROM pg_database WHERE datname = 'berth' OR datname LIKE 'temporal%'`)
	if err == nil {
		var name string
		var size float64
		_, err = pgx.ForEachRow(rows, []any{&name, &size}, func() error { x.sizes[name] = size; return nil })
	}
	if err != nil {
		m.s.t.Error(err)
	}
	if err := m.readTables(ctx, m.db, x.tables); err != nil {
		m.s.t.Error(err)
	}
	theirs := map[string]table{}
	if err := m.readTables(ctx, m.others[0], theirs); err != nil {
		m.s.t.Error(err)
	}
	x.nodes = theirs["history_node"].live
	x.blobs = entries(filepath.Join(m.s.dir, "blobs"))
	x.state = entries(filepath.Join(m.s.dir, "machines"))
	m.readings = append(m.readings, x)
}

func (m *meter) readTables(ctx context.Context, d *pgxpool.Pool, into map[string]table) error {
	rows, err := d.Query(ctx, `
		SELECT relname, pg_total_relation_size(relid) / 1048576.0, n_live_tup, n_dead_tup, coalesce(seq_tup_read, 0), coalesce(idx_tup_fetch, 0)
		FROM pg_stat_user_tables`)
	if err != nil {
		return err
	}
	var name string
	var x table
	_, err = pgx.ForEachRow(rows, []any{&name, &x.size, &x.live, &x.dead, &x.scanned, &x.fetched}, func() error { into[name] = x; return nil })
	return err
}

// entries counts all that lies in a folder and below.
func entries(dir string) float64 {
	n := 0.0
	_ = filepath.WalkDir(dir, func(string, os.DirEntry, error) error { n++; return nil }) // files that have just gone are not counted
	return n
}

// names are the processes, in order.
func (m *meter) names() []string {
	var list []string
	for _, w := range m.watched {
		list = append(list, w.name)
	}
	return list
}

// within are the samples of a part of the run.
func (m *meter) within(from, to time.Duration) []sample {
	var list []sample
	for _, x := range m.samples {
		if x.at >= from && x.at < to {
			list = append(list, x)
		}
	}
	return list
}

// starts are the times from submit to start of the jobs submitted in a part of
// the run, by the database's clock, each with when that was.
func (m *meter) starts(from, to time.Duration) (list []call) {
	rows, err := m.db.Query(context.Background(), `
		SELECT submitted_at, extract(epoch FROM started_at - submitted_at)::float8
		FROM jobs
		WHERE submitted_at >= $1 AND submitted_at < $2 AND started_at IS NOT NULL`, m.began.Add(from), m.began.Add(to))
	if err == nil {
		var at time.Time
		var took float64
		_, err = pgx.ForEachRow(rows, []any{&at, &took}, func() error {
			list = append(list, call{"start", at.Sub(m.began), time.Duration(took * float64(time.Second))})
			return nil
		})
	}
	if err != nil {
		m.s.t.Error(err)
	}
	return list
}

func sum[K comparable](of map[K]float64) (total float64) {
	for v := range maps.Values(of) {
		total += v
	}
	return total
}
