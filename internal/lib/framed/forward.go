package framed

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/yamux"
)

// A session of kind forward carries streams, one for each forwarded connection, by yamux between the
// user's program and the agent. A stream begins with the port (uint16) from the user. The agent
// answers with the length of a refusal (uint16, 0: connected) and its text; the bytes of the
// connection follow. Each end of a stream closes its own direction.

// MaxStreams is how many streams a session of kind forward may have at once.
const MaxStreams = 32

// streamWindow is the credit of a stream, the least that yamux allows. A server in a container that
// reads nothing leaves that much in the agent: with MaxStreams in each of the 64 sessions of a
// machine, 512 MiB at most.
const streamWindow = 256 << 10

// maxRefusal is the longest text of a refused stream.
const maxRefusal = 1024

// headPatience bounds the exchange at the begin of a stream.
const headPatience = 20 * time.Second

// Streams are the streams of a session. Close it; its other methods are yamux's.
type Streams struct {
	*yamux.Session
	conn   *pieces
	cancel context.CancelFunc
	pings  sync.WaitGroup
}

// Mux returns the streams over a websocket; user is true for the end that opens them. Pings keep
// the connection until the other end is dead; the streams then end.
func Mux(ws *websocket.Conn, user bool, beats Beats) (*Streams, error) {
	ctx, cancel := context.WithCancel(context.Background())
	conn := &pieces{Conn: websocket.NetConn(ctx, ws, websocket.MessageBinary)}
	ws.SetReadLimit(MaxFrame) // NetConn has lifted it
	config := yamux.DefaultConfig()
	config.AcceptBacklog = MaxStreams
	config.EnableKeepAlive = false // the websocket has pings
	config.MaxStreamWindowSize = streamWindow
	config.ConnectionWriteTimeout = 45 * time.Second
	config.StreamCloseTimeout = time.Hour // a long answer to a request whose sender has finished
	config.LogOutput = io.Discard         // errors come back from its calls
	open := yamux.Server
	if user {
		open = yamux.Client
	}
	mux, err := open(conn, config)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open streams: %w", err)
	}
	s := &Streams{Session: mux, conn: conn, cancel: cancel}
	s.pings.Go(func() {
		_ = Keep(ctx, ws, beats)
		_ = mux.Close()
	})
	return s, nil
}

// Close ends all streams and the connection.
func (s *Streams) Close() error {
	err := s.Session.Close()
	s.cancel()
	s.pings.Wait()
	return err
}

// Cause returns the error with which the connection ended, nil before its end.
func (s *Streams) Cause() error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.conn.err
}

// pieces writes messages of at most MaxPayload bytes, and notes the end of the connection.
type pieces struct {
	net.Conn

	mu  sync.Mutex
	err error
}

func (p *pieces) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err == nil {
			p.err = err
		}
	}
	return n, err
}

func (p *pieces) Write(b []byte) (written int, err error) {
	for len(b) > 0 {
		n, err := p.Conn.Write(b[:min(len(b), MaxPayload)])
		if written += n; err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

// AskPort begins a stream to a port, and returns the refusal of the agent as an error.
func AskPort(stream net.Conn, port int) error {
	_ = stream.SetDeadline(time.Now().Add(headPatience))
	defer func() { _ = stream.SetDeadline(time.Time{}) }()
	if _, err := stream.Write(binary.BigEndian.AppendUint16(nil, uint16(port))); err != nil {
		return err
	}
	var head [2]byte
	if _, err := io.ReadFull(stream, head[:]); err != nil {
		return err
	}
	n := min(int(binary.BigEndian.Uint16(head[:])), maxRefusal)
	if n == 0 {
		return nil
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(stream, text); err != nil {
		return err
	}
	return fmt.Errorf("%s", text)
}

// TakePort reads the port at the begin of a stream.
func TakePort(stream net.Conn) (int, error) {
	_ = stream.SetReadDeadline(time.Now().Add(headPatience))
	defer func() { _ = stream.SetReadDeadline(time.Time{}) }()
	var head [2]byte
	_, err := io.ReadFull(stream, head[:])
	return int(binary.BigEndian.Uint16(head[:])), err
}

// AnswerPort answers the begin of a stream; refusal nil: connected.
func AnswerPort(stream net.Conn, refusal error) error {
	text := ""
	if refusal != nil {
		text = refusal.Error()
		text = text[:min(len(text), maxRefusal)]
	}
	_, err := stream.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...))
	return err
}

// Splice copies between two connections until both directions have ended. The end of one direction
// is passed on, and leaves the other one open.
func Splice(a, b net.Conn) {
	var all sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		all.Go(func() {
			_, err := io.Copy(way[0], way[1])
			if half, ok := way[0].(interface{ CloseWrite() error }); ok && err == nil {
				_ = half.CloseWrite()
				return
			}
			_ = way[0].Close() // of a stream: its own direction only
			if err != nil {
				_ = way[1].Close()
			}
		})
	}
	all.Wait()
	_, _ = a.Close(), b.Close()
}
