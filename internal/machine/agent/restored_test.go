package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
	"berth/internal/control/watermark"
	"berth/internal/machine/agent"
	"berth/spec"
	"berth/wire"
)

// A method of backup: take makes one and returns its restore.
var backups = map[string]struct {
	own  bool // needs a server of its own
	take func(t *testing.T, server *dbtest.Server, url string) (putBack func())
}{
	"pg_restore": {false, func(t *testing.T, _ *dbtest.Server, url string) func() {
		file := filepath.Join(t.TempDir(), "dump")
		dbtest.Dump(t, url, file)
		return func() { dbtest.Restore(t, url, file) }
	}},
	"file copy": {true, func(_ *testing.T, server *dbtest.Server, _ string) func() {
		backup := server.CopyFiles()
		return func() { server.PutFilesBack(backup) }
	}},
	"point in time": {true, func(_ *testing.T, server *dbtest.Server, _ string) func() {
		backup, _ := server.BackUpForRecovery()
		return func() { server.Recover(backup) }
	}},
}

// away is an object store that does not answer.
type away struct{}

var errAway = errors.New("the store does not answer")

func (away) Names(context.Context, string) ([]string, error)        { return nil, errAway }
func (away) ReadAll(context.Context, string, int64) ([]byte, error) { return nil, errAway }
func (away) Create(ctx context.Context, _ string, _ []byte) error   { return errAway }
func (away) Delete(ctx context.Context, _ string) error             { return errAway }

// leads plays the leader of a process that starts: it recognises the database, as
// often as that leaps, and grants watermarks until the test calls stop.
func (s *site) leads(holder string, store watermark.Store) (stop func()) {
	s.t.Helper()
	lease := s.db.Leader.OpenLease(db.LeaseLeader, holder)
	keeper := &watermark.Keeper{DB: s.db, Store: store, Logger: slog.New(slog.DiscardHandler), Every: 20 * time.Millisecond}
	for range 5 {
		term, ok, err := lease.Acquire(s.t.Context(), time.Hour)
		if err != nil || !ok {
			s.t.Fatalf("no lead: %v, %v", ok, err)
		}
		s.term = term
		if _, leapt, err := s.db.Leader.Incarnate(s.t.Context()); err != nil {
			s.t.Fatal(err)
		} else if leapt {
			continue
		}
		tenure := keeper.Open(term)
		if err := tenure.Begin(s.t.Context()); errors.Is(err, watermark.ErrLeapt) {
			continue
		} else if err != nil {
			s.t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() { _ = tenure.Run(ctx) })
		done.Go(func() { _ = tenure.Watch(ctx) })
		stop = func() {
			cancel()
			done.Wait()
			if err := lease.Close(context.Background()); err != nil {
				s.t.Error(err)
			}
		}
		return stop
	}
	s.t.Fatal("the database leaps each time that it is led")
	return nil
}

