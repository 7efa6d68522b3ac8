package framed

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/coder/websocket"

	"berth/wire"
)

// Size is the size of a terminal, the payload of Resize.
type Size struct {
	Rows    int `json:"rows"`
	Columns int `json:"columns"`
}

// causes are the causes of close frames. The code of a cause is firstCode + its place, so the
// list only grows.
var causes = []wire.SessionCause{
	wire.CauseExited, wire.CauseClientGone, wire.CauseMachineGone, wire.CauseRefused, wire.CauseJobEnded,
	wire.CauseAgentStops, wire.CauseRevoked, wire.CauseTooLong, wire.CauseServerStops, wire.CauseNoAgent,
	wire.CauseExpired, wire.CauseReplicaFails,
}

const (
	firstCode = 4000 // of the codes that applications define
	maxReason = 123  // bytes, by RFC 6455
)

// Close closes a websocket with a cause, and waits a few seconds for the other end to read it.
func Close(ws *websocket.Conn, cause wire.SessionCause, message string) {
	code := websocket.StatusNormalClosure
	if i := slices.Index(causes, cause); i > 0 {
		code = websocket.StatusCode(firstCode + i)
	}
	if len(message) > maxReason {
		message = strings.ToValidUTF8(message[:maxReason], "")
	}
	_ = ws.Close(code, message)
}

// Closed returns the cause and the message of the close frame that ended a connection. ok is
// false for a connection without one, which was cut.
func Closed(err error) (cause wire.SessionCause, message string, ok bool) {
	e, ok := errors.AsType[websocket.CloseError](err)
	if !ok {
		return "", "", false
	}
	if i := int(e.Code) - firstCode; i > 0 && i < len(causes) {
		return causes[i], e.Reason, true
	}
	if e.Code == websocket.StatusNormalClosure {
		return wire.CauseExited, e.Reason, true
	}
	return "", e.Reason, false
}

// StatusOf returns the status in a frame, nil for any other frame.
func StatusOf(frame []byte) *wire.SessionStatus {
	if len(frame) == 0 || Channel(frame[0]) != Status {
		return nil
	}
	var s wire.SessionStatus
	if json.Unmarshal(frame[1:], &s) != nil {
		return nil
	}
	return &s
}

// SendStatus sends the end of the session.
func (c *Conn) SendStatus(s wire.SessionStatus) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return c.Send(Status, text)
}
