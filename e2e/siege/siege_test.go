package siege_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/e2e/rig"
	"berth/spec"
)

// Expectations of every attack.
const (
	p99OverQuiet = 2.0
	p99AtMost    = 300 * time.Millisecond
	growthAtMost = 150.0 // MiB
	stuckAtMost  = 4     // one in so many calls may be answered only after the attack
	healWithin   = 5 * time.Second
	healWatch    = 8 * time.Second       // for which the stack is looked at after an attack
	soonWatch    = time.Second           // the same in the small form
	usualCall    = 15 * time.Millisecond // up to which the small form does not lengthen attacks
)

// Sizes of the logs that are read.
const (
	tailLines = 15_000 // fewer than an engine in memory keeps of a log
	lineBytes = 4096
)

// siege is a stack under attack.
type siege struct {
	*rig.Stack
	t     testing.TB
	good  *goodCaller
	long  berth.JobID   // with a long log
	talks berth.JobID   // that writes a line a second
	evil  string        // token of the tenant that attacks
	look  string        // its viewer's
	many  []string      // many tokens of another one
	rest  rest          // the good caller without an attack
	usual time.Duration // its p50
	share float64
	watch time.Duration // after each attack

	stretch float64 // factor on the length of attacks
}

func newSiege(t testing.TB, folder string, lines int, share float64, watch time.Duration) *siege {
	t.Helper()
	s := &siege{Stack: start(t, folder), t: t, share: share, watch: watch, stretch: 1}
	const tenant berth.TenantID = "hostile"
	s.evil, s.look = token(t, s.Stack, tenant, spec.RoleUser), token(t, s.Stack, tenant, spec.RoleViewer)
	for range 50 { // one token may make 200 calls a second
		s.many = append(s.many, token(t, s.Stack, "flooding", spec.RoleUser))
	}
	s.good = newGoodCaller(t, s.Stack)
	s.long = s.submit("long-log", "spam", fmt.Sprint(lines), fmt.Sprint(lineBytes))
	s.talks = s.submit("talking", "lines", "100000", "1s")
	s.submitLong(16)
	for quarter := range 4 { // Patience bounds each
		s.awaitLog(int64(quarter+1) * int64(lines) * lineBytes / 4)
	}
	return s
}

