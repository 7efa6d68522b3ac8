package api

import (
	"context"
	"testing"

	"berth"
	"berth/db"
	"berth/internal/control/explain"
	"berth/wire"
)

// emptyBoards has one board without jobs, and counts the callers that would wait for the next one.
type emptyBoards struct{ waits int }

func (b *emptyBoards) Board(_ context.Context, missing func(*explain.Board) bool) *explain.Board {
	board := &explain.Board{}
	if missing != nil && missing(board) {
		b.waits++
	}
	return board
}

// noNotes is a scaler without notes.
type noNotes struct{}

func (noNotes) ShowNotes(context.Context, []berth.JobID) (map[berth.JobID]db.ShownNote, error) {
	return nil, nil
}

// Each list during a flood has jobs that no board knows yet.
func TestOnlyACallAboutOneJobWaitsForTheNextBoard(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fill  func(w *waitReasons, j *wire.Job) error
		waits int
	}{
		{"list", func(w *waitReasons, j *wire.Job) error { return w.fill(t.Context(), j) }, 0},
		{"show", func(w *waitReasons, j *wire.Job) error { return w.fillFrom(t.Context(), true, []*wire.Job{j}) }, 1},
	} {
		b := &emptyBoards{}
		job := wire.Job{ID: "new", Status: berth.Queued, Parent: new(berth.JobID)}
		err := c.fill(&waitReasons{explainer: b, scaling: noNotes{}}, &job)
		if err != nil || job.Waiting == nil || job.Waiting.Code != "unknown" || b.waits != c.waits {
			t.Errorf("%s: %+v, %v, waits for %d boards, want %d", c.name, job.Waiting, err, b.waits, c.waits)
		}
	}
}
