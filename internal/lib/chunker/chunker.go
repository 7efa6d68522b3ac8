// Package chunker cuts content into chunks at places that the content itself decides. The same bytes are cut at the
// same places wherever they lie in a file, so an insertion changes the chunks near it and leaves all others.
//
// A cut is made where a hash of the last 64 bytes has enough zero bits: a gear hash with two masks, as FastCDC
// (Xia et al., 2016). Chunks have Min to Max bytes, and about Average on random content. The constants and the table
// decide how much two versions of Berth share: a change of them makes every content new once.
package chunker

import (
	"errors"
	"io"
)

// Bounds of chunks, in bytes. Only the last chunk of a content may be shorter than Min.
const (
	Min     = 256 << 10
	Average = 1 << 20
	Max     = 4 << 20
)

const (
	window = 64 // bytes that decide: each step shifts the hash of 64 bits by one

	// Cuts are rarer before Average bytes and more frequent after them, which keeps most lengths near Average. The
	// highest bits of the hash depend on the whole window.
	rare     = uint64(1<<22-1) << (64 - 22)
	frequent = uint64(1<<18-1) << (64 - 18)
)

// gear has a random number for each byte.
var gear = table()

// table computes the numbers by splitmix64 from a fixed seed, since all agents must cut alike.
func table() (t [256]uint64) {
	seed := uint64(0x62657274682f6364)
	for i := range t {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		t[i] = z ^ z>>31
	}
	return t
}

// Split reads r to its end and calls each for every chunk, in order. A chunk is valid during the call alone. An error
// of each ends Split and is returned. Split keeps 2*Max bytes.
func Split(r io.Reader, each func(chunk []byte) error) error {
	buffer := make([]byte, 2*Max)
	from, to, end := 0, 0, false // the unread bytes of the buffer, and whether r has ended
	for {
		if to-from < Max && !end {
			to = copy(buffer, buffer[from:to])
			from = 0
			n, err := io.ReadFull(r, buffer[to:])
			to += n
			end = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
			if err != nil && !end {
				return err
			}
		}
		if from == to {
			return nil
		}
		n := cut(buffer[from:to])
		if err := each(buffer[from : from+n]); err != nil {
			return err
		}
		from += n
	}
}

// cut returns the length of the first chunk of data, which holds at least Max bytes or the rest of the content.
func cut(data []byte) int {
	data = data[:min(len(data), Max)]
	if len(data) <= Min {
		return len(data)
	}
	hash := uint64(0)
	for _, b := range data[Min-window : Min] {
		hash = hash<<1 + gear[b]
	}
	usual := min(Average, len(data))
	for i, b := range data[Min:usual] {
		hash = hash<<1 + gear[b]
		if hash&rare == 0 {
			return Min + i + 1
		}
	}
	for i, b := range data[usual:] {
		hash = hash<<1 + gear[b]
		if hash&frequent == 0 {
			return usual + i + 1
		}
	}
	return len(data)
}
