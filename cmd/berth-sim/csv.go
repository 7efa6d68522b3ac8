package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// table reads a CSV file by the names of its columns.
type table struct {
	path    string
	reader  *csv.Reader
	columns map[string]int // index by name
	row     []string       // the present row
	line    int            // of the present row in the file, for errors
}

// eachRow calls read for every row of a file, which may be gzip-compressed (.gz). It fails
// if one of the columns or all rows are missing, and adds path and line to the error of
// read.
func eachRow(path string, columns []string, read func(*table) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // read only
	var r io.Reader = bufio.NewReader(file)
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(r)
		if err != nil {
			return fmt.Errorf("%s: read as gzip: %w", path, err)
		}
		r = z
	}
	t := &table{path: path, reader: csv.NewReader(r), columns: map[string]int{}}
	if err := t.header(columns); err != nil {
		return err
	}
	rows := 0
	for {
		t.row, err = t.reader.Read()
		if errors.Is(err, io.EOF) {
			// An empty result is almost always a truncated file, so it is an error.
			if rows == 0 {
				return fmt.Errorf("%s: no rows below the column names", path)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		rows++
		t.line, _ = t.reader.FieldPos(0)
		if err := read(t); err != nil {
			return fmt.Errorf("%s:%d: %w", path, t.line, err)
		}
	}
}

// hasColumns reports whether the first line of a file names all the columns.
func hasColumns(path string, columns []string) (bool, error) {
	has := false
	err := eachRow(path, nil, func(t *table) error {
		has = true
		for _, c := range columns {
			if _, ok := t.columns[c]; !ok {
				has = false
			}
		}
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return has, err
}

// errEnough stops eachRow after the first row.
var errEnough = errors.New("enough read")

// header reads the first line and checks that all the columns are named.
func (t *table) header(columns []string) error {
	names, err := t.reader.Read()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: empty: the first line names the columns %s", t.path, strings.Join(columns, ","))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	for i, n := range names {
		// Spreadsheets write a byte order mark before the first name.
		t.columns[strings.TrimSpace(strings.TrimPrefix(n, "\ufeff"))] = i
	}
	for _, c := range columns {
		if _, ok := t.columns[c]; !ok {
			return fmt.Errorf("%s:1: no column %s: needed are %s", t.path, c, strings.Join(columns, ","))
		}
	}
	return nil
}

// text returns the field of a column; empty if the file lacks the column.
func (t *table) text(column string) string {
	i, ok := t.columns[column]
	if !ok {
		return ""
	}
	return strings.TrimSpace(t.row[i])
}

// number returns the whole number of a column, from least to most; an empty field is zero.
func (t *table) number(column string, least, most int64) (int64, error) {
	s := t.text(column)
	if s == "" {
		s = "0"
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s %q: allowed are whole numbers from %d to %d", column, s, least, most)
	}
	return n, nil
}

// decimal returns the number of a column, from least to most.
func (t *table) decimal(column string, least, most float64) (float64, error) {
	s := t.text(column)
	x, err := strconv.ParseFloat(s, 64)
	// The negated condition also rejects NaN.
	if err != nil || !(x >= least && x <= most) {
		return 0, fmt.Errorf("%s %q: allowed are numbers from %.0f to %.0f", column, s, least, most)
	}
	return x, nil
}

// writePlaced writes the placements as CSV: pod, node, gpus.
func writePlaced(path string, list []placedPod) error {
	return writeRows(path, slices.Concat([][]string{{"pod", "node", "gpus"}}, placedRows(list)))
}

// writeRows writes a result as CSV.
func writeRows(path string, rows [][]string) error {
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(rows); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return writeFile(path, b.Bytes())
}

// writeFile writes a result whole or not at all, by renaming a temporary file in its
// folder.
func writeFile(path string, content []byte) error {
	temporary := path + ".partial"
	if err := os.WriteFile(temporary, content, 0o666); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, path)
}

// placedRows formats one row per placement, the GPU indexes separated by hyphens.
func placedRows(list []placedPod) [][]string {
	rows := make([][]string, 0, len(list))
	for _, p := range list {
		var devices []string
		for _, d := range p.devices {
			devices = append(devices, strconv.Itoa(d))
		}
		rows = append(rows, []string{p.pod, string(p.node), strings.Join(devices, "-")})
	}
	return rows
}
