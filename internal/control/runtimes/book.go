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

// Book tells how long jobs are expected to run. It follows the same rows as a
// snapshot does, and belongs to the same goroutine. The nil Book expects nothing
// and reads nothing.
type Book struct {
	db     *db.DB
	every  time.Duration
	works  map[db.Work]*work
	of     map[berth.JobID]db.Work // of jobs that wait or hold room and have no time limit
	due    map[db.Work]bool        // may have new runs
	readAt time.Time               // our clock when those were read
}

// work is what is known of one, and of which jobs it is.
type work struct {
	jobs     map[berth.JobID]bool
	read     bool
	expected time.Duration
	by       string
}

// perRead bounds the works that one statement looks for.
const perRead = 1000

// New returns an empty Book, or nil if the policy does not go by how long jobs
// like a job ran. Works that are known are read again at most once in every.
func New(d *db.DB, p placement.Policy, every time.Duration) *Book {
	if p.Order != placement.SRSF || p.Ranker != nil || p.Durations != placement.Estimated {
		return nil
	}
	return &Book{db: d, every: every, works: map[db.Work]*work{}, of: map[berth.JobID]db.Work{}, due: map[db.Work]bool{}}
}

// Fresh is a Book like b that knows nothing yet: for a snapshot that begins anew.
func (b *Book) Fresh() *Book {
	if b == nil {
		return nil
	}
	return &Book{db: b.db, every: b.every, works: map[db.Work]*work{}, of: map[berth.JobID]db.Work{}, due: map[db.Work]bool{}}
}

// Read takes in rows that have changed, fills in what their jobs are expected to
// run, and returns the other jobs of which that has changed; see Tell. It reads
// again what rows may have changed, perhaps with a later call.
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

// Of is what a job is expected to run in all, and by what; 0 if that is not
// known.
func (b *Book) Of(id berth.JobID) (expected time.Duration, by string) {
	if b == nil {
		return 0, ""
	}
	if w := b.works[b.of[id]]; w != nil {
		return w.expected, w.by
	}
	return 0, ""
}

// Tell brings what the jobs are expected to run into a snapshot.
func (b *Book) Tell(s *placement.Snapshot, jobs []berth.JobID) {
	for _, id := range jobs {
		expected, by := b.Of(id)
		s.Expect(id, expected, by)
	}
}

// Ask tells of a job that is in no snapshot.
func (b *Book) Ask(ctx context.Context, w db.Work) (expected time.Duration, by string, err error) {
	if b == nil {
		return 0, "", nil
	}
	runs, err := b.db.RunTimes(ctx, []db.Work{w})
	if err != nil {
		return 0, "", err
	}
	expected, by = typical(w, runs[w])
	return expected, by, nil
}

// note takes in a row.
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

// refresh reads the works that are new, and now and then those that may have
// changed; it returns the jobs of those that have.
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
		runs, err := b.db.RunTimes(ctx, page)
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

// learn takes in what is expected now, and returns the jobs if that is new.
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

// typical is the median of the runs, which one that was odd does not move, and
// the words for it; 0 if there are none.
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
		one, many = "as this step did in the latest pipeline of this name", "the median of this step in the latest %d pipelines of this name"
	case w.Parent != "":
		one, many = "as another element of its array did", "the median of %d other elements of its array"
	}
	if len(sorted) == 1 {
		return expected, one
	}
	return expected, fmt.Sprintf(many, len(sorted))
}
