// Package framed carries the channels of a session (berth exec, attach, cp) over one websocket.
//
// Each binary message is a frame: one byte with the channel, then at most MaxPayload bytes.
//
//	channel  from     payload
//	0        user     input of the command
//	1, 2     machine  its output, and its errors
//	3        machine  wire.SessionStatus as JSON: the end, and the only proof of one
//	4        user     Size as JSON: the terminal has this size
//	5        user     name of a signal, such as SIGINT
//	6        both     a channel and a number of bytes (uint32): the receiver has room for so many more
//	255      both     a channel: no more bytes come on it
//
// Only channels 0 to 2 carry data. A sender of data may have Window bytes on the way that the
// receiver's program has not taken. So a program that reads nothing, such as a pager, delays no
// other channel, no ping and no close; and a connection without pongs is dead, never only slow.
//
// A connection that ends without a status frame was cut. Close frames carry a cause, see Close.
package framed