// awaitLog waits until so many bytes of the long log are stored.
func (s *siege) awaitLog(bytes int64) {
	s.t.Helper()
	if err := rig.Await(s.t.Context(), rig.Patience, func(ctx context.Context) error {
		var stored int64
		err := s.DB.QueryRow(ctx, `SELECT coalesce(sum(bytes), 0) FROM log_chunks WHERE job = $1`, s.long).Scan(&stored)
		if err == nil && stored < bytes {
			err = fmt.Errorf("%d bytes of the long log are stored", stored)
		}
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}

// submit submits a job of the tenant that attacks.
func (s *siege) submit(name string, command ...string) berth.JobID {
	s.t.Helper()
	j := jobSpec(name, command...)
	a := rig.NewCaller(s.URL, s.evil, agentsAddress).Call(s.t.Context(), "POST", "/v1/jobs", nil, mustJSON(s.t, j))
	id := strings.SplitN(string(a.Body), `"id":"`, 2)
	if !a.Good() || len(id) < 2 {
		s.t.Fatalf("submit %s: status %d, %v", name, a.Status, a.Err)
	}
	return berth.JobID(id[1][:strings.IndexByte(id[1], '"')])
}

// submitLong submits jobs with as long a list entry as a job may have, 19 KB.
func (s *siege) submitLong(n int) {
	s.t.Helper()
	j := jobSpec("long-entry", "exit", "0")
	j.Labels = map[string]string{}
	for i := range spec.MaxLabels {
		j.Labels[fmt.Sprint("label-", i)] = strings.Repeat("x", 256)
	}
	for range n {
		if a := rig.NewCaller(s.URL, s.evil, agentsAddress).Call(s.t.Context(), "POST", "/v1/jobs", nil, mustJSON(s.t, j)); !a.Good() {
			s.t.Fatalf("submit a job with a long entry: status %d, %v", a.Status, a.Err)
		}
	}
}

// plan returns an attack of this kind and size from an address.
func (s *siege) plan(kind, from string, count, size int, lasts time.Duration) plan {
	lasts = time.Duration(float64(lasts) * s.stretch)
	p := plan{Kind: kind, Address: strings.TrimPrefix(s.URL, "http://"), From: from, Tokens: []string{s.evil}, Count: count, Bytes: size, For: lasts}
	switch kind {
	case silent, unread:
		p.Tokens = []string{s.look}
	case tails:
		p.Job = string(s.long)
	case followers:
		p.Job = string(s.talks)
	case submits:
		p.Tokens, p.Body = s.many, mustJSON(s.t, jobSpec("flood", "exit", "0"))
	}
	return p
}

// rest holds the good caller's calls without an attack, of all quiet phases.
type rest struct {
	calls []rig.Probed
	took  []time.Duration
	lag   []time.Duration // of the good caller's canary
}

// p99 returns the p99 of the calls.
func (r rest) p99() time.Duration { return rig.Quantile(r.took, 0.99) }

// finding holds the results of an attack.
type finding struct {
	plan
	damage   damage
	calls    int
	bad      int
	firstBad string
	took     []time.Duration // of the good calls, in the order in which they were due
	p99      time.Duration
	lag      []time.Duration // of the good caller's canary
	kinds    string          // p50 and p99 of the good calls by kind
	bounded  bool            // a control group bounds the attacker's CPU share
	slowest  string          // of the good calls, with when they were due
	early    int             // good calls of the first half of the attack
	stuck    int             // of them answered only after its end
	growth   float64         // MiB
	lease    time.Duration
	silent   int
	heals    time.Duration // until the last bad or slow call, or silent machine, after the end of the attack
	errs     []error
}

// measureQuiet makes good calls alone and adds them to the earlier ones at rest.
func (s *siege) measureQuiet(d time.Duration) {
	s.t.Helper()
	from := time.Now()
	rig.SleepUntil(s.t.Context(), from.Add(d))
	to := time.Now()
	if err := s.good.Await(s.t.Context(), to); err != nil {
		s.t.Fatal(err)
	}
	calls := s.good.Between(from, to)
	took, bad, first := sum(calls)
	if bad > 0 || len(took) == 0 {
		s.t.Errorf("in quiet, %d of %d good calls failed: %s", bad, len(took), first)
		return
	}
	lag := s.good.Lag(from, to)
	s.rest.calls, s.rest.took = append(s.rest.calls, calls...), append(s.rest.took, took...)
	s.rest.lag = append(s.rest.lag, lag...)
	s.usual = rig.Quantile(s.rest.took, 0.5)
	fmt.Printf("%s  quiet: p50 %.1f ms, p99 %.1f ms of %d calls, lag p99 %.1f ms; berthd has %.0f MiB\n",
		time.Now().Format(time.TimeOnly), rig.MS(rig.Quantile(took, 0.5)), rig.MS(rig.Quantile(took, 0.99)), len(took),
		rig.MS(rig.Quantile(lag, 0.99)), rig.Resident(s.Berthd().PID))
}

// endure runs an attack and measures its effect.
func (s *siege) endure(p plan) finding {
	s.t.Helper()
	f := finding{plan: p}
	pid := s.Berthd().PID
	before := rig.Resident(pid)
	m := watchMemory(pid)
	w := s.StartWatch(250*time.Millisecond, rig.Short{})
	from := time.Now()
	h, err := startAttack(p, s.share)
	if err != nil {
		s.t.Fatal(err)
	}
	f.bounded = h.Fixed
	if err := h.Wait(&f.damage); err != nil {
		s.t.Errorf("%s: %v", p.Kind, err)
	}
	end := time.Now()
	during := w.Stop()
	f.growth = m.stop() - before
	f.lease, f.silent, f.errs = during.OldestLease, during.Silent, during.Errors
	// Calls that were due under attack may be answered later.
	rig.SleepUntil(s.t.Context(), end.Add(s.watch))
	calls := s.good.Between(from, end)
	took, bad, first := sum(calls)
	f.calls, f.bad, f.firstBad = len(took), bad, strings.ReplaceAll(first, "\n", " ")
	f.took, f.p99, f.kinds = took, rig.Quantile(took, 0.99), byKind(calls)
	f.lag = s.good.Lag(from, end)
	early := s.good.Between(from, from.Add(end.Sub(from)/2))
	f.early = len(early)
	for _, c := range early {
		if c.Due.Add(c.Took).After(end) {
			f.stuck++
		}
	}
	f.slowest = slowest(calls, from)
	f.heals = s.healed(end)
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), f)
	return f
}

// healed returns how long after the end of an attack a good call still failed
// or was slow, or a machine was still silent.
func (s *siege) healed(end time.Time) (after time.Duration) {
	slow := max(p99AtMost, time.Duration(p99OverQuiet*float64(s.rest.p99())))
	for _, c := range s.good.Between(end, time.Now()) {
		if c.Fault != "" || c.Took > slow {
			after = max(after, c.Due.Add(min(c.Took, s.watch)).Sub(end))
		}
	}
	w := s.StartWatch(time.Hour, rig.Short{})
	defer w.Stop()
	if err := rig.Await(s.t.Context(), rig.Patience, func(context.Context) error {
		if w.Seen().Looks == 0 {
			return fmt.Errorf("the rows were not looked at")
		}
		return nil
	}); err != nil {
		s.t.Error(err)
	}
	if w.Seen().Silent > 0 {
		after = max(after, time.Since(end))
	}
	return after
}

// memory samples the resident memory of a process.
type memory struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	most   float64
}

func watchMemory(pid int) *memory {
	ctx, cancel := context.WithCancel(context.Background())
	m := &memory{cancel: cancel}
	m.done.Go(func() {
		for rig.SleepUntil(ctx, time.Now().Add(50*time.Millisecond)) {
			m.most = max(m.most, rig.Resident(pid))
		}
	})
	return m
}

