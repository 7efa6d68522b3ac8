package client

import (
	"context"
	"net"
	"sync"

	"github.com/coder/websocket"

	"berth"
	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// A Forward is an open session of kind forward. Its methods may be called concurrently.
type Forward struct {
	Session wire.JobSession

	ws    *websocket.Conn
	mux   *framed.Streams
	close sync.Once
}

// Forward opens a session that carries connections to ports of a member. The caller must Close it.
func (s Sessions) Forward(ctx context.Context, job berth.JobID, req spec.NewSession) (*Forward, error) {
	made, err := s.Open(ctx, job, req)
	if err != nil {
		return nil, err
	}
	ws, err := s.Connect(ctx, made.ID)
	if err != nil {
		return nil, err
	}
	mux, err := framed.Mux(ws, true, framed.Beats{})
	if err != nil {
		_ = ws.CloseNow()
		return nil, err
	}
	return &Forward{Session: made, ws: ws, mux: mux}, nil
}

// Dial connects to a port of the container. The error is the agent's refusal, such as a port that
// nothing listens on.
func (f *Forward) Dial(port int) (net.Conn, error) {
	stream, err := f.mux.Open()
	if err != nil {
		return nil, err
	}
	if err := framed.AskPort(stream, port); err != nil {
		_ = stream.Close()
		return nil, err
	}
	return stream, nil
}

// Done is closed at the end of the session.
func (f *Forward) Done() <-chan struct{} { return f.mux.CloseChan() }

// Err returns the reason for the end of a session that was not closed here.
func (f *Forward) Err() error { return cutOf(f.mux.Cause()) }

// Close ends the session and its connections.
func (f *Forward) Close() error {
	f.close.Do(func() {
		_ = f.ws.Close(websocket.StatusNormalClosure, "")
		_ = f.mux.Close()
	})
	return nil
}
