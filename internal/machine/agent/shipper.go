package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/failpoint"
)

const (
	chunkBytes  = 256 << 10 // of one call
	bufferBytes = 4 << 20   // read ahead of what is stored; then the engine keeps the rest
)

// shipper sends a rank's log to the control plane, from where the last process
// left off. The encoded log is a function of the engine's, so its byte offset
// is a place that two processes agree on.
//
// The server may have less than it had: a backup was restored. Then the reader goes
// back to a place before what the server has, and reads on from there.
type shipper struct {
	r       *member
	lines   atomic.Int64  // read of the engine, each once
	whole   chan struct{} // closed when the whole log is stored for the first time, or given up
	last    chan struct{} // closed when only the log is awaited
	done    chan struct{}
	begun   bool
	wasRead chan struct{} // closed when the engine has given the last line

	// Of the reader.
	place  place // what the engine's reader has come to
	skip   int   // lines at place.At to pass over after the engine is asked again
	stored int64 // bytes up to here are stored; what lies before is not sent again
	far    int64 // how far it has ever come: what lies before was counted

	// Of the sender.
	session <-chan struct{} // closed at the end of the session in which the server last reported its position

	mu     sync.Mutex
	buf    []byte
	base   int64              // offset of buf[0]
	eof    bool               // the log is complete
	dead   bool               // nothing more will be taken
	back   *int64             // where the reader is to go back to
	stop   context.CancelFunc // ends what the reader is reading
	places []place            // up to which the log is stored, in order, newer ones denser; bounded
	tail   []string           // the last lines
	room   chan struct{}
	ready  chan struct{}
	again  chan struct{} // the reader is to go back
	note   place         // what log.json says, or would
}

// place is a position in the engine's log: after so many lines with this very
// stamp, at this offset of the encoded log.
type place struct {
	Offset int64     `json:"offset"`
	At     time.Time `json:"at"`
	Lines  int       `json:"lines"`
}

func newShipper(r *member) *shipper {
	return &shipper{
		r: r, stored: r.claim.LogOffset, base: r.claim.LogOffset, session: r.sup.control.present(),
		whole: make(chan struct{}), last: make(chan struct{}), done: make(chan struct{}), wasRead: make(chan struct{}),
		room: make(chan struct{}, 1), ready: make(chan struct{}, 1), again: make(chan struct{}, 1),
	}
}

// begin starts reading and sending. It ends when the container has ended and
// the last line is stored, or with the rank.
func (s *shipper) begin() {
	s.begun = true
	s.place, s.skip = s.remembered()
	s.note, s.places, s.far = s.place, []place{s.place}, s.place.Offset
	s.r.helpers.Go(func() {
		defer close(s.done)
		var reading sync.WaitGroup
		sent := make(chan struct{})
		reading.Go(func() { s.read(sent) })
		s.send()
		s.give(errSent) // the reader reads no more
		close(sent)
		reading.Wait()
	})
}

// errSent ends the reader: the whole log is stored, or the rank is over.
var errSent = errors.New("the log is sent")

// finish waits until the whole log is stored, or given up.
func (s *shipper) finish(ctx context.Context) {
	if s.begun {
		s.await(ctx, s.whole)
	}
}

// conclude waits until the whole log is stored as the server has it now, once
// nothing else of the rank is left to be stored. Until then the sender watches for
// a server that has less than it had.
func (s *shipper) conclude(ctx context.Context) {
	if s.begun {
		close(s.last)
		s.await(ctx, s.done)
	}
}

func (s *shipper) await(ctx context.Context, end <-chan struct{}) {
	select {
	case <-end:
	case <-ctx.Done():
	}
}

// remembered is where to take up the engine's log. Without a note, or with one
// that is ahead of what is stored, that is its beginning.
func (s *shipper) remembered() (place, int) {
	var p place
	b, err := os.ReadFile(s.notes())
	if err != nil || json.Unmarshal(b, &p) != nil || p.Offset > s.stored {
		return place{}, 0
	}
	return p, p.Lines
}

func (s *shipper) notes() string { return filepath.Join(s.r.scratch.dir, "log.json") }

