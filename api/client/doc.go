// Package client is the typed client of Berth's HTTP API, for the command line
// and for tests. It is written by hand: what goes over the wire are the types
// of package berth, shared with the server, and a generated client would only
// repeat them.
//
// Every call returns a *berth.Error for what the server refused, with its code,
// slug and fields, and any other error for a server that could not be reached
// (see Unreachable).
//
// The one rule to know: a stream that breaks off is taken up again where it
// stopped, without gap or repeat; it ends when the server says that there will
// be nothing more.
package client
