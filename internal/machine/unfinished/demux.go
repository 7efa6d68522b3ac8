package unfinished

import (
	"encoding/binary"
	"fmt"
	"time"
)

// demux splits the engine's stream into stdout and stderr. Each frame has a header of 8 bytes: the stream, three zeros,
// and the length of the frame's output.
type demux struct {
	to     *lines
	header [8]byte
	have   int    // bytes of header
	left   uint32 // bytes of the present frame that are still to come
}

// write takes the next bytes of the stream, which may be cut at any place.
func (d *demux) write(p []byte, now time.Time) error {
	for len(p) > 0 {
		if d.left > 0 {
			part := p[:min(len(p), int(d.left))]
			// Streams 0 and 3 have no output of the job.
			if to := int(d.header[0]); to == 1 || to == 2 {
				d.to[to-1].write(part, now)
			}
			d.left -= uint32(len(part))
			p = p[len(part):]
			continue
		}
		n := copy(d.header[d.have:], p)
		d.have += n
		p = p[n:]
		if d.have < len(d.header) {
			return nil
		}
		if d.header[0] > 3 || d.header[1] != 0 || d.header[2] != 0 || d.header[3] != 0 {
			return fmt.Errorf("the engine's stream has no frame header but % x: the container has a terminal", d.header)
		}
		d.have, d.left = 0, binary.BigEndian.Uint32(d.header[4:])
	}
	return nil
}
