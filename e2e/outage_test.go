package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/e2e/faultproxy"
	"berth/internal/control/controlplane"
	"berth/spec"
)

// The database and Temporal are taken away in every possible way; containers run on, and
// acknowledged changes stay. The claims share a stack: they are about the same containers.
func TestF13F14F16F17F18OutagesStopNothing(t *testing.T) {
	t.Parallel()
	var link *faultproxy.Proxy
	s := startWith(t, quick, func(c *controlplane.Config) {
		link = linkTo(t, c.DatabaseURL)
		u, err := url.Parse(c.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		u.Host = link.Address()
		c.DatabaseURL, c.DatabaseConns = u.String(), 6
	}, "m0")
	o := &outage{stack: s, link: link, lasting: map[berth.JobID]time.Time{}}
	for i := range 3 {
		id := s.submit(t, jobSpec(fmt.Sprintf("lasts-%d", i), "trap-term", "0"))
		s.becomes(t, id, berth.Running)
		o.lasting[id] = *s.job(t, id).StartedAt
	}
	for _, claim := range []struct {
		says string
		test func(*testing.T)
	}{
		{"F13 a database that is away: 503, and what was accepted is there after", o.databaseAway},
		{"F14 a commit whose reply is lost has one effect", o.replyLost},
		{"F16 a slow and crowded database costs nobody his lease", o.databaseSlow},
		{"F17 Temporal away", o.temporalAway},
		{"F18 Temporal's database lost", o.temporalLost},
	} {
		if !t.Run(claim.says, claim.test) {
			return
		}
		o.wantUntouched(t)
	}
	for id := range o.lasting {
		if _, err := s.api.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if job := s.ends(t, id, berth.Canceled); len(job.Attempts) != 1 {
			t.Errorf("attempts are %+v", job.Attempts)
		}
	}
}

// linkTo is a link to the database that can be damaged.
func linkTo(t *testing.T, database string) *faultproxy.Proxy {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	link, err := faultproxy.Start(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	return link
}

type outage struct {
	*stack
	link    *faultproxy.Proxy
	lasting map[berth.JobID]time.Time // jobs that run all the time, and when they began
}

// wantUntouched checks that the lasting jobs run in the containers that they
// began in.
func (o *outage) wantUntouched(t *testing.T) {
	t.Helper()
	for id, began := range o.lasting {
		job := o.job(t, id)
		if job.Status != berth.Running || len(job.Attempts) != 1 || !job.StartedAt.Equal(began) || o.containers(t, id) != 1 {
			t.Errorf("job %s is %s, began %s, attempts %+v", id, job.Status, job.StartedAt, job.Attempts)
		}
	}
}

// call is one call as curl makes it: no retries.
func (o *outage) call(t *testing.T, method, path string, body any) (status int, header http.Header) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, o.url+path, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+o.token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header
}

func (o *outage) databaseAway(t *testing.T) {
	var accepted []berth.JobID
	for range 5 {
		accepted = append(accepted, o.submit(t, jobSpec("accepted", "exit", "0")))
	}
	o.link.Drop()
	for _, call := range []struct{ method, path string }{{"POST", "/v1/jobs"}, {"GET", "/v1/machines"}, {"GET", "/v1/jobs"}} {
		status, header := o.call(t, call.method, call.path, jobSpec("refused", "exit", "0"))
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
			t.Errorf("%s %s is answered %d, Retry-After %q", call.method, call.path, status, header.Get("Retry-After"))
		}
	}
	for id := range o.lasting {
		if n := o.containers(t, id); n != 1 {
			t.Errorf("%d containers of job %s run meanwhile", n, id)
		}
	}
	o.link.Heal()
	for _, id := range append(accepted, o.submit(t, jobSpec("after", "exit", "0"))) {
		if job := o.ends(t, id, berth.Succeeded); len(job.Attempts) != 1 {
			t.Errorf("job %s took %d attempts", id, len(job.Attempts))
		}
	}
}

// A user who gets the answer 503 submits again with the same key. Some of the commits that lose
// their reply belong to other callers, to the leader, to steps or to reports: these too must have
// one effect.
func (o *outage) replyLost(t *testing.T) {
	cut := 0
	seen := map[berth.JobID]bool{}
	for i := range 25 {
		// In turn: of the submit itself, of steps and reports, of the leader's batches.
		match := []string{"f14-" + strconv.Itoa(i), "commit", "COMMIT"}[i%3]
		lost := o.link.CutReply([]byte(match))
		submit := func() (id berth.JobID) {
			until(t, "submit "+strconv.Itoa(i)+" is answered", func() bool {
				job, _, err := o.api.Submit(t.Context(), jobSpec("f14", "exit", "0"), "f14-"+strconv.Itoa(i))
				if err != nil && berth.CodeOf(err) != berth.CodeUnavailable {
					t.Fatalf("submit %d: %v", i, err)
				}
				id = job.ID
				return err == nil
			})
			return id
		}
		id := submit()
		seen[id] = true
		if again := submit(); again != id {
			t.Errorf("submitted again it is job %s, not %s", again, id)
		}
		select {
		case <-lost:
			cut++
		default:
		}
	}
	o.link.Heal()
	for id := range seen {
		if job := o.ends(t, id, berth.Succeeded); len(job.Attempts) != 1 {
			t.Errorf("job %s took %d attempts: %+v", id, len(job.Attempts), job.Attempts)
		}
	}
	if n := value[int](t, o.database, `SELECT count(*) FROM jobs WHERE name = 'f14'`); n != 25 || len(seen) != n {
		t.Errorf("25 keys made %d jobs, %d told", n, len(seen))
	}
	if cut < 5 {
		t.Errorf("%d replies were lost: this proves little", cut)
	}
	t.Logf("%d replies lost", cut)
}

