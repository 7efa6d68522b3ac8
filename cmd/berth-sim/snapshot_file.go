package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"berth/db/history"
	"berth/spec"
)

// A snapshot file has one JSON object a line. Each object has one key, the kind of the record. The first line is
// "snapshot" and the last one "end". docs/design/simulation.md describes the fields. Records come in the order of
// the fields of snapshotLine; tenants, pools, classes and machines by name as in the database, launches by machine
// and number, jobs by submission. A replay depends on this order and not on names, so a file with pseudonyms gives
// the same figures.

// snapshotVersion is the version of the format that this program writes and reads.
const snapshotVersion = 1

// Bounds of a snapshot, against damaged files that would fill the memory.
const (
	maxSnapshotLine = 16 << 20  // bytes
	maxSnapshotJobs = 2_000_000 // and records of each other kind
)

// snapshotLine is one line. Exactly one field is set.
type snapshotLine struct {
	Snapshot *snapshotHead           `json:"snapshot,omitempty"`
	Tenant   *history.RecordedTenant `json:"tenant,omitempty"`
	Pool     *history.RecordedPool   `json:"pool,omitempty"`
	Burst    *history.RecordedBurst  `json:"burst,omitempty"`
	Offer    *history.RecordedOffer  `json:"offer,omitempty"`
	Class    *snapshotClass          `json:"class,omitempty"`
	Machine  *snapshotMachine        `json:"machine,omitempty"`
	Launch   *history.RecordedLaunch `json:"launch,omitempty"`
	Job      *history.RecordedJob    `json:"job,omitempty"`
	End      *snapshotEnd            `json:"end,omitempty"`
}

// snapshotHead begins a file.
type snapshotHead struct {
	Version    int       `json:"version"`
	Program    string    `json:"program"` // version of berth-sim
	TakenAt    time.Time `json:"taken_at"`
	Since      time.Time `json:"since"`
	Anonymised bool      `json:"anonymised"`
	Archived   int       `json:"archived"` // jobs of the period that are archived, and so not in the file
}

// snapshotEnd ends a file, so that a file that was cut off is detected.
type snapshotEnd struct {
	Lines int `json:"lines"` // before this one
}

// snapshotClass is the request of jobs. Constraints are numbered; snapshotMachine lists the numbers that hold.
type snapshotClass struct {
	Class   string          `json:"class"`
	Request snapshotRequest `json:"request"`
}

// snapshotRequest is a spec.Request whose labels are in a fixed order and whose constraint is a number.
type snapshotRequest struct {
	spec.Request
	Labels     []labelPair `json:"labels,omitempty"`
	Constraint int         `json:"constraint,omitempty"` // from 1; 0: none
}

// snapshotMachine is a machine whose labels are in a fixed order, with the constraints that it satisfies.
type snapshotMachine struct {
	history.RecordedMachine
	Labels      []labelPair `json:"labels,omitempty"`
	Constraints []int       `json:"constraints,omitempty"`
}

// labelPair is the key and the value of a label.
type labelPair [2]string

// snapshotWriter writes the lines of a snapshot. The file appears under its name only when it is complete.
type snapshotWriter struct {
	path  string
	file  *os.File
	gzip  *gzip.Writer // nil: not compressed
	out   *bufio.Writer
	lines int
	most  int         // records of a kind
	count map[int]int // records, by index of their kind
}

// createSnapshot creates the file, compressed if its name ends with .gz.
func createSnapshot(path string) (*snapshotWriter, error) {
	// The file is new and has the mode 0600: an existing one could have wider rights, or be a link.
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.partial")
	if err != nil {
		return nil, err
	}
	w := &snapshotWriter{path: path, file: file, most: maxSnapshotJobs, count: map[int]int{}}
	var to io.Writer = file
	if strings.HasSuffix(path, ".gz") {
		w.gzip = gzip.NewWriter(file)
		to = w.gzip
	}
	w.out = bufio.NewWriterSize(to, 1<<16)
	return w, nil
}

// write appends a line. It refuses what a reader of the file would refuse.
func (w *snapshotWriter) write(l snapshotLine) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	kind, _ := kindOf(l)
	if w.count[kind]++; w.count[kind] > w.most {
		return fmt.Errorf("the period has more than %d records of kind %s, which a replay does not read: choose a "+
			"shorter --since", w.most, lineKinds[kind])
	}
	if len(b) >= maxSnapshotLine {
		return fmt.Errorf("a record of kind %s has %d bytes: a replay reads up to %d", lineKinds[kind], len(b),
			maxSnapshotLine)
	}
	w.lines++
	_, err = w.out.Write(append(b, '\n'))
	return err
}

// finish writes the last line and gives the file its name.
func (w *snapshotWriter) finish() error {
	err := w.write(snapshotLine{End: &snapshotEnd{w.lines}})
	err = errors.Join(err, w.out.Flush())
	if w.gzip != nil {
		err = errors.Join(err, w.gzip.Close())
	}
	// Without the sync, a crash could leave an empty file under the final name.
	if err = errors.Join(err, w.file.Sync(), w.file.Close()); err != nil {
		return errors.Join(err, os.Remove(w.file.Name()))
	}
	if err := os.Rename(w.file.Name(), w.path); err != nil {
		return errors.Join(err, os.Remove(w.file.Name()))
	}
	return nil
}

// abandon removes an incomplete file.
func (w *snapshotWriter) abandon() { _ = errors.Join(w.file.Close(), os.Remove(w.file.Name())) }

