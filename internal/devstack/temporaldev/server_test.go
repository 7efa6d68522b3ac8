package temporaldev_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	sdktemporal "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"berth/internal/devstack/postgres"
	"berth/internal/devstack/temporaldev"
)

// database starts a PostgreSQL that ends with the test.
func database(t *testing.T) *postgres.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-temporal-test-") // t.TempDir is closed to the server's user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := postgres.Start(t.Context(), postgres.Options{Dir: dir, BinDir: os.Getenv("PG_BINDIR"), Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

func start(t *testing.T, c *postgres.Cluster) *temporaldev.Server {
	t.Helper()
	s, err := temporaldev.Start(t.Context(), temporaldev.Options{DatabaseURL: c.URL("postgres"), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

func dial(t *testing.T, s *temporaldev.Server) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{
		HostPort: s.Address(), Namespace: temporaldev.Namespace,
		Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Greet waits on a timer and then asks an activity.
func Greet(ctx workflow.Context, name string) (string, error) {
	if err := workflow.Sleep(ctx, 10*time.Millisecond); err != nil {
		return "", err
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	var greeting string
	err := workflow.ExecuteActivity(ctx, Hello, name).Get(ctx, &greeting)
	return greeting, err
}

func Hello(_ context.Context, name string) (string, error) { return "hello " + name, nil }

func work(t *testing.T, c client.Client) worker.Worker {
	t.Helper()
	w := worker.New(c, "greetings", worker.Options{})
	w.RegisterWorkflow(Greet)
	w.RegisterActivity(Hello)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

func greet(t *testing.T, c client.Client, id string) string {
	t.Helper()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: id, TaskQueue: "greetings",
		TypedSearchAttributes: sdktemporal.NewSearchAttributes(
			sdktemporal.NewSearchAttributeKeyKeyword("Tenant").ValueSet("research"),
			sdktemporal.NewSearchAttributeKeyKeyword("Kind").ValueSet("job"),
		),
	}, Greet, "world")
	if err != nil {
		t.Fatal(err)
	}
	return result(t, run)
}

func result(t *testing.T, run client.WorkflowRun) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var got string
	if err := run.Get(ctx, &got); err != nil {
		t.Fatalf("workflow %s: %v", run.GetID(), err)
	}
	return got
}

// The servers of this package share process-wide metrics registries, so its
// tests run one after the other.

func TestResultsSurviveARestart(t *testing.T) {
	pg := database(t)
	s := start(t, pg)
	c := dial(t, s)
	w := work(t, c)
	if got := greet(t, c, "first"); got != "hello world" {
		t.Errorf("got %q", got)
	}
	if got := kinds(t, c); got != 1 {
		t.Errorf("%d workflows of kind job are listed, want 1", got)
	}

	// Each has a timer of 10 ms. With the server's default each takes over 1 s,
	// however quick the machine; on a busy machine some do anyway.
	quickest := time.Hour
	for i := 0; i < 30 && quickest >= time.Second; i++ {
		id := fmt.Sprint("timed-", i)
		greet(t, c, id)
		quickest = min(quickest, timer(t, c, id))
	}
	if quickest >= time.Second {
		t.Errorf("the quickest of thirty short timers took %s", quickest)
	}
	ofNumber := func(name string) bool { return strings.HasPrefix(name, "by_int_") } // which one, Temporal chooses
	if list := indexes(t, pg); slices.ContainsFunc(list, ofNumber) {
		t.Errorf("there is an index of what nobody asks for: %v", list)
	}
	if _, err := c.OperatorService().AddSearchAttributes(t.Context(), &operatorservice.AddSearchAttributesRequest{
		Namespace: temporaldev.Namespace, SearchAttributes: map[string]enumspb.IndexedValueType{"Shift": enumspb.INDEXED_VALUE_TYPE_INT},
	}); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	c.Close()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("second stop: %v", err)
	}

	again := start(t, pg)
	c = dial(t, again)
	defer c.Close()
	if got := result(t, c.GetWorkflow(t.Context(), "first", "")); got != "hello world" {
		t.Errorf("after a restart got %q", got)
	}
	w = work(t, c)
	defer w.Stop()
	if got := greet(t, c, "second"); got != "hello world" {
		t.Errorf("got %q", got)
	}
	assertUI(t, again.UIURL())

	// Only searched columns are indexed, including columns in use only since the last start, and
	// a newer schema finds all other indexes restored.
	kept := indexes(t, pg)
	for _, want := range []string{"default_idx", "by_workflow_id", "by_status", "by_temporal_namespace_division"} {
		if !slices.Contains(kept, want) {
			t.Errorf("index %s is gone: there are %v", want, kept)
		}
	}
	if !slices.ContainsFunc(kept, ofNumber) {
		t.Errorf("the index of an attribute that was added did not come back: there are %v", kept)
	}
	keywords := slices.DeleteFunc(slices.Clone(kept), func(name string) bool { return !strings.HasPrefix(name, "by_keyword_") })
	if len(keywords) != 5 || len(kept) > 15 {
		t.Errorf("there are indexes %v, want five of keywords", kept)
	}
	if err := again.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := temporaldev.RestoreIndexes(t.Context(), pg.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	if all := indexes(t, pg); len(all) < 60 || !slices.Contains(all, "by_keyword_list_03") {
		t.Errorf("of the indexes that were dropped are back %v", all)
	}
}

// indexes returns the indexes of the visibility store's one table.
func indexes(t *testing.T, pg *postgres.Cluster) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pg.URL("temporal_visibility"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `SELECT indexname::text FROM pg_indexes WHERE tablename = 'executions_visibility' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// timer is how long a workflow's one timer took, as its history has it.
func timer(t *testing.T, c client.Client, id string) time.Duration {
	t.Helper()
	var started, fired time.Time
	events := c.GetWorkflowHistory(t.Context(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			t.Fatal(err)
		}
		switch e.GetEventType() {
		case enumspb.EVENT_TYPE_TIMER_STARTED:
			started = e.GetEventTime().AsTime()
		case enumspb.EVENT_TYPE_TIMER_FIRED:
			fired = e.GetEventTime().AsTime()
		}
	}
	if started.IsZero() || fired.IsZero() {
		t.Fatalf("workflow %s has no timer that fired", id)
	}
	return fired.Sub(started)
}

// kinds waits until visibility lists a job and returns how many.
func kinds(t *testing.T, c client.Client) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := c.CountWorkflow(ctx, countRequest("Kind = 'job' AND Tenant = 'research'"))
		if err != nil {
			t.Fatal(err)
		}
		if n.Count > 0 {
			return n.Count
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0
		}
	}
}

func assertUI(t *testing.T, url string) {
	t.Helper()
	for path, want := range map[string]string{
		"/namespaces/default/workflows": "<!doctype html",
		"/api/v1/settings":              `"DisableNewsFetch":true`,
		"/api/v1/namespaces/default":    `NAMESPACE_STATE_REGISTERED`,
	} {
		resp := get(t, url+path)
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(strings.ToLower(string(body)), strings.ToLower(want)) {
			t.Errorf("%s: status %d, %v, want %s in\n%.600s", path, resp.StatusCode, err, want, body)
		}
	}
}

// get calls the UI, which begins to listen some time after the server has started.
func get(t *testing.T, url string) *http.Response {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get(url)
		if err == nil {
			return resp
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestServerOutlivesACrashOfPostgres(t *testing.T) {
	pg := database(t)
	s := start(t, pg)
	c := dial(t, s)
	defer c.Close()
	w := work(t, c)
	defer w.Stop()
	greet(t, c, "before")
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "during", TaskQueue: "greetings"}, Greet, "world")
	if err != nil {
		t.Fatal(err)
	}
	pg.Kill()
	if err := pg.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := result(t, run); got != "hello world" {
		t.Errorf("got %q", got)
	}
}

func TestHalfMadeSchemaIsMadeAgain(t *testing.T) {
	pg := database(t)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, statement := range []string{
		"CREATE DATABASE temporal",
		"COMMENT ON DATABASE temporal IS 'berth: first schema set-up is not finished'",
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	half, err := pgx.Connect(t.Context(), pg.URL("temporal"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := half.Exec(t.Context(), "CREATE TABLE executions (half int)"); err != nil {
		t.Fatal(err)
	}
	_ = half.Close(t.Context())

	s, err := temporaldev.Start(t.Context(), temporaldev.Options{DatabaseURL: pg.URL("postgres"), NoUI: true})
	if err != nil {
		t.Fatal(err)
	}
	if s.UIURL() != "" {
		t.Errorf("got UI %s without asking", s.UIURL())
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	var marked int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE shobj_description(oid, 'pg_database') LIKE 'berth: first schema%'").Scan(&marked); err != nil {
		t.Fatal(err)
	}
	if marked != 0 {
		t.Errorf("%d databases are still marked as half-made", marked)
	}
}

func TestTakenPortsAreNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for want, opts := range map[string]temporaldev.Options{
		fmt.Sprintf("temporal port %d on 127.0.0.1 is taken", port):    {FrontendPort: port},
		fmt.Sprintf("temporal UI port %d on 127.0.0.1 is taken", port): {UIPort: port},
	} {
		opts.DatabaseURL = "postgres://berth@127.0.0.1:1/postgres"
		if _, err := temporaldev.Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func countRequest(query string) *workflowservice.CountWorkflowExecutionsRequest {
	return &workflowservice.CountWorkflowExecutionsRequest{Query: query}
}
