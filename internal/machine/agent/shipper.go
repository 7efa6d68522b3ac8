package agent

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

const (
	chunkBytes  = 256 << 10 // of one call
	bufferBytes = 4 << 20   // read ahead of the stored log; the engine keeps the rest
)

// logShipper sends a member's log to the control plane, from where the last process
// stopped. The encoded log is a function of the engine's log, so two processes agree on
// the meaning of its byte offsets.
//
// After the restore of a backup the server may have less than it had. Then the reader
// goes back to a place before the server's end, and reads on from there.
type logShipper struct {
	*core
	control *control
	retry   *retrier
	folder  string // the member's
	helpers *sync.WaitGroup

	lines   atomic.Int64  // read from the engine, each once
	whole   chan struct{} // closed when the whole log is stored for the first time, or given up
	last    chan struct{} // closed when only the log is awaited
	done    chan struct{}
	begun   bool
	wasRead chan struct{} // closed when the engine has given the last line

	// Of the reader.
	place  place // the present position in the engine's log
	skip   int   // lines at place.At to pass over after the engine is asked again
	stored int64 // bytes up to here are stored, and not sent again
	far    int64 // the farthest position so far; lines before it were counted

	// Of the sender.
	session <-chan struct{} // closed at the end of the session in which the server last reported its position

	mu     sync.Mutex
	buf    []byte
	base   int64              // offset of buf[0]
	eof    bool               // the log is complete
	dead   bool               // nothing more will be taken
	back   *int64             // where the reader must go back to; nil: it reads on
	stop   context.CancelFunc // ends the engine's stream
	places []place            // up to which the log is stored, in order, newer ones denser; bounded
	tail   []string           // the last lines
	room   chan struct{}
	ready  chan struct{}
	again  chan struct{} // the reader must go back
	note   place         // content of log.json, written or not
}

// resume sets the shipper up after the claim, which says how much of the log the server
// has.
func (s *logShipper) resume() {
	s.stored, s.base, s.session = s.claim.LogOffset, s.claim.LogOffset, s.control.present()
	s.whole, s.last = make(chan struct{}), make(chan struct{})
	s.done, s.wasRead = make(chan struct{}), make(chan struct{})
	s.room, s.ready, s.again = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
}

// begin starts reading and sending, until the container has ended and the last line is
// stored, or the member ends.
func (s *logShipper) begin() {
	s.begun = true
	s.place, s.skip = s.remembered()
	s.note, s.places, s.far = s.place, []place{s.place}, s.place.Offset
	s.helpers.Go(func() {
		defer close(s.done)
		var reading sync.WaitGroup
		sent := make(chan struct{})
		reading.Go(func() { s.read(sent) })
		s.send()
		s.give(errSent) // ends the reader
		close(sent)
		reading.Wait()
	})
}

// errSent ends the reader: the whole log is stored, or the member is over.
var errSent = errors.New("the log is sent")

// finish waits until the whole log is stored, or given up.
func (s *logShipper) finish(ctx context.Context) {
	if s.begun {
		s.await(ctx, s.whole)
	}
}

// conclude waits until the server has the whole log, once all else of the member is
// stored. Until then the sender watches for a server that has less than it had.
func (s *logShipper) conclude(ctx context.Context) {
	if s.begun {
		close(s.last)
		s.await(ctx, s.done)
	}
}

// await waits until end is closed or ctx ends.
func (s *logShipper) await(ctx context.Context, end <-chan struct{}) {
	select {
	case <-end:
	case <-ctx.Done():
	}
}

// read reads the engine's log until the sender has ended. Whenever the server has lost a part of
// the log, read starts again from the earlier place.
func (s *logShipper) read(sent <-chan struct{}) {
	first := sync.OnceFunc(func() { close(s.wasRead) })
	defer first()
	for {
		s.readOn()
		s.end()
		first()
		select {
		case <-s.again:
			s.goBack()
		case <-sent:
			return
		}
	}
}

