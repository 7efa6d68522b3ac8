package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/archive"
	"berth/spec"
)

// listArchive bounds the output from which an array is made: one file.
var listArchive = archive.Limits{Bytes: spec.MaxListBytes, Files: 2}

// Bounds of one list, and of all lists of a pass: the repairs of other jobs wait for this step, and
// an object store may leave calls without an answer.
const (
	listLimit  = 10 * time.Second
	listsLimit = 30 * time.Second
)

// lists reads the lists of arrays whose steps may start, and stores their elements. An output
// that cannot be read now is read again in a later pass; one with the wrong content fails its
// array. A pass begins after the last list of the pass before, so that lists which use up its time
// do not hold up the others.
func (r *reconciler) lists(ctx context.Context) error {
	if r.Objects == nil {
		return nil
	}
	wanted, err := r.DB.Parents.ListsWanted(ctx, r.list, passLimit)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, listsLimit)
	defer cancel()
	var failures []error
	for _, w := range wanted {
		r.list = w.Array
		each, fault, err := r.readList(ctx, w)
		if err == nil {
			err = r.writes.lists.FillArray(ctx, w.Array, each, fault)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("list of array %s: %w", w.Array, ctx.Err())
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("list of array %s: %w", w.Array, err))
		}
	}
	r.did("array_filled", len(wanted)-len(failures))
	return errors.Join(failures...)
}

// readList reads the entries of a list. fault is the reason why the content cannot be a list,
// which the user has to repair; err is any other failure.
func (r *reconciler) readList(ctx context.Context,
	w db.ListWanted) (each []map[string]string, fault string, err error) {
	switch {
	case w.Object == "":
		return nil, "there is no such output", nil
	case w.Bytes > spec.MaxListBytes:
		return nil, "it has " + berth.BytesText(w.Bytes), nil
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	in, _, err := r.Objects.Open(ctx, w.Object)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return nil, "the output is no longer stored", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer in.Close()
	text, files := []byte(nil), 0
	_, err = archive.Read(in, listArchive, func(e archive.Entry, content io.Reader) error {
		if e.Kind != archive.File {
			return nil
		}
		files++
		text, err = io.ReadAll(content)
		return err
	})
	switch {
	case archive.IsRefused(err):
		return nil, err.Error(), nil
	case err != nil:
		return nil, "", err
	case files != 1:
		return nil, fmt.Sprintf("it has %d files; a list is one file", files), nil
	}
	each, err = spec.ParseList(text)
	if err != nil {
		return nil, err.Error(), nil
	}
	return each, "", nil
}
