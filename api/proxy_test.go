package api_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// breakingProxy forwards TCP connections and cuts them on request.
type breakingProxy struct {
	url      string
	listener net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// breaking puts a proxy before the server at url.
func breaking(t *testing.T, url string) *breakingProxy {
	t.Helper()
	scheme, rest, _ := strings.Cut(url, "://")
	user, at, has := strings.Cut(rest, "@")
	if !has {
		user, at = "", rest
	} else {
		user += "@"
	}
	host, path, _ := strings.Cut(at, "/")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &breakingProxy{listener: l, conns: map[net.Conn]bool{}}
	p.url = scheme + "://" + user + l.Addr().String() + "/" + path
	var wg sync.WaitGroup
	wg.Go(func() { p.serve(host, &wg) })
	t.Cleanup(func() { p.close(); wg.Wait() })
	return p
}

func (p *breakingProxy) serve(host string, wg *sync.WaitGroup) {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", host)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns[in], p.conns[out] = true, true
		p.mu.Unlock()
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			wg.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
			})
		}
	}
}

// cut breaks every connection; new ones pass.
func (p *breakingProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// close breaks every connection and takes no more.
func (p *breakingProxy) close() {
	_ = p.listener.Close()
	p.cut()
}