func (m *memory) stop() (most float64) {
	m.cancel()
	m.done.Wait()
	return m.most
}

// BenchmarkSiege runs every attack at its full size and prints expectations and findings. It
// fails if an expectation is not met.
func BenchmarkSiege(b *testing.B) {
	began := time.Now()
	s := newSiege(b, *programs, tailLines, *share, healWatch)
	s.good.start(b)
	defer s.good.stop(b)
	rig.SleepUntil(b.Context(), time.Now().Add(*warmFor)) // connections, caches
	s.measureQuiet(*quietFor)
	pid := s.Berthd().PID
	first := rig.Resident(pid)
	var findings []finding
	run := func(kind, from string, count, size int, lasts time.Duration) {
		if chosen(kind) {
			findings = append(findings, s.endure(s.plan(kind, from, count, size, lasts)))
		}
	}
	for _, from := range []string{goodAddress, agentsAddress} {
		run(tokenless, from, 50, 0, *tokenlessFor)
		run(wrongs, from, 50, 0, *attackFor)
		run(silent, from, 48, 1000, *attackFor)
		run(tails, from, 4, 0, *attackFor)
		run(followers, from, 1000, 0, *attackFor)
		run(uploads, from, 8, 1<<20, *attackFor)
		run(idles, from, 2000, 0, *attackFor)
		run(unread, from, 48, 0, *attackFor)
		run(joins, from, 200, 15<<20, *attackFor) // last: the server returns the memory slowly
	}
	run(tokenless, agentsAddress, 500, 0, 2*berth.MachineLeaseTTL) // long enough to silence a machine
	s.measureQuiet(*quietFor / 2)                                  // the stack is no longer a new one
	run(submits, goodAddress, 10_000, 0, *attackFor)
	failed := printFindings(os.Stdout, findings, s.rest)
	fmt.Println(s.ApartText())
	grown := rig.Resident(pid) - first
	fmt.Printf("berthd has %.0f MiB more than before the siege; measured in %s, load %s\n", grown,
		time.Since(began).Round(time.Second), rig.LoadAverage())
	if failed > 0 {
		b.Errorf("%d of %d attacks did what they should not", failed, len(findings))
	}
}

// TestHostileCallersStopNeitherGoodCallersNorAgents is the small form: it judges only results
// that do not depend on speed.
func TestHostileCallersStopNeitherGoodCallersNorAgents(t *testing.T) {
	s := newSiege(t, *programs, tailLines, 0.5, soonWatch)
	s.good.start(t)
	defer s.good.stop(t)
	s.measureQuiet(2 * time.Second)
	// A call that waits for the end of an attack differs from a slow call only if
	// attacks last much longer than calls do.
	s.stretch = min(max(1, float64(s.usual)/float64(usualCall)), 5)
	for _, p := range []plan{
		s.plan(tokenless, goodAddress, 60, 0, 4*time.Second),
		s.plan(wrongs, goodAddress, 60, 0, 4*time.Second),
		s.plan(silent, agentsAddress, 48, 1000, 6*time.Second),
		s.plan(tails, agentsAddress, 4, 0, 4*time.Second),
		s.plan(followers, goodAddress, 300, 0, 3*time.Second),
		s.plan(uploads, agentsAddress, 8, 1<<20, 4*time.Second),
		s.plan(idles, agentsAddress, 300, 0, 2*time.Second),
		s.plan(unread, goodAddress, 48, 0, 5*time.Second),
		s.plan(submits, goodAddress, 2000, 0, 3*time.Second),
		s.plan(joins, agentsAddress, 30, 15<<20, 4*time.Second), // last: the server returns the memory slowly
	} {
		f := s.endure(p)
		for _, b := range f.breaches(s.rest, false) {
			t.Errorf("%d %s from %s: %s", f.Count, f.Kind, f.From, b)
		}
		if f.damage.Sent == 0 {
			t.Errorf("%d %s: nothing was sent", f.Count, f.Kind)
		}
	}
	s.wantSilenceSeen()
}

// wantSilenceSeen proves that the verdict on renewals can fail: it freezes an
// agent and waits until the watch sees its lease grow old.
func (s *siege) wantSilenceSeen() {
	s.t.Helper()
	a := s.Agents()[0]
	a.Signal(syscall.SIGSTOP)
	defer a.Signal(syscall.SIGCONT)
	w := s.StartWatch(100*time.Millisecond, rig.Short{})
	defer w.Stop()
	if err := rig.Await(s.t.Context(), rig.Patience, func(context.Context) error {
		if age := w.Seen().OldestLease; age < berth.SyncWait+2*time.Second {
			return fmt.Errorf("the oldest lease is %s old", age)
		}
		return nil
	}); err != nil {
		s.t.Errorf("the watch does not see a frozen agent: %v", err)
	}
}

func chosen(kind string) bool {
	return *only == "" || slices.ContainsFunc(strings.Split(*only, ","), func(word string) bool { return strings.Contains(kind, word) })
}
