package agent

import (
	"context"
	"errors"
	"slices"
)

// errBack ends a read: the reader goes back.
var errBack = errors.New("the reader goes back")

// maxPlaces bounds the places that a reader can go back to. The newer half are the ends
// of single pieces, so that after a restore the reader is exactly where the server is.
// The older ones are thinned out, and the reader skips some lines after them.
const maxPlaces = 1024

// thinned returns the places with room for one more.
func thinned(places []place) []place {
	if len(places) < maxPlaces {
		return places
	}
	kept := places[:0]
	for i, p := range places {
		if i >= maxPlaces/2 || i%2 == 0 {
			kept = append(kept, p)
		}
	}
	return kept
}

// reads notes how to end the read that is about to begin. It returns false if there is
// nothing to read now: the reader must go back, or nothing more is sent.
func (s *logShipper) reads(stop context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = stop
	return s.back == nil && !s.dead
}

// goesBack reports whether the reader has been ordered back and has not obeyed yet.
func (s *logShipper) goesBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.back != nil
}

// turnBack makes the reader go back to end: the server has lost the log after that offset.
func (s *logShipper) turnBack(end int64) {
	s.log.Warn("server lost part of the log, sending it again", "has", end)
	s.mu.Lock()
	s.back, s.eof, s.buf, s.base = &end, false, nil, end
	s.places = slices.DeleteFunc(s.places, func(p place) bool { return p.Offset > end })
	if len(s.places) == 0 {
		s.places = []place{{}} // the engine's beginning
	}
	s.note = s.places[len(s.places)-1]
	if s.stop != nil {
		s.stop()
	}
	s.mu.Unlock()
	notify(s.room)
	notify(s.again)
}

// goBack moves the reader to the last place before the server's end of the log.
func (s *logShipper) goBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.back == nil {
		return
	}
	s.stored, s.back, s.place = *s.back, nil, s.note
	s.skip = s.place.Lines
}
