package main

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Reference orders, with which the engine's are compared. Like those of reference_test.go they
// keep their own books, so that an error of the engine cannot hide in them.

// book is a replay of a trace under a reference order.
type book struct {
	now      time.Duration
	free     []int // GPUs, by machine
	total    int
	arrivals []*entry
	active   []*entry // waiting or running, in the order of the rule
	ended    []*entry
}

// entry is a job in a book.
type entry struct {
	work
	index   int
	need    int           // GPUs; whole machines for a job that is larger than one
	left    time.Duration // work, with the start cost of the present run
	done    time.Duration // run time so far
	places  []int         // machines; nil: the job waits
	starts  int
	ends    time.Duration // of the present run
	over    time.Duration // end of the job
	level   int           // queue of Tiresias
	picked  bool          // runs after this decision
	waiting float64       // key while the job waits, for static orders
}

// rule decides which jobs of a book run from now on.
type rule interface {
	decide(b *book)
	// jump returns the time of the next decision without an arrival or an end; 0: none.
	jump(b *book) time.Duration
}

// newBook returns a book with all machines free.
func newBook(jobs []work, machines int) *book {
	b := &book{total: machines * orderGPUs}
	for range machines {
		b.free = append(b.free, orderGPUs)
	}
	for i, w := range jobs {
		need := w.gpus
		if need > orderGPUs {
			need = (need + orderGPUs - 1) / orderGPUs * orderGPUs
		}
		b.arrivals = append(b.arrivals, &entry{work: w, index: i, need: need, left: w.length})
	}
	return b
}

// refer replays a trace under a rule.
func refer(jobs []work, machines int, r rule) *book {
	b := newBook(jobs, machines)
	for len(b.arrivals)+len(b.active) > 0 {
		next := time.Duration(math.MaxInt64)
		if len(b.arrivals) > 0 {
			next = b.arrivals[0].submitted
		}
		for _, e := range b.active {
			if e.places != nil {
				next = min(next, e.ends)
			}
		}
		if at := r.jump(b); at > b.now {
			next = min(next, at)
		}
		b.advance(next)
		for len(b.arrivals) > 0 && b.arrivals[0].submitted <= b.now {
			b.active = append(b.active, b.arrivals[0])
			b.arrivals = b.arrivals[1:]
		}
		r.decide(b)
	}
	return b
}

// advance lets the running jobs work until a time, and ends those without work.
func (b *book) advance(until time.Duration) {
	ran := until - b.now
	b.now = until
	b.active = slices.DeleteFunc(b.active, func(e *entry) bool {
		if e.places == nil {
			return false
		}
		e.left -= ran
		e.done += ran
		if e.left > 0 {
			return false
		}
		b.release(e)
		e.over = b.now
		b.ended = append(b.ended, e)
		return true
	})
}

// each returns the GPUs that a job takes of each of its machines.
func (e *entry) each() int { return min(e.need, orderGPUs) }

// release frees the machines of a job.
func (b *book) release(e *entry) {
	for _, m := range e.places {
		b.free[m] += e.each()
	}
	e.places = nil
}

// occupies puts a job on machines.
func (b *book) occupies(e *entry, places []int) {
	for _, m := range places {
		b.free[m] -= e.each()
	}
	e.places = places
}

// find returns machines for a job: the fullest with room for a small one, whole ones for a large
// one; nil without room. A machine for which allowed returns false is left out.
func (b *book) find(e *entry, allowed func(m int) bool) []int {
	if e.need <= orderGPUs {
		best := -1
		for m, f := range b.free {
			if f >= e.need && (best < 0 || f < b.free[best]) && allowed(m) {
				best = m
			}
		}
		if best < 0 {
			return nil
		}
		return []int{best}
	}
	var list []int
	for m, f := range b.free {
		if len(list)*orderGPUs < e.need && f == orderGPUs && allowed(m) {
			list = append(list, m)
		}
	}
	if len(list)*orderGPUs < e.need {
		return nil
	}
	return list
}

func anyMachine(int) bool { return true }

// begin starts a run that costs a start.
func (b *book) begin(e *entry, places []int) {
	b.occupies(e, places)
	e.starts++
	e.left += e.startCost
	e.ends = b.now + e.left
}

// preempting runs the first jobs of b.active that have room by number of GPUs, and stops all
// others. A running job keeps its machines unless the others have no place otherwise.
func (b *book) preempting() {
	room := b.total
	for _, e := range b.active {
		if e.picked = e.need <= room; e.picked {
			room -= e.need
		}
	}
	var fresh []*entry
	for _, e := range b.active {
		switch {
		case e.picked && e.places == nil:
			fresh = append(fresh, e)
		case !e.picked && e.places != nil:
			b.release(e)
		}
	}
	slices.SortStableFunc(fresh, func(a, b *entry) int { return cmp.Compare(b.need, a.need) })
	for _, e := range fresh {
		places := b.find(e, anyMachine)
		if places == nil {
			b.repack()
			return
		}
		b.begin(e, places)
	}
}

