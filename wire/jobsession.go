package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// JobSession is a session that a user has requested in a running member. The user connects to
// it once, by websocket, before it expires.
type JobSession struct {
	ID        string           `json:"id"`
	Kind      spec.SessionKind `json:"kind"`
	Job       berth.JobID      `json:"job"`
	Attempt   int              `json:"attempt"`
	Member    int              `json:"member"`
	Machine   berth.MachineID  `json:"machine"`
	ExpiresAt time.Time        `json:"expires_at" doc:"time by which the user must connect"`
}

// SessionRecord is the record of a session in a container of a job, from its request to its end.
// Servers delete records after the retention that their operator has set.
type SessionRecord struct {
	ID      string           `json:"id"`
	Kind    spec.SessionKind `json:"kind"`
	State   SessionState     `json:"state" doc:"waiting (the two ends are not connected yet), open or ended"`
	Attempt int              `json:"attempt"`
	Member  int              `json:"member"`
	Machine berth.MachineID  `json:"machine"`
	Actor   string           `json:"actor" doc:"caller that requested the session, such as user:alice"`
	Command string           `json:"command,omitempty" doc:"exec: the first 400 bytes; files: direction and path"`
	Reason  string           `json:"reason,omitempty" doc:"reason that the user gave"`

	RequestedAt *time.Time `json:"requested_at,omitempty" doc:"absent once this part of the record is deleted"`
	StartedAt   *time.Time `json:"started_at,omitempty" doc:"time at which both ends were connected"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`

	Cause    SessionCause `json:"cause,omitempty" doc:"reason for the end"`
	Exit     *int         `json:"exit,omitempty" doc:"exit code of the command, if known"`
	BytesIn  int64        `json:"bytes_in" doc:"from the user to the container, known after the end"`
	BytesOut int64        `json:"bytes_out" doc:"from the container to the user, known after the end"`
}

// SessionState is the state of a session: waiting, open, ended.
type SessionState string

// The states.
const (
	SessionWaiting SessionState = "waiting" // the user, or the agent of the machine, has yet to connect
	SessionOpen    SessionState = "open"    // both are connected
	SessionEnded   SessionState = "ended"
)

// SessionOrder orders the agent of a member to connect to a session. Each sync answer
// carries the order with the assignments until the agent has connected or the order has expired. An
// older agent ignores the order.
type SessionOrder struct {
	ID      string             `json:"id"`
	Nonce   string             `json:"nonce"` // good for one connection
	Alloc   berth.AllocationID `json:"alloc"`
	Job     berth.JobID        `json:"job"`
	Attempt int                `json:"attempt"`
	Epoch   int64              `json:"epoch"` // of the machine, when the session was requested
	Request spec.NewSession    `json:"request"`
}

// Headers of the connection of an agent to a session.
const (
	HeaderSessionNonce = "Berth-Session-Nonce"

	// HeaderSessionHop is set on the connection between two replicas. A replica forwards
	// no connection that has it.
	HeaderSessionHop = "Berth-Session-Hop"
)

// SessionProtocol is the subprotocol of the websockets of a session.
const SessionProtocol = "berth.session.v1"

// SessionCause is the reason for the end of a session.
type SessionCause string

// The causes.
const (
	CauseExited       SessionCause = "exited"        // the command ended, or all files are copied
	CauseClientGone   SessionCause = "client_gone"   // the user's connection ended first
	CauseMachineGone  SessionCause = "machine_gone"  // the agent's connection ended without a status
	CauseRefused      SessionCause = "refused"       // the agent could not serve the session
	CauseJobEnded     SessionCause = "job_ended"     // the container, or the attempt, ended
	CauseAgentStops   SessionCause = "agent_stops"   // the agent was stopped or updated
	CauseRevoked      SessionCause = "token_revoked" // or it has expired
	CauseTooLong      SessionCause = "too_long"      // the longest life of a session has passed
	CauseServerStops  SessionCause = "server_stops"  // this replica of berthd stops
	CauseNoAgent      SessionCause = "no_agent"      // the agent did not connect in time
	CauseExpired      SessionCause = "expired"       // the user never connected
	CauseReplicaFails SessionCause = "replica_lost"  // the replica of an open session no longer renews it
)

// SessionStatus is the last frame of an agent, and the only proof of the end of a session: a
// connection that ends without one was cut.
type SessionStatus struct {
	// Exit is the exit code of the command, 128 + n for a command that signal n ended. nil: the
	// session has no command, or the end of the command is not known; Cause and Message then
	// say why.
	Exit    *int         `json:"exit,omitempty"`
	Cause   SessionCause `json:"cause"`
	Message string       `json:"message,omitempty"`
}