// readOn follows the engine's log from the reader's place and appends encoded lines to the
// buffer. After the container's end it retries a failing engine for Timing.UploadPatience.
func (s *logShipper) readOn() {
	var since time.Time
	for wait := s.timing.backoff(); ; {
		before := s.place
		ctx, stop := context.WithCancel(s.ctx)
		if !s.reads(stop) {
			stop()
			return
		}
		err := s.runtime.Logs(ctx, s.name(), s.place.At, true, s.line)
		stop()
		switch {
		case err == nil, errors.Is(err, errGivenUp), errors.Is(err, errBack), errors.Is(err, node.ErrNoContainer):
			return
		case s.ctx.Err() != nil, s.goesBack():
			return
		}
		if s.place != before {
			wait.reset()
			since = time.Time{}
		}
		switch {
		case !s.retry.ended.Load():
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > s.timing.UploadPatience:
			s.reports.warn("the rest of the log was not read: " + err.Error())
			return
		}
		s.log.Warn("engine log interrupted, resuming", "err", err)
		if wait.wait(s.ctx) != nil {
			return
		}
		s.skip = s.place.Lines
	}
}

// line takes one line of the engine.
func (s *logShipper) line(l node.LogLine) error {
	if s.skip > 0 && l.At.Equal(s.place.At) {
		s.skip--
		return nil
	}
	if s.skip > 0 && s.skip == s.place.Lines && s.place.Offset < s.far {
		// The engine has dropped the lines after the place that the reader went back to.
		// They are lost: go on with the rest.
		s.place.Offset = s.stored
		s.reports.warn("some log lines are lost: the restored database lacks them, " +
			"and the container engine has already dropped them")
	}
	s.skip = 0
	if l.At.Equal(s.place.At) {
		s.place.Lines++
	} else {
		s.place.At, s.place.Lines = l.At, 1
	}
	text := wire.AppendLogLine(nil, l.At, l.Stderr, l.Text)
	begin := s.place.Offset
	s.place.Offset += int64(len(text))
	if s.place.Offset > s.far {
		s.far = s.place.Offset
		s.lines.Add(1)
		s.remember(l)
	}
	if s.place.Offset <= s.stored {
		if s.place.Offset == s.stored {
			s.mu.Lock()
			s.note = s.place
			s.mu.Unlock()
		}
		return nil
	}
	if begin < s.stored {
		// The stored log does not end at the end of a line: the engine has dropped the
		// beginning of its log. Go on from here.
		s.place.Offset = s.stored + int64(len(text))
		s.log.Warn("engine log was rotated, some lines are lost or repeated")
	}
	return s.push(text)
}