// readSnapshot calls each for every line between the first and the last one, and returns the first one. Any
// deviation from the format is an error with the line's number.
func readSnapshot(path string, each func(snapshotLine) error) (*snapshotHead, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // read only
	var from io.Reader = bufio.NewReader(file)
	if strings.HasSuffix(path, ".gz") {
		if from, err = gzip.NewReader(from); err != nil {
			return nil, fmt.Errorf("%s: read as gzip: %w", path, err)
		}
	}
	r := &snapshotReader{lines: bufio.NewScanner(from)}
	r.lines.Buffer(make([]byte, 0, 1<<16), maxSnapshotLine)
	if err := r.read(each); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", path, max(1, r.line), err)
	}
	return r.head, nil
}

// snapshotReader reads the lines of a file in their order.
type snapshotReader struct {
	lines *bufio.Scanner
	line  int // number of the present line
	head  *snapshotHead
	kind  int // index of the kind of the previous line, see snapshotLine
	count int // records of that kind
}

func (r *snapshotReader) read(each func(snapshotLine) error) error {
	ended := false
	for r.lines.Scan() {
		r.line++
		if ended {
			return errors.New("a line follows the line end: allowed is nothing")
		}
		l, kind, err := decodeLine(r.lines.Bytes())
		if err != nil {
			return err
		}
		if err := r.order(l, kind); err != nil {
			return err
		}
		switch {
		case l.Snapshot != nil:
			r.head = l.Snapshot
		case l.End != nil:
			ended = true
		default:
			if err := each(l); err != nil {
				return err
			}
		}
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		r.line++
		return fmt.Errorf("the line is too long: allowed are %d bytes", maxSnapshotLine)
	case err != nil:
		return err
	case r.head == nil:
		return errors.New("the file is empty: allowed is a file of berth-sim snapshot")
	case !ended:
		return errors.New("the line end is missing: the file was cut off")
	}
	return nil
}

// order checks the place of a line among the others, and the version.
func (r *snapshotReader) order(l snapshotLine, kind int) error {
	switch {
	case r.head == nil && l.Snapshot == nil:
		return fmt.Errorf("the first line is of kind %s: allowed is snapshot", lineKinds[kind])
	case r.head != nil && l.Snapshot != nil:
		return errors.New("kind snapshot comes twice: allowed is one, as the first line")
	case l.Snapshot != nil && l.Snapshot.Version != snapshotVersion:
		return fmt.Errorf("snapshot.version %d: allowed is %d", l.Snapshot.Version, snapshotVersion)
	case l.Snapshot != nil && !l.Snapshot.TakenAt.After(l.Snapshot.Since):
		return fmt.Errorf("snapshot.taken_at %s: allowed are times after since, %s",
			l.Snapshot.TakenAt.Format(time.RFC3339), l.Snapshot.Since.Format(time.RFC3339))
	case kind < r.kind:
		return fmt.Errorf("kind %s comes after %s: allowed is the order %s", lineKinds[kind], lineKinds[r.kind],
			strings.Join(lineKinds, ", "))
	case l.End != nil && l.End.Lines != r.line-1:
		return fmt.Errorf("end.lines %d: %d lines come before it; lines were lost or added", l.End.Lines, r.line-1)
	}
	if kind != r.kind {
		r.kind, r.count = kind, 0
	}
	if r.count++; r.count > maxSnapshotJobs {
		return fmt.Errorf("there are more than %d records of kind %s, which is more than allowed", maxSnapshotJobs,
			lineKinds[kind])
	}
	return nil
}

// lineKinds are the kinds of lines in their order in a file.
var lineKinds = jsonKeys(reflect.TypeFor[snapshotLine](), false)

// decodeLine decodes a line strictly, and returns the index of its kind.
func decodeLine(b []byte) (l snapshotLine, kind int, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, 0, decodeError(b, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return l, 0, errors.New("text follows the object: allowed is one JSON object a line")
	}
	kind, set := kindOf(l)
	if set != 1 {
		return l, 0, fmt.Errorf("the object has %d kinds: allowed is one of %s", set, strings.Join(lineKinds, ", "))
	}
	return l, kind, nil
}

// kindOf returns the index of the last kind that is set in a line, and the number of kinds that are set.
func kindOf(l snapshotLine) (kind, set int) {
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			kind, set = i, set+1
		}
	}
	return kind, set
}

// decodeError explains an error of encoding/json, and names the allowed keys or kinds.
func decodeError(b []byte, err error) error {
	var kinds map[string]json.RawMessage
	if json.Unmarshal(b, &kinds) != nil {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	for kind := range kinds {
		i := slices.Index(lineKinds, kind)
		if i < 0 {
			return fmt.Errorf("kind %.40q is unknown: allowed are %s", kind, strings.Join(lineKinds, ", "))
		}
		if key, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return fmt.Errorf("%s has an unknown key %s: allowed are %s", kind, key,
				strings.Join(jsonKeys(reflect.TypeFor[snapshotLine]().Field(i).Type, true), ", "))
		}
		return fmt.Errorf("%s: %w", kind, err)
	}
	return errors.New("the object is empty: allowed is one of " + strings.Join(lineKinds, ", "))
}

// jsonKeys lists the JSON keys of a struct, and of the structs below it if deep is set, each once.
func jsonKeys(t reflect.Type, deep bool) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	var keys []string
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return nil
	}
	add := func(list ...string) {
		for _, k := range list {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			add(name)
		}
		if deep || f.Anonymous {
			add(jsonKeys(f.Type, deep)...)
		}
	}
	return keys
}
