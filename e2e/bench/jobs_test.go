package bench_test

import (
	"fmt"
	"sync"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
)

// fake is the machine whose containers are goroutines.
const fake berth.MachineID = "fake"

// clients call at once.
const clients = 16

// round is one load and its cost.
type round struct {
	rate float64
	cpu  time.Duration // per job
	cost cost
}

// measureJobs runs loads of jobs and of bare workflows in turn: on a shared machine only
// measurements of the same time can be compared.
func (s *stack) measureJobs(t *table, f, tuned *floor, rounds, n int) {
	s.load(f.one, f.done, n/4) // caches, connections, plans
	s.load(tuned.one, tuned.done, n/4)
	s.load(s.oneJob, s.idle, n/4)
	var ratios, cpus []float64
	var jobs, bare, best []round
	for i := range rounds {
		var j, w round
		if i%2 == 0 {
			w = s.load(f.one, f.done, n)
			j = s.load(s.oneJob, s.idle, n)
		} else {
			j = s.load(s.oneJob, s.idle, n)
			w = s.load(f.one, f.done, n)
		}
		jobs, bare = append(jobs, j), append(bare, w)
		best = append(best, s.load(tuned.one, tuned.done, n))
		ratios = append(ratios, j.rate/w.rate)
		cpus = append(cpus, float64(w.cpu)/float64(j.cpu))
		fmt.Printf("round %d: %.1f jobs/s, %.1f bare workflows/s, ratio %.2f; CPU %.1f and %.1f ms each, ratio %.2f\n",
			i+1, j.rate, w.rate, j.rate/w.rate, ms(j.cpu), ms(w.cpu), float64(w.cpu)/float64(j.cpu))
	}
	t.add(figure{name: "jobs per second / bare workflows per second", value: median(ratios), unit: "ratio", must: 0.75, aim: 0.90, high: true,
		note: fmt.Sprintf("%.0f/s of %.0f/s; by CPU %.2f", median(rates(jobs)), median(rates(bare)), median(cpus))})
	if *statements > 0 {
		for what, load := range map[string]func(){
			"bare workflow": func() { s.load(f.one, f.done, n) },
			"job":           func() { s.load(s.oneJob, s.idle, n) },
		} {
			s.forgetStatements()
			load()
			s.printStatements(what, n, *statements)
			s.printFunctions(what, n, *statements)
		}
	}
	t.remarkCost("job", jobs, n)
	t.remarkCost("bare workflow", bare, n)
	t.remark("bare workflows with Berth's own worker options and eager start: %.0f/s", median(rates(best)))
}

// remarkCost shows where the time of one job or workflow went, in the mean of all rounds.
func (t *table) remarkCost(what string, list []round, n int) {
	var process time.Duration
	cpu, transactions := map[string]time.Duration{}, map[string]int64{}
	for _, r := range list {
		process += r.cost.process
		for name, d := range r.cost.postgres {
			cpu[name] += d
		}
		for name, c := range r.cost.commits {
			transactions[name] += c
		}
	}
	each := float64(n * len(list))
	text := fmt.Sprintf("one %s: CPU %.1f ms in this process, %.1f ms in PostgreSQL's own processes", what, ms(process)/each, ms(cpu[""])/each)
	for _, name := range []string{"berth", "temporal", "temporal_visibility"} {
		text += fmt.Sprintf("; %s %.1f ms and %.1f transactions", name, ms(cpu[name])/each, float64(transactions[name])/each)
	}
	t.remark("%s", text)
}

func rates(rounds []round) (r []float64) {
	for _, x := range rounds {
		r = append(r, x.rate)
	}
	return r
}

// load does one thing n times, from many clients, and waits until all is done.
func (s *stack) load(one func() error, done func(), n int) round {
	s.b.Helper()
	before := s.cost()
	var all sync.WaitGroup
	next := make(chan struct{})
	for range clients {
		all.Go(func() {
			for range next {
				if err := one(); err != nil {
					s.b.Error(err)
				}
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	all.Wait()
	done()
	took := time.Since(before.at)
	s.settleMeters()
	used := s.cost().since(before)
	return round{rate: float64(n) / took.Seconds(), cpu: used.cpu() / time.Duration(n), cost: used}
}

// A stack at rest renews leases and beacons, and writes no more than restBytes of
// its log in meterDelay, by which PostgreSQL's meters may be late. A load writes
// some fifty kilobytes for each job.
const (
	meterDelay = time.Second
	restBytes  = 128 << 10
)

// settleMeters waits until delayed work (deletions of done tasks, visibility, the removal of
// containers) is done and counted, so that the next load does not contain it.
func (s *stack) settleMeters() {
	s.b.Helper()
	var since time.Time
	var from int64
	s.until("the stack rests", func() bool {
		var at int64
		s.must(s.db.Pool().QueryRow(s.b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&at))
		if at-from > restBytes {
			since, from = time.Now(), at
		}
		return time.Since(since) >= meterDelay
	})
}

func (s *stack) oneJob() error {
	_, _, err := s.api.Submit(s.b.Context(), jobSpec(fake, "testprog", "exit", "0"), "")
	return err
}

func (f *floor) one() error {
	_, err := f.start(f.b.Context())
	return err
}

func (f *floor) done() {
	f.until("every bare workflow has ended", func() bool { return f.ended.Load() == f.next.Load() })
}

// joinFake joins the machine in memory and reports each start of a program.
func (s *stack) joinFake(o fakeruntime.Options) {
	engine := fakeruntime.New(o)
	s.b.Cleanup(engine.Shutdown)
	s.join(fake, engine, berth.Capacity{})
}