// push waits for room. The engine keeps, and bounds, a log that is written faster than
// it is sent.
func (s *logShipper) push(text []byte) error {
	for {
		s.mu.Lock()
		switch {
		case s.dead:
			s.mu.Unlock()
			return errGivenUp
		case s.back != nil:
			s.mu.Unlock()
			return errBack
		case len(s.buf) < bufferBytes:
			s.buf = append(s.buf, text...)
			s.mu.Unlock()
			notify(s.ready)
			return nil
		}
		s.mu.Unlock()
		select {
		case <-s.room:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// notify puts a token into a channel of capacity 1, unless one is waiting already.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end announces to the sender that nothing more will come, unless the reader goes back.
func (s *logShipper) end() {
	s.mu.Lock()
	s.eof = s.back == nil
	s.mu.Unlock()
	notify(s.ready)
}

// send sends the buffer in pieces: the first line after a silence nearly at once, then
// a piece a second, or sooner if a piece is full. After the end of a session it asks the
// next one how much of the log the server has.
func (s *logShipper) send() {
	stored := sync.OnceFunc(func() { close(s.whole) })
	defer stored()
	var last time.Time
	for {
		chunk, offset, eof := s.next()
		if len(chunk) == 0 {
			rest := s.last
			if eof {
				stored()
			} else {
				rest = nil
			}
			select {
			case <-s.session:
				if err := s.put(offset, nil); err != nil {
					s.give(err)
					return
				}
				continue
			default:
			}
			select {
			case <-s.ready:
			case <-s.session:
			case <-rest:
				return
			case <-s.ctx.Done():
				return
			}
			continue
		}
		if !eof && len(chunk) < chunkBytes {
			if s.gather(last) {
				return
			}
			chunk, offset, _ = s.next()
		}
		if len(chunk) == 0 {
			continue // it has gone back meanwhile
		}
		if err := s.put(offset, chunk); err != nil {
			s.give(err)
			return
		}
		last = time.Now()
	}
}

// put stores a piece, or none, and notes how much of the log the server has.
func (s *logShipper) put(offset int64, chunk []byte) error {
	return s.retry.insist("store a piece of the log", func(ctx context.Context) error {
		if err := failpoint.Hit("agent.log.before"); err != nil {
			return err
		}
		_, session, err := s.control.terms(ctx)
		if err != nil {
			return err
		}
		end, err := s.control.appendLog(ctx, s.alloc, offset, chunk)
		switch {
		case err != nil && len(chunk) == 0 && berth.CodeOf(err) == berth.CodeInvalid:
			end = offset // an older server takes no empty piece
		case berth.IsSlug(err, berth.SlugStaleAttempt):
			// A restored row may be behind the member until the next report. If the
			// member is really over, the server orders it to be forgotten.
			return berth.Errorf(berth.CodeUnavailable, "%v", err)
		case err != nil:
			return err
		}
		_ = failpoint.Hit("agent.log.after")
		// After a restore the server finds the pieces in its store again, some at a time.
		for before := int64(-1); end < offset && end > before; {
			before = end
			if end, err = s.control.appendLog(ctx, s.alloc, offset, nil); err != nil {
				return err
			}
		}
		s.session = session
		if end < offset {
			s.turnBack(end)
			return nil
		}
		s.acked(end)
		return nil
	})
}

// gather waits until enough lines or enough time have passed for the next upload, and reports
// whether the member has ended.
func (s *logShipper) gather(last time.Time) bool {
	t := s.timing
	wait := time.NewTimer(max(t.LogFirst, t.LogEvery-time.Since(last)))
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
			return false
		case <-s.ctx.Done():
			return true
		case <-s.ready:
			s.mu.Lock()
			enough := s.eof || len(s.buf) >= chunkBytes
			s.mu.Unlock()
			if enough {
				return false
			}
		}
	}
}

// next returns the next piece, of whole lines, and its offset.
func (s *logShipper) next() (chunk []byte, offset int64, eof bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	chunk = s.buf
	if len(chunk) > chunkBytes {
		if cut := bytes.LastIndexByte(chunk[:chunkBytes], '\n'); cut >= 0 {
			chunk = chunk[:cut+1]
		} else {
			chunk = chunk[:bytes.IndexByte(chunk, '\n')+1]
		}
	}
	return bytes.Clone(chunk), s.base, s.eof
}

// acked drops the part of the buffer that the server has. Its end may be ahead of the
// sent piece: an answer was lost, and the piece was longer then.
func (s *logShipper) acked(end int64) {
	s.mu.Lock()
	n := min(max(end-s.base, 0), int64(len(s.buf)))
	s.note = s.note.after(s.buf[:n], s.base+n)
	note := s.note
	if n > 0 {
		s.places = append(thinned(s.places), note)
	}
	s.buf = append(s.buf[:0], s.buf[n:]...)
	s.base += n
	finished := s.eof
	s.mu.Unlock()
	notify(s.room)
	if n > 0 && !finished {
		_ = writeJSON(s.notes(), note) // a lost note costs reading, not lines
	}
}

// give ends the shipping: the reader's lines go nowhere.
func (s *logShipper) give(err error) {
	s.mu.Lock()
	s.dead, s.buf = true, nil
	if s.stop != nil {
		s.stop()
	}
	s.mu.Unlock()
	notify(s.room)
	if errors.Is(err, errGivenUp) {
		s.reports.warn("the rest of the log was not stored: " + err.Error())
	}
}

const (
	logPatience = 10 * time.Second // with the engine for the last lines, before an end is judged without them
	maxTailLine = 512
)

// remember keeps the last lines of the log, in which evidence searches the sign of a failure.
func (s *logShipper) remember(l node.LogLine) {
	text := l.Text
	if len(text) > maxTailLine {
		text = text[:maxTailLine]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tail) == 2*failure.SignLines {
		s.tail = slices.Delete(s.tail, 0, failure.SignLines)
	}
	s.tail = append(s.tail, text)
}

// linesSoFar returns the last lines of the log that the engine has delivered so far.
func (s *logShipper) linesSoFar() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tail)
}

// lastLines returns the last lines of the log. It waits up to logPatience until the engine has
// delivered the whole log, and returns the lines so far after that.
func (s *logShipper) lastLines(ctx context.Context) []string {
	patience := time.NewTimer(logPatience)
	defer patience.Stop()
	select {
	case <-s.wasRead:
	case <-patience.C:
	case <-ctx.Done():
	}
	return s.linesSoFar()
}
