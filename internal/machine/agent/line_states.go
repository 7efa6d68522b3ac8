package agent

import (
	"errors"

	"berth/activities/node"
)

// lineState is the state of the reader of one member's unfinished line.
type lineState string

// The states.
const (
	lineIdle    lineState = ""         // no reader: no follower, or the container does not run
	lineStarted lineState = "started"  // the reader's process runs and attaches itself to the container
	lineReading lineState = "reading"  // the reader is attached and sends pictures
	lineEnded   lineState = "ended"    // the stream ended: the container has, or its engine was restarted
	lineLeft    lineState = "left"     // the reader left a container that writes too fast
	lineKilled  lineState = "killed"   // the kernel's timer killed the reader, or it failed
	lineGivenUp lineState = "given up" // killed maxLineKills times
)

// lineEvent is what happens to a reader.
type lineEvent string

// The events.
const (
	lineStart    lineEvent = "start"     // the member is followed, its container runs, and the pause is over
	lineAttached lineEvent = "attached"  // the first picture
	lineOver     lineEvent = "over"      // the stream ended
	lineTooFast  lineEvent = "too fast"  // the reader left
	lineDied     lineEvent = "died"      // the reader was killed, or failed
	lineDiedLast lineEvent = "died last" // the same, for the last time that is allowed
	lineUnwanted lineEvent = "unwanted"  // no client follows the member, or the member ends
)

// maxLineKills bounds how often the readers of one member may be killed: each may have held up the container for as
// long as the kernel's timer.
const maxLineKills = 3

// lineMoves is the table of states. An event without an entry leaves the state as it is: it comes from a reader that
// was replaced meanwhile.
//
//	state     event      next      then
//	--------  ---------  --------  -------------------------------------------------------------
//	idle      start      started   a process is started
//	started   attached   reading   pictures are sent to the server
//	started,  over       ended     the picture is cleared; after a pause again, if the container runs
//	reading   too fast   left      the picture is cleared; after a pause again
//	          died       killed    the picture is cleared; after a pause again
//	          died last  given up  the picture is cleared; no further reader for this member
//	          unwanted   idle      the process is killed
//	ended,    start      started   after the pause
//	left,     unwanted   the same  a follower that comes back must not shorten the pause
//	killed
//	given up  any        given up
var lineMoves = map[lineState]map[lineEvent]lineState{
	lineIdle: {lineStart: lineStarted},
	lineStarted: {
		lineAttached: lineReading, lineOver: lineEnded, lineTooFast: lineLeft, lineDied: lineKilled,
		lineDiedLast: lineGivenUp, lineUnwanted: lineIdle,
	},
	lineReading: {
		lineOver: lineEnded, lineTooFast: lineLeft, lineDied: lineKilled, lineDiedLast: lineGivenUp,
		lineUnwanted: lineIdle,
	},
	lineEnded:  {lineStart: lineStarted},
	lineLeft:   {lineStart: lineStarted},
	lineKilled: {lineStart: lineStarted},
}

// after returns the state that follows an event.
func (s lineState) after(e lineEvent) lineState {
	if next, ok := lineMoves[s][e]; ok {
		return next
	}
	return s
}

// runs reports whether a reader's process runs in the state.
func (s lineState) runs() bool { return s == lineStarted || s == lineReading }

// lineEnd returns the event that a reader's end is. kills counts the deaths of the member's readers that may have held
// up the container, this one included.
func lineEnd(err error, kills int) lineEvent {
	switch {
	case err == nil:
		return lineOver
	case errors.Is(err, node.ErrOutputTooFast):
		return lineTooFast
	case kills >= maxLineKills:
		return lineDiedLast
	default:
		return lineDied
	}
}
