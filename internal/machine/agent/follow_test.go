package agent_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// Somebody follows a job's log while its agent is replaced and its machine is
// then lost: each line of each attempt comes once and in order, and the stream
// ends when the job does.
func TestAFollowedLogSurvivesAgentAndMachine(t *testing.T) {
	t.Parallel()
	const token, lines = "berth_0123456789ab_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 300
	s := newSite(t)
	if _, err := s.db.Tokens.Ensure(t.Context(), token,
		spec.NewToken{Name: "root", Tenant: "default", Role: spec.RoleAdmin}, "start:test"); err != nil {
		t.Fatal(err)
	}
	first, second := s.machine("m1"), s.machine("m2")
	id := s.submit(nil, "do", fmt.Sprintf("lines %d 2ms", lines), "trap-term 0")

	var mu sync.Mutex
	got := map[int][]string{} // by attempt
	last := 0
	count := func(attempt int) int {
		mu.Lock()
		defer mu.Unlock()
		return len(got[attempt])
	}
	c := client.New(s.url, token)
	defer c.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- c.Logs(t.Context(), id, client.LogsQuery{Follow: true}, func(l wire.LogLine) error {
			mu.Lock()
			defer mu.Unlock()
			if l.Attempt < last {
				t.Errorf("a line of attempt %d comes after attempt %d began", l.Attempt, last)
			}
			last = l.Attempt
			got[l.Attempt] = append(got[l.Attempt], l.Text)
			return nil
		})
	}()

	first.run(id)
	s.until("some lines have come", func() bool { return count(1) > 50 })
	first.restart()
	s.until("all lines have come", func() bool { return count(1) > lines })
	if err := first.stop(); err != nil { // for good: no agent of the machine calls again
		t.Fatal(err)
	}
	for _, sql := range []string{
		`UPDATE allocations SET state = 'orphaned', orphaned_at = now(), orders = orders || '{"kill": true}'`,
		`UPDATE machines SET state = 'lost' WHERE id = 'm1'`,
	} {
		if _, err := s.db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if j := s.settle(id); j.Status != berth.Retrying {
		t.Fatalf("job is %s", j.Status)
	}
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE jobs SET eligible_at = now() WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	_, w := second.run(id)
	s.until("all lines of the second attempt have come", func() bool { return count(2) > lines })
	s.cancel(id)
	w.exit()
	s.settle(id)
	if err := <-ended; err != nil {
		t.Fatalf("the stream ended with %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	want := make([]string, 0, lines+2)
	for i := range lines {
		want = append(want, fmt.Sprintf("line %d", i+1))
	}
	want = append(want, "ready")
	for _, attempt := range []int{1, 2} {
		lines := got[attempt]
		if len(lines) > len(want) && attempt == 2 {
			lines = lines[:len(want)] // lines printed after the stop signal do not count
		}
		if !slices.Equal(lines, want) {
			t.Errorf("attempt %d: %d lines came, %q to %q", attempt, len(got[attempt]), got[attempt][0], got[attempt][len(got[attempt])-1])
		}
	}
}
