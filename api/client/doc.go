// Package client is the typed Go client of Berth's HTTP API, for programs, for the
// command line and for tests. It is written by hand: client and server share the types of
// packages berth, spec and wire, which a generated client would only repeat.
//
// Every call returns a *berth.Error with code, slug and fields for a refusal of the
// server, and any other error for a server that could not be reached (see Unreachable).
//
// The client repeats a call for up to 15 s if the server asks for that and a second call
// has no second effect; see Client. A call that returns one JSON document ends after a
// minute. Streams, downloads and uploads last as long as their context.
//
// The one rule to know: a broken stream is resumed where it stopped, without gap or
// repeat; it ends when the server announces its end.
package client