// granted is the number of the newest watermark.
func (s *site) granted() (n int64) {
	s.t.Helper()
	err := s.db.Pool().QueryRow(s.t.Context(), `SELECT coalesce(max(w.granted), 0) FROM cluster c JOIN watermark_branches w USING (branch)`).Scan(&n)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// ages waits until a watermark was granted that the machines have received.
func (s *site) ages(machines ...*machine) {
	s.t.Helper()
	n := s.granted()
	s.until("watermarks are granted", func() bool { return s.granted() > n+1 })
	for _, m := range machines {
		s.until("the machine hears of it", func() bool {
			out, _ := exec.Command("cat", filepath.Join(m.cfg.StateDir, "watermark.json")).Output()
			return len(out) > 0 && !strings.Contains(string(out), `"number":0`) && numberIn(string(out)) > n
		})
	}
}

func numberIn(file string) (n int64) {
	_, rest, _ := strings.Cut(file, `"number":`)
	for _, c := range rest {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

func TestF15ABackupThatWasPutBackIsNoticed(t *testing.T) {
	t.Parallel()
	for method, backup := range backups {
		for _, store := range []string{"there", "restored too", "absent"} {
			t.Run(method+", store "+store, func(t *testing.T) {
				t.Parallel()
				var server *dbtest.Server
				var url string
				if backup.own {
					server = dbtest.NewServer(t)
					url = server.URL()
				} else {
					url = dbtest.URL(t)
				}
				putBack(t, url, store, func() func() { return backup.take(t, server, url) })
			})
		}
	}
}

// putBack lives through a restore: containers that run before the backup and
// after it, jobs that wait, jobs that end, and at_most_one work.
func putBack(t *testing.T, url, store string, take func() (putBack func())) {
	s := newSiteOn(t, url)
	s.lets()
	m1, m2 := s.machine("m1"), s.machine("m2")
	stop := s.leads("first", s.blobs)

	kept := s.submit(nil, "sleep", "1h")
	keptReq, _ := m1.run(kept)
	m1.running(keptReq)
	ends := s.submit(nil, "sleep", "1h")
	endsReq, _ := m2.run(ends)
	m2.running(endsReq)
	waits := s.submit(nil, "sleep", "1h")
	once := s.submit(func(j *spec.Job) { j.Execution = spec.AtMostOne }, "sleep", "1h")

	s.until("the rows know that they run", func() bool {
		var n int
		err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM allocations WHERE phase = 'running'`).Scan(&n)
		return err == nil && n == 2
	})
	s.gate.closed.Store(true)
	stop()
	back := take()
	s.db.Pool().Reset()
	blobs := filepath.Join(t.TempDir(), "blobs")
	s.copyBlobs(s.blobDir, blobs)
	stop = s.leads("second", s.blobs)
	s.gate.closed.Store(false)

	// After the backup: one ends, one that waited runs, one is new.
	m2.runtime.Exit(berth.ContainerName(ends, 0, 1), 0)
	s.until("the one has ended", func() bool {
		r, err := s.db.Attempts.Settle(t.Context(), ends, 1)
		return err == nil && r.Next == berth.Succeeded
	})
	waitsReq, _ := m1.runOn(1, waits)
	m1.running(waitsReq)
	fresh := s.submit(nil, "sleep", "1h")
	freshReq, _ := m2.runOn(1, fresh)
	m2.running(freshReq)
	s.ages(m1, m2)
	before := map[*machine]map[berth.JobID]string{m1: m1.ids(keptReq, waitsReq), m2: m2.ids(freshReq)}
	highest, term := max(waitsReq.Alloc, freshReq.Alloc), s.term.Epoch

	s.gate.closed.Store(true) // the control plane is stopped for the restore
	stop()
	back()
	var outside watermark.Store = s.blobs
	switch store {
	case "there":
	case "restored too":
		s.copyBlobs(blobs, s.blobDir)
	case "absent":
		outside = away{}
	}
	s.db.Pool().Reset() // its connections are broken
	s.until("the database is back", func() bool { return s.db.Ping(t.Context()) == nil })
	stop = s.leads("third", outside)
	defer func() { stop() }()
	s.gate.closed.Store(false)

	for _, m := range []*machine{m1, m2} {
		m.until("it takes no work", func() bool {
			got, err := s.db.Machines.Get(t.Context(), "", m.id)
			return err == nil && got.State == berth.MachineJoining && strings.Contains(got.Reason, "does not know")
		})
	}
	if j := s.job(once); !j.Held {
		t.Error("live at_most_one work is not held")
	}
	for id, held := range map[berth.JobID]bool{kept: false, waits: false} {
		if j := s.job(id); j.Held != held {
			t.Errorf("job %s is held: %v", id, j.Held)
		}
	}
	if j := s.job(kept); j.Status != berth.Running || j.Attempt != 1 {
		t.Errorf("the job that runs since before the backup is %s, attempt %d", j.Status, j.Attempt)
	}
	for m, was := range before {
		for job, id := range was {
			if c, err := m.runtime.Inspect(t.Context(), berth.ContainerName(job, 0, 1)); err != nil || c.ID != id || c.State != node.ContainerRunning {
				t.Errorf("container of job %s on %s is %+v, %v; it was %s", job, m.id, c, err, id)
			}
		}
	}
	// The row that says that a container runs catches up with its machine.
	s.until("the attempt that had ended is over", func() bool {
		r, err := s.db.Attempts.Settle(t.Context(), ends, 1)
		return err == nil && !r.NotReady
	})

	// Jobs that the database has forgotten end, and the machines take work under new ids.
	stop()
	stop = s.leads("fourth", outside)
	if s.term.Epoch < term+1_000_000 {
		t.Errorf("term %d follows %d", s.term.Epoch, term)
	}
	m1.runtime.Exit(berth.ContainerName(waits, 0, 1), 0)
	m2.runtime.Exit(berth.ContainerName(fresh, 0, 1), 0)
	for _, m := range []*machine{m1, m2} {
		m.until("it takes work again", func() bool { return s.machineState(m.id) == berth.MachineReady })
	}
	req, w := m2.runOn(1, waits)
	if req.Alloc < highest+1_000_000 {
		t.Errorf("allocation %d follows %d", req.Alloc, highest)
	}
	m2.running(req)
	m2.runtime.Exit(berth.ContainerName(waits, 0, 1), 0)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
}

// A server that cannot prove the restore goes on with the restored rows, and their
// orders are not obeyed.
func TestF15OrdersOfAnOlderDatabaseAreNotObeyed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lets()
	stop := s.leads("leader", s.blobs)
	m := s.machine("m1")
	id := s.submit(nil, "trap-term", "0")
	req := m.place(id)
	m.running(req)
	s.ages(m)
	stop() // or it would grant the next watermark
	exec := func(sql string) {
		t.Helper()
		if _, err := s.db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`
		WITH old AS (INSERT INTO watermark_branches (branch, granted, pending) VALUES ('older', 1, 1))
		UPDATE cluster SET branch = 'older', watermark_key = ''`)
	m.until("it refuses what it hears", func() bool { return strings.Contains(m.logs.text(), "answer of a restored database refused") })
	s.cancel(id)
	refused := strings.Count(m.logs.text(), "restored database refused")
	m.until("it was told to stop, and refused", func() bool { return strings.Count(m.logs.text(), "restored database refused") > refused+2 })
	if c, err := m.container(req); err != nil || c.State != node.ContainerRunning {
		t.Errorf("the container is %+v, %v", c, err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	refused = strings.Count(m.logs.text(), "restored database refused")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx, m.cfg) }()
	m.stop = sync.OnceValue(func() error { cancel(); return <-done })
	defer func() {
		if err := m.stop(); err != nil {
			t.Error(err)
		}
	}()
	m.until("what it heard outlives its process", func() bool { return strings.Count(m.logs.text(), "restored database refused") > refused+2 })
	if c, err := m.container(req); err != nil || c.State != node.ContainerRunning {
		t.Errorf("after a restart the container is %+v, %v", c, err)
	}
	exec(`UPDATE cluster SET branch = (SELECT branch FROM watermark_branches ORDER BY granted DESC LIMIT 1)`)
	m.until("the order is obeyed in the end", func() bool { c, err := m.container(req); return err != nil || c.State != node.ContainerRunning })
}

// lets gives the lead that newSite has taken back.
func (s *site) lets() {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), `UPDATE leases SET expires_at = now() - interval '1 s'`); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) copyBlobs(from, to string) {
	s.t.Helper()
	if out, err := exec.Command("sh", "-c", `rm -rf "$2" && cp -a "$1" "$2"`, "sh", from, to).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// ids are the containers of these ranks.
func (m *machine) ids(reqs ...wire.RunRequest) map[berth.JobID]string {
	m.s.t.Helper()
	ids := map[berth.JobID]string{}
	for _, req := range reqs {
		c, err := m.container(req)
		if err != nil {
			m.s.t.Fatal(err)
		}
		ids[req.Job] = c.ID
	}
	return ids
}

var _ watermark.Store = (*blob.Store)(nil)
