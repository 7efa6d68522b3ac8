package faultproxy

import "bytes"

// trap is one CutReply.
type trap struct {
	match []byte
	done  chan struct{}
}

// tail is the end of the bytes sent on a connection, so that a request is also found across the
// boundary of two reads.
type tail []byte

// spring hands the trap to the connection that sends its request.
func (p *Proxy) spring(seen *tail, data []byte) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.trap
	if t == nil {
		*seen = nil
		return nil
	}
	all := append(*seen, data...)
	if !bytes.Contains(all, t.match) {
		*seen = bytes.Clone(all[max(0, len(all)-len(t.match)+1):])
		return nil
	}
	*seen = nil
	p.trap = nil
	return t
}
