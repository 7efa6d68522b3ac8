package runtimes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/placement"
)

// Book estimates the run times of jobs. It follows the same rows as a snapshot does,
// and belongs to the same goroutine. The nil Book estimates nothing and reads
// nothing.
type Book struct {
	db     *db.DB
	every  time.Duration
	works  map[db.Work]*work
	of     map[berth.JobID]db.Work // of jobs that wait or hold room and have no time limit
	due    map[db.Work]bool        // may have new runs
	readAt time.Time               // our clock when those were read
}

// work is the estimate for one kind of work, with its jobs.
type work struct {
	jobs     map[berth.JobID]bool
	read     bool
	expected time.Duration
	by       string
}

// perRead bounds the works that one statement looks for.
const perRead = 1000

// New returns an empty Book, or nil if the policy does not order jobs by predicted run times.
// The Book reads the run times of a known group of jobs again at most once per interval every.
func New(d *db.DB, p placement.Policy, every time.Duration) *Book {
	if p.Order != placement.SRSF || p.Ranker != nil || p.Durations != placement.Estimated {
		return nil
	}
	return &Book{db: d, every: every, works: map[db.Work]*work{}, of: map[berth.JobID]db.Work{},
		due: map[db.Work]bool{}}
}

// Fresh returns an empty Book with the settings of b, for a new snapshot.
func (b *Book) Fresh() *Book {
	if b == nil {
		return nil
	}
	return &Book{db: b.db, every: b.every, works: map[db.Work]*work{}, of: map[berth.JobID]db.Work{},
		due: map[db.Work]bool{}}
}

// Read processes changed rows, fills in the expected run times of their jobs, and returns
// the other jobs with a changed expectation, for the method Tell. It reads the estimates
// again that these rows may have changed, possibly in a later call.
func (b *Book) Read(ctx context.Context, rows []db.QueueJob) (changed []berth.JobID, err error) {
	if b == nil {
		return nil, nil
	}
	for _, row := range rows {
		b.note(row)
	}
	if changed, err = b.refresh(ctx); err != nil {
		return nil, err
	}
	for i := range rows {
		rows[i].Expected, rows[i].ExpectedBy = b.Of(rows[i].ID)
	}
	return changed, nil
}

// Of returns a job's expected total run time, and the source of the estimate; 0 without an
// estimate.
func (b *Book) Of(id berth.JobID) (expected time.Duration, by string) {
	if b == nil {
		return 0, ""
	}
	if w := b.works[b.of[id]]; w != nil {
		return w.expected, w.by
	}
	return 0, ""
}

// Tell copies the expected run times of the jobs into a snapshot.
func (b *Book) Tell(s *placement.Snapshot, jobs []berth.JobID) {
	for _, id := range jobs {
		expected, by := b.Of(id)
		s.Expect(id, expected, by)
	}
}

// Ask returns the expected run time of a job that is in no snapshot.
func (b *Book) Ask(ctx context.Context, w db.Work) (expected time.Duration, by string, err error) {
	if b == nil {
		return 0, "", nil
	}
	runs, err := b.db.Attempts.RunTimes(ctx, []db.Work{w})
	if err != nil {
		return 0, "", err
	}
	expected, by = typical(w, runs[w])
	return expected, by, nil
}

// note records a live job without a time limit under its work, and forgets every other job. A
// success makes the estimates of the work due for another read.
func (b *Book) note(row db.QueueJob) {
	w := row.Work()
	live := row.State.Waiting() && row.State != berth.Submitted || row.State.HoldsCapacity()
	if live && row.RunLimit == 0 {
		if _, known := b.of[row.ID]; known {
			return
		}
		b.of[row.ID] = w
		if b.works[w] == nil {
			b.works[w] = &work{jobs: map[berth.JobID]bool{}}
		}
		b.works[w].jobs[row.ID] = true
		b.due[w] = true
		return
	}
	if was, known := b.of[row.ID]; known {
		delete(b.of, row.ID)
		if delete(b.works[was].jobs, row.ID); len(b.works[was].jobs) == 0 {
			delete(b.works, was)
			delete(b.due, was)
		}
	}
	if row.State == berth.Succeeded && b.works[w] != nil {
		b.due[w] = true
	}
}

// refresh reads the estimates of new works, and periodically of works that may have
// changed. It returns the jobs of the changed ones.
func (b *Book) refresh(ctx context.Context) (changed []berth.JobID, err error) {
	now := time.Now()
	all := len(b.due) > 0 && now.Sub(b.readAt) >= b.every
	var list []db.Work
	for w := range b.due {
		if all || !b.works[w].read {
			list = append(list, w)
		}
	}
	read := make(map[db.Work][]time.Duration, len(list))
	for page := range slices.Chunk(list, perRead) {
		runs, err := b.db.Attempts.RunTimes(ctx, page)
		if err != nil {
			return nil, err
		}
		maps.Copy(read, runs)
	}
	for _, w := range list {
		changed = append(changed, b.works[w].learn(typical(w, read[w]))...)
		delete(b.due, w)
	}
	if all {
		b.readAt = now
	}
	slices.Sort(changed)
	return changed, nil
}

// learn stores the present estimate, and returns the jobs if the estimate has changed.
func (w *work) learn(expected time.Duration, by string) []berth.JobID {
	same := w.expected == expected && w.by == by
	w.read, w.expected, w.by = true, expected, by
	if same {
		return nil
	}
	list := make([]berth.JobID, 0, len(w.jobs))
	for id := range w.jobs {
		list = append(list, id)
	}
	return list
}

// typical returns the median of the runs, which a single odd run does not move, and its
// description; 0 for no runs.
func typical(w db.Work, runs []time.Duration) (expected time.Duration, by string) {
	if len(runs) == 0 {
		return 0, ""
	}
	sorted := slices.Sorted(slices.Values(runs))
	middle := len(sorted) / 2
	expected = sorted[middle]
	if len(sorted)%2 == 0 {
		expected = (sorted[middle-1] + sorted[middle]) / 2
	}
	if expected >= 10*time.Second {
		expected = expected.Round(time.Second)
	}
	one, many := "as the latest job of this name did", "the median of the latest %d jobs of this name"
	switch {
	case w.Step != "":
		one, many = "as this step did in the latest pipeline of this name",
			"the median of this step in the latest %d pipelines of this name"
	case w.Parent != "":
		one, many = "as another element of its array did", "the median of %d other elements of its array"
	}
	if len(sorted) == 1 {
		return expected, one
	}
	return expected, fmt.Sprintf(many, len(sorted))
}