// repack places all picked jobs, the largest first. A moved job pays a start.
func (b *book) repack() {
	var all []*entry
	was := map[*entry][]int{}
	for _, e := range b.active {
		if e.picked {
			all, was[e] = append(all, e), e.places
			b.release(e)
		}
	}
	slices.SortStableFunc(all, func(a, b *entry) int { return cmp.Compare(b.need, a.need) })
	for _, e := range all {
		own := was[e]
		if own != nil && !slices.ContainsFunc(own, func(m int) bool { return b.free[m] < e.each() }) {
			b.occupies(e, own)
			continue
		}
		if places := b.find(e, anyMachine); places != nil {
			b.begin(e, places)
		}
	}
}

// byKey sorts the active jobs by a key, equal ones by submission. The list is nearly sorted from
// the last time, which insertion uses.
func (b *book) byKey(key func(*entry) float64) {
	for i, e := range b.active {
		e.waiting = key(e)
		j := i
		for ; j > 0; j-- {
			o := b.active[j-1]
			if o.waiting < e.waiting || o.waiting == e.waiting && o.index < e.index {
				break
			}
			b.active[j] = o
		}
		b.active[j] = e
	}
}

// plainSRSF is the order by least remaining time x GPUs, with preemption.
type plainSRSF struct{}

func (plainSRSF) jump(*book) time.Duration { return 0 }

func (plainSRSF) decide(b *book) {
	b.byKey(func(e *entry) float64 { return e.left.Seconds() * float64(e.gpus) })
	b.preempting()
}

// plainSJF is the order by least run time, without preemption; a later job may pass one that has
// no room.
type plainSJF struct{}

func (plainSJF) jump(*book) time.Duration { return 0 }

func (plainSJF) decide(b *book) {
	b.byKey(func(e *entry) float64 { return e.length.Seconds() })
	for _, e := range b.active {
		if e.places == nil {
			if places := b.find(e, anyMachine); places != nil {
				b.begin(e, places)
			}
		}
	}
}

// easyFIFO is the order by submission with a reserved start for the first job without room (EASY
// backfill; Lifka, JSSPP '95). Run times are known: a later job starts if it ends before the
// reserved start, or takes nothing that the first job needs.
type easyFIFO struct{}

func (easyFIFO) jump(*book) time.Duration { return 0 }

func (easyFIFO) decide(b *book) {
	b.byKey(func(e *entry) float64 { return e.submitted.Seconds() })
	var head *entry
	var shadow time.Duration
	var kept []int  // machines reserved for head
	var spare []int // GPUs free at the reserved start beside head, by machine
	for _, e := range b.active {
		if e.places != nil {
			continue
		}
		allowed := anyMachine
		if head != nil {
			ends := b.now + e.left + e.startCost
			allowed = func(m int) bool {
				return ends <= shadow || !slices.Contains(kept, m) || spare[m] >= e.each()
			}
		}
		places := b.find(e, allowed)
		switch {
		case places != nil:
			b.begin(e, places)
			if head != nil && e.ends > shadow {
				for _, m := range places {
					spare[m] -= e.each()
				}
			}
		case head == nil:
			head = e
			shadow, kept, spare = b.reserve(e)
		}
	}
}

// reserve returns the earliest time at which a job has room as the running jobs end, its machines,
// and the GPUs that are free beside it then.
func (b *book) reserve(head *entry) (at time.Duration, kept, spare []int) {
	var running []*entry
	for _, e := range b.active {
		if e.places != nil {
			running = append(running, e)
		}
	}
	slices.SortStableFunc(running, func(x, y *entry) int { return cmp.Compare(x.ends, y.ends) })
	then := &book{free: slices.Clone(b.free)}
	for _, e := range running {
		for _, m := range e.places {
			then.free[m] += e.each()
		}
		at = e.ends
		if kept = then.find(head, anyMachine); kept != nil {
			break
		}
	}
	for _, m := range kept {
		then.free[m] -= head.each()
	}
	return at, kept, then.free
}

// preemptingFIFO is the order by submission, with preemption: a later job passes one that has no
// room, until the earlier one has room with the later one stopped.
type preemptingFIFO struct{}

func (preemptingFIFO) jump(*book) time.Duration { return 0 }

func (preemptingFIFO) decide(b *book) {
	b.byKey(func(e *entry) float64 { return e.submitted.Seconds() })
	b.preempting()
}

