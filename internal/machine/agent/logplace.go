package agent

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"berth/wire"
)

// place is a position in the engine's log: a stamp, the number of lines with this very
// stamp before the position, and the offset in the encoded log.
type place struct {
	Offset int64     `json:"offset"`
	At     time.Time `json:"at"`
	Lines  int       `json:"lines"`
}

// remembered returns the place to continue the engine's log from. Without a note, or
// with a note that is ahead of the stored log, that is the log's beginning.
func (s *logShipper) remembered() (place, int) {
	var p place
	b, err := os.ReadFile(s.notes())
	if err != nil || json.Unmarshal(b, &p) != nil || p.Offset > s.stored {
		return place{}, 0
	}
	return p, p.Lines
}

// notes returns the path of the file that keeps the shipper's place across agent processes.
func (s *logShipper) notes() string { return filepath.Join(s.folder, "log.json") }

// after returns the place behind a piece of encoded lines that ends at offset.
func (p place) after(text []byte, offset int64) place {
	next := place{Offset: offset}
	for len(text) > 0 {
		start := bytes.LastIndexByte(text[:len(text)-1], '\n') + 1
		at, _ := wire.LogLineTime(text[start:])
		if next.Lines > 0 && !at.Equal(next.At) {
			return next
		}
		next.At = at
		next.Lines++
		text = text[:start]
	}
	if next.Lines == 0 || next.At.Equal(p.At) { // all of its lines have the stamp of the place before
		next.At = p.At
		next.Lines += p.Lines
	}
	return next
}
