package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

// MaxLogChunk is the longest object of a log.
const MaxLogChunk = db.MaxLogChunk

// DescribeLog counts the lines of a piece of a log and returns the timestamps of
// the first and the last. A piece consists of whole lines; anything else is an
// error of code invalid.
func DescribeLog(chunk []byte) (lines int, first, last time.Time, err error) {
	if len(chunk) == 0 || len(chunk) > MaxLogChunk || chunk[len(chunk)-1] != '\n' {
		return 0, first, last, berth.Errorf(berth.CodeInvalid,
			"a piece of a log has 1 to %d bytes and ends with a newline", MaxLogChunk)
	}
	begin, _, _ := bytes.Cut(chunk, []byte("\n"))
	body := chunk[:len(chunk)-1]
	end := body[bytes.LastIndexByte(body, '\n')+1:]
	first, one := wire.LogLineTime(begin)
	last, two := wire.LogLineTime(end)
	if !one || !two {
		return 0, first, last, berth.Errorf(berth.CodeInvalid, "each line of a log begins with its time, then o or e")
	}
	return bytes.Count(chunk, []byte("\n")), first, last, nil
}

// LogReader reads the logs of members, wherever their machines are by now.
type LogReader struct {
	Store *Store
	DB    *db.DB
}

// OpenLog returns the stored log from a byte offset to its present end, in the encoding of
// wire.AppendLogLine. A log without stored lines is empty. The objects of the log are looked up
// and opened as the reader proceeds. A read fails with slug log_damaged at an object that is missing or short.
func (r *LogReader) OpenLog(ctx context.Context, log berth.LogRef, offset int64) (io.ReadCloser, error) {
	s := &logStream{ctx: ctx, db: r.DB, store: r.Store, log: log, at: offset}
	end, err := s.lookUp()
	s.end = end
	return s, err
}

// logStream is the chunks of a log, one after the other.
type logStream struct {
	ctx    context.Context
	db     *db.DB
	store  *Store
	log    berth.LogRef
	chunks []db.LogChunk // known, and not opened yet
	at     int64         // offset of the next byte
	end    int64         // where the log ended when it was opened
	open   io.ReadCloser
	left   int64 // of the open object
}

// logPage is how many chunks are looked up at once.
const logPage = 64

// lookUp finds the next chunks, and returns where the log ends.
func (s *logStream) lookUp() (end int64, err error) {
	owner, chunks, end, err := s.db.Logs.Chunks(s.ctx, s.log, s.at, logPage)
	if len(chunks) > 0 {
		s.log.Tenant, s.chunks = owner, chunks
	}
	return end, err
}

// Read reads across the objects of the log. The end is fixed when the log is opened: lines stored
// since are left for the next OpenLog.
func (s *logStream) Read(p []byte) (int, error) {
	for s.open == nil {
		if len(s.chunks) == 0 && s.at < s.end {
			if _, err := s.lookUp(); err != nil {
				return 0, err
			}
		}
		if len(s.chunks) == 0 || s.chunks[0].Offset >= s.end {
			return 0, io.EOF
		}
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n, err := s.open.Read(p[:min(int64(len(p)), s.left)])
	s.at += int64(n)
	s.left -= int64(n)
	switch {
	case s.left == 0:
		err = s.open.Close()
		s.open = nil
	case errors.Is(err, io.EOF):
		err = damaged("the stored piece ends %d bytes early, at byte %d", s.left, s.at)
	}
	return n, err
}

// next opens the object at the reader's place, and skips the part before that place.
func (s *logStream) next() error {
	c := s.chunks[0]
	s.chunks = s.chunks[1:]
	key := berth.LogChunkKey(s.log.Tenant, s.log.Job, s.log.Attempt, s.log.Rank, c.Offset)
	r, _, err := s.store.Open(s.ctx, key)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return damaged("the stored piece at byte %d is missing", c.Offset)
	}
	if err != nil {
		return err
	}
	if skip := s.at - c.Offset; skip > 0 {
		n, err := io.CopyN(io.Discard, r, skip)
		if errors.Is(err, io.EOF) {
			err = damaged("the stored piece at byte %d has %d bytes instead of %d", c.Offset, n, c.Bytes)
		}
		if err != nil {
			_ = r.Close()
			return fmt.Errorf("skip to byte %d of the log: %w", s.at, err)
		}
	} else {
		s.at = c.Offset
	}
	s.open, s.left = r, c.Offset+int64(c.Bytes)-s.at
	return nil
}

// damaged returns the error for a log that the store does not hold as the database describes it.
func damaged(format string, args ...any) *berth.Error {
	return &berth.Error{Code: berth.CodeInternal, Slug: wire.SlugLogDamaged, Message: fmt.Sprintf(format, args...)}
}

// Close closes the object that is being read.
func (s *logStream) Close() error {
	if s.open == nil {
		return nil
	}
	return s.open.Close()
}