// tiresiasL is discretized 2D-LAS (Gu et al., «Tiresias», NSDI '19, with the thresholds of its
// simulator, which Muri's uses too): three queues by GPU time so far. In each queue running jobs
// come first, then waiting ones in the order in which they came to the queue.
type tiresiasL struct{ queues [3][]*entry }

// tiresiasLimits are the GPU seconds at which a job leaves the first and the second queue.
var tiresiasLimits = []float64{3250, 7200}

func (r *tiresiasL) jump(b *book) time.Duration {
	next := time.Duration(0)
	for _, e := range b.active {
		if e.places == nil || e.level >= len(tiresiasLimits) {
			continue
		}
		at := b.now + max(1, seconds(math.Ceil(tiresiasLimits[e.level]/float64(e.gpus)))-e.done)
		if next == 0 || at < next {
			next = at
		}
	}
	return next
}

func (r *tiresiasL) decide(b *book) {
	known := map[*entry]bool{}
	var down [3][]*entry
	for q := range r.queues {
		r.queues[q] = slices.DeleteFunc(r.queues[q], func(e *entry) bool {
			known[e] = true
			if e.over == 0 && q < len(tiresiasLimits) && e.done.Seconds()*float64(e.gpus) >= tiresiasLimits[q] {
				e.level = q + 1
				down[q+1] = append(down[q+1], e)
				return true
			}
			return e.over > 0
		})
	}
	for _, e := range b.active {
		if !known[e] {
			r.queues[0] = append(r.queues[0], e)
		}
	}
	b.active = b.active[:0]
	for q := range r.queues {
		r.queues[q] = append(r.queues[q], down[q]...)
		b.active = append(b.active, r.queues[q]...)
	}
	b.preempting()
	for q := range r.queues {
		slices.SortStableFunc(r.queues[q], func(x, y *entry) int {
			return cmp.Compare(min(1, len(y.places)), min(1, len(x.places)))
		})
	}
}

// times returns the completion times in seconds, sorted, and the preemptions per job.
func (b *book) times() (list []float64, preemptions float64) {
	for _, e := range b.ended {
		list = append(list, (e.over - e.submitted).Seconds())
		preemptions += float64(e.starts-1) / float64(len(b.ended))
	}
	slices.Sort(list)
	return list, preemptions
}

// TestReferencesKeepWhatIsPublished: on Muri's trace 3 the reference orders have the published
// results with start costs.
func TestReferencesKeepWhatIsPublished(t *testing.T) {
	t.Parallel()
	jobs, err := readTrace("testdata/muri_trace3.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		rule      rule
		mean, p99 float64 // 0: not published
	}{
		{"SRSF", plainSRSF{}, 184_200, 3_692_000},
		{"SJF", plainSJF{}, 247_600, 0},
		{"Tiresias-L", &tiresiasL{}, 343_200, 0},
		{"FIFO, preempting", preemptingFIFO{}, 649_900, 1_349_000},
	} {
		list, _ := refer(jobs, 8, c.rule).times()
		mean, p99 := meanOf(list), percentile(list, 0.99)
		if math.Abs(mean/c.mean-1) > 0.001 {
			t.Errorf("%s: mean %.0f, published %.0f", c.name, mean, c.mean)
		}
		if c.p99 > 0 && math.Abs(p99/c.p99-1) > 0.02 {
			t.Errorf("%s: 99th percentile %.0f, published %.0f", c.name, p99, c.p99)
		}
	}
}

// TestReferencesAreValid: under every reference order each job runs for its work and its starts,
// and no machine is overfull.
func TestReferencesAreValid(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 5))
	var jobs []work
	at := time.Duration(0)
	for range 200 {
		at += time.Duration(r.IntN(100)) * time.Second
		jobs = append(jobs, work{gpus: 1 << r.IntN(5), submitted: at, startCost: time.Second,
			length: time.Duration(1+r.IntN(2000)) * time.Second})
	}
	for _, rule := range []rule{plainSRSF{}, plainSJF{}, easyFIFO{}, preemptingFIFO{}, &tiresiasL{}} {
		b := refer(jobs, 3, rule)
		if len(b.ended) != len(jobs) || slices.Min(b.free) != orderGPUs || slices.Max(b.free) != orderGPUs {
			t.Fatalf("%T: %d jobs ended, %v GPUs free in the end", rule, len(b.ended), b.free)
		}
		for _, e := range b.ended {
			if want := e.length + time.Duration(e.starts)*e.startCost; e.done != want || e.over < e.submitted+want {
				t.Errorf("%T: job %d ran %s until %s, want %s after %s", rule, e.index, e.done, e.over, want, e.submitted)
			}
		}
	}
}

func meanOf(list []float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return sum / float64(len(list))
}