// databaseSlow sends users to a slow database, again if the lead changed meanwhile: a
// crowded test machine may delay a renewal, but not in every try.
func (o *outage) databaseSlow(t *testing.T) {
	for try := 1; !o.keepsLead(t); try++ {
		if try == 3 {
			t.Fatalf("the lead was lost in each of %d tries", try)
		}
	}
	if n := value[int](t, o.database, `SELECT count(*) FROM machines WHERE state <> 'ready' OR state_at > now() - interval '10 s' AND reason = 'silent'`); n != 0 {
		t.Errorf("%d machines were taken for dead", n)
	}
}

// keepsLead sends users to a slow database once. It returns false if the lead changed
// although the test machine was not held up.
func (o *outage) keepsLead(t *testing.T) bool {
	term := func() int64 { return value[int64](t, o.database, `SELECT epoch FROM leases WHERE name = 'leader'`) }
	before := term()
	slowest := o.probe(t)
	o.link.Delay(300 * time.Millisecond)
	defer o.link.Heal()
	var users sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	for range 150 { // far more than there are connections
		users.Go(func() {
			status, header := o.call(t, "GET", "/v1/jobs", nil)
			mu.Lock()
			defer mu.Unlock()
			answers[status]++
			if status != http.StatusOK && (status != http.StatusServiceUnavailable || header.Get("Retry-After") == "") {
				t.Errorf("a user is answered %d", status)
			}
		})
	}
	users.Wait()
	if answers[http.StatusOK] == 0 {
		t.Error("nobody was served")
	}
	t.Logf("answers: %v", answers)
	now, took := term(), slowest()
	if now != before {
		t.Logf("the lead went from term %d to %d; this machine itself was held up for %s at a stretch", before, now, took)
	}
	return now == before || took > time.Second
}

// probe queries the database again and again, past the link, until the returned function is
// called, which returns the slowest answer's time: a long time means that the machine under the
// test is slow.
func (o *outage) probe(t *testing.T) (slowest func() time.Duration) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), o.database)
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		defer conn.Close(context.Background())
		var worst time.Duration
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-stop:
				done <- worst
				return
			case <-tick.C:
			}
			if _, err := conn.Exec(context.Background(), `SELECT 1`); err != nil {
				t.Errorf("ask the database itself: %v", err)
				<-stop
				done <- worst
				return
			}
			worst = max(worst, time.Since(last)-50*time.Millisecond)
		}
	}()
	slowest = sync.OnceValue(func() time.Duration {
		close(stop)
		return <-done
	})
	t.Cleanup(func() { slowest() })
	return slowest
}

func (o *outage) temporalAway(t *testing.T) {
	if err := o.server.Stop(); err != nil {
		t.Fatal(err)
	}
	accepted, canceled := o.submit(t, jobSpec("accepted", "exit", "0")), o.submit(t, jobSpec("canceled", "exit", "0"))
	if job, err := o.api.Cancel(t.Context(), canceled); err != nil || job.Status != berth.Canceled {
		t.Errorf("canceled meanwhile it is %s, %v", job.Status, err)
	}
	until(t, "the leader has stopped placing", func() bool {
		return value[int](t, o.database, `SELECT count(*) FROM jobs WHERE state = 'submitted'`) == 1
	})
	o.wantUntouched(t)
	o.restartTemporal(t)
	o.ends(t, accepted, berth.Succeeded)
}

func (o *outage) temporalLost(t *testing.T) {
	x := o.schedule(t, everySecond("lasts", spec.OverlapSkip, "trap-term", "0"))
	o.firesAgain(t, x.Name, 2)
	if err := o.server.Stop(); err != nil {
		t.Fatal(err)
	}
	accepted := o.submit(t, jobSpec("accepted", "exit", "0"))
	for _, name := range []string{"temporal", "temporal_visibility"} {
		execute(t, o.database, "DROP DATABASE "+o.prefix(t)+name+" WITH (FORCE)")
	}
	o.restartTemporal(t)
	o.ends(t, accepted, berth.Succeeded)
	for id := range o.lasting {
		until(t, "the workflow of a job that runs is there again", func() bool {
			_, err := o.temporal.DescribeWorkflowExecution(t.Context(), berth.JobWorkflowID(id), "")
			return err == nil
		})
	}
	o.firesAgain(t, x.Name, 2)
	o.drop(t, x)
	o.endAll(t, x.Name)
}

// value asks the database itself, past the link.
func value[T any](t testing.TB, database, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var v T
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	return v
}

func execute(t testing.TB, database, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}