// read reads the engine's log, and again from an earlier place whenever the server
// has less than it had, until nothing more is to be sent.
func (s *shipper) read(sent <-chan struct{}) {
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

// readOn follows the engine's log from the reader's place and encodes it into the
// buffer. After the container's end an engine that does not give it is waited for
// only so long.
func (s *shipper) readOn() {
	var since time.Time
	for wait := s.r.timing().backoff(); ; {
		before := s.place
		ctx, stop := context.WithCancel(s.r.ctx)
		if !s.reads(stop) {
			stop()
			return
		}
		err := s.r.runtime().Logs(ctx, s.r.name(), s.place.At, true, s.line)
		stop()
		switch {
		case err == nil, errors.Is(err, errGivenUp), errors.Is(err, errBack), errors.Is(err, node.ErrNoContainer), s.r.ctx.Err() != nil, s.goesBack():
			return
		}
		if s.place != before {
			wait.reset()
			since = time.Time{}
		}
		switch {
		case !s.r.ended.Load():
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > s.r.timing().UploadPatience:
			s.r.reports.warn("the rest of the log was not read: " + err.Error())
			return
		}
		s.r.log.Warn("log of the engine broke off; taken up again", "err", err)
		if wait.wait(s.r.ctx) != nil {
			return
		}
		s.skip = s.place.Lines
	}
}

// line takes one line of the engine.
func (s *shipper) line(l node.LogLine) error {
	if s.skip > 0 && l.At.Equal(s.place.At) {
		s.skip--
		return nil
	}
	if s.skip > 0 && s.skip == s.place.Lines && s.place.Offset < s.far {
		// The engine has thrown away what lies behind the place that the reader went
		// back to. Those lines are lost: go on with the rest.
		s.place.Offset = s.stored
		s.r.reports.warn("the container engine has thrown away a part of the log that the restored database lacks: some lines are lost")
	}
	s.skip = 0
	if l.At.Equal(s.place.At) {
		s.place.Lines++
	} else {
		s.place.At, s.place.Lines = l.At, 1
	}
	text := berth.AppendLogLine(nil, l.At, l.Stderr, l.Text)
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
		// What is stored does not end where a line ends: the engine has thrown
		// away the beginning of its log. Go on from here.
		s.place.Offset = s.stored + int64(len(text))
		s.r.log.Warn("the engine's log does not begin where it did; some lines are lost or doubled")
	}
	return s.push(text)
}

// push waits for room: a log that is written faster than it is sent stays with
// the engine, which bounds it.
func (s *shipper) push(text []byte) error {
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
		case <-s.r.ctx.Done():
			return context.Cause(s.r.ctx)
		}
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end announces to the sender that nothing more will come, unless the reader goes back.
func (s *shipper) end() {
	s.mu.Lock()
	s.eof = s.back == nil
	s.mu.Unlock()
	notify(s.ready)
}

// send sends the buffer in pieces: the first line after a silence nearly at
// once, then a piece a second, or whenever there is a piece's worth. When a session
// is over it asks the next one how much of the log there is.
func (s *shipper) send() {
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
			case <-s.r.ctx.Done():
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

// put stores a piece, or none, and takes in how much the server has.
func (s *shipper) put(offset int64, chunk []byte) error {
	return s.r.insist("store a piece of the log", func(ctx context.Context) error {
		if err := failpoint.Hit("agent.log.before"); err != nil {
			return err
		}
		_, session, err := s.r.sup.control.terms(ctx)
		if err != nil {
			return err
		}
		end, err := s.r.sup.control.appendLog(ctx, s.r.alloc, offset, chunk)
		switch {
		case err != nil && len(chunk) == 0 && berth.CodeOf(err) == berth.CodeInvalid:
			end = offset // an older server takes no empty piece
		case berth.IsSlug(err, berth.SlugStaleAttempt):
			// A restored row may be behind the rank until it has been reported. If the
			// rank is really over, the server orders it to be forgotten.
			return berth.Errorf(berth.CodeUnavailable, "%v", err)
		case err != nil:
			return err
		}
		_ = failpoint.Hit("agent.log.after")
		// After a restore the server finds again what its store has, some at a time.
		for before := int64(-1); end < offset && end > before; {
			before = end
			if end, err = s.r.sup.control.appendLog(ctx, s.r.alloc, offset, nil); err != nil {
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

// gather waits for more to send together; it reports whether the rank ended.
func (s *shipper) gather(last time.Time) bool {
	t := s.r.timing()
	wait := time.NewTimer(max(t.LogFirst, t.LogEvery-time.Since(last)))
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
			return false
		case <-s.r.ctx.Done():
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

// next is the next piece, whole lines, and where it begins.
func (s *shipper) next() (chunk []byte, offset int64, eof bool) {
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

// acked drops what the server has. Its end may be ahead of what was sent: an
// answer was lost, and the piece was longer then.
func (s *shipper) acked(end int64) {
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

// after is the place behind a piece of encoded lines that ends at offset.
func (p place) after(text []byte, offset int64) place {
	next := place{Offset: offset}
	for len(text) > 0 {
		start := bytes.LastIndexByte(text[:len(text)-1], '\n') + 1
		at, _ := berth.LogLineTime(text[start:])
		if next.Lines > 0 && !at.Equal(next.At) {
			return next
		}
		next.At = at
		next.Lines++
		text = text[:start]
	}
	if next.Lines == 0 || next.At.Equal(p.At) { // every line of it goes on from before
		next.At = p.At
		next.Lines += p.Lines
	}
	return next
}

// give ends the shipping: the reader's lines go nowhere.
func (s *shipper) give(err error) {
	s.mu.Lock()
	s.dead, s.buf = true, nil
	if s.stop != nil {
		s.stop()
	}
	s.mu.Unlock()
	notify(s.room)
	if errors.Is(err, errGivenUp) {
		s.r.reports.warn("the rest of the log was not stored: " + err.Error())
	}
}
