package spec

import (
	"fmt"
	"path"
	"strings"

	"berth"
)

// SessionKind is the purpose of a session in a running container.
type SessionKind string

// The kinds of sessions.
const (
	SessionExec    SessionKind = "exec"    // runs a command
	SessionForward SessionKind = "forward" // carries connections to ports of the container
	SessionFiles   SessionKind = "files"   // copies files into or out of the container
)

// Directions of a session of kind SessionFiles.
const (
	CopyOut = "out" // from the container to the user
	CopyIn  = "in"  // from the user into the container
)

// Limits of a session's request.
const (
	maxSessionArgs   = 1024
	maxSessionBytes  = 64 << 10 // of all arguments; each sync of the machine carries them until its agent connects
	maxSessionReason = 512
	maxTerminal      = 10_000 // rows or columns
)

// NewSession is the body of a call that requests a session in a running member.
type NewSession struct {
	Kind    SessionKind `json:"kind,omitempty" doc:"exec (default), forward or files"`
	Member  int         `json:"member,omitempty" doc:"index of the gang member; default 0"`
	Attempt int         `json:"attempt,omitempty" doc:"default: the current one, or the held one; see hold_on_failure"`
	Command []string    `json:"command,omitempty" doc:"exec: the command and its arguments"`
	TTY     bool        `json:"tty,omitempty" doc:"exec: give the command a terminal"`
	Term    string      `json:"term,omitempty" doc:"exec with a terminal: the value of TERM"`
	Rows    int         `json:"rows,omitempty" doc:"exec: height of the terminal in lines"`
	Columns int         `json:"columns,omitempty" doc:"exec: width of the terminal in characters"`
	Path    string      `json:"path,omitempty" doc:"files: absolute path in the container"`
	Copy    string      `json:"copy,omitempty" doc:"files: out (from the container) or in (into the container)"`
	Name    string      `json:"name,omitempty" doc:"files, copied in: name of the copy, if path is a folder"`
	Reason  string      `json:"reason,omitempty" doc:"reason for the session, recorded with it"`
}

// Validate returns all faults of the request at once, or nil. It reads the request alone: whether the
// member exists and runs is checked when the session is stored.
func (n NewSession) Validate() []berth.FieldError {
	v := &validation{}
	v.oneOf("kind", string(n.Kind), string(SessionExec), string(SessionForward), string(SessionFiles))
	v.require(n.Member >= 0, "member", fmt.Sprintf("%d is negative", n.Member), "0 and more")
	v.require(n.Attempt >= 0, "attempt", fmt.Sprintf("%d is negative", n.Attempt), "0 (the current one) and more")
	v.require(len(n.Reason) <= maxSessionReason, "reason", "is too long", fmt.Sprintf("%d bytes", maxSessionReason))
	v.require(!strings.ContainsRune(n.Reason, 0), "reason", "contains a NUL byte", "text")
	exec := n.Kind == SessionExec
	v.require(exec == (len(n.Command) > 0), "command", "belongs to sessions of kind exec, which need one",
		`such as ["bash", "-l"]`)
	v.require(len(n.Command) <= maxSessionArgs, "command", "too many arguments",
		fmt.Sprintf("at most %d", maxSessionArgs))
	whole := strings.Join(n.Command, "")
	v.require(len(whole) <= maxSessionBytes, "command", fmt.Sprintf("has %d bytes", len(whole)),
		fmt.Sprintf("at most %d; longer input goes to standard input", maxSessionBytes))
	v.require(!strings.ContainsRune(whole, 0), "command", "contains a NUL byte", "text")
	v.require(exec || !n.TTY, "tty", "is only for sessions of kind exec", "false")
	v.require(isTerm(n.Term), "term", "is not the name of a terminal", "letters, digits, '-', '_', '.' and '+'")
	for field, size := range map[string]int{"rows": n.Rows, "columns": n.Columns} {
		v.require(size >= 0 && size <= maxTerminal, field, fmt.Sprintf("%d is out of range", size),
			fmt.Sprintf("0 to %d", maxTerminal))
	}
	files := n.Kind == SessionFiles
	v.require(files == (n.Path != ""), "path", "belongs to sessions of kind files, which need one",
		"an absolute path such as /workspace/model.pt")
	v.require(!files || path.IsAbs(n.Path) && len(n.Path) <= 4096 && !strings.ContainsRune(n.Path, 0), "path",
		"is not an absolute path", "such as /workspace/model.pt")
	v.require(files == (n.Copy != "") && (!files || n.Copy == CopyIn || n.Copy == CopyOut), "copy",
		"belongs to sessions of kind files, which need one", "in or out")
	plain := n.Name != "." && n.Name != ".." && !strings.ContainsAny(n.Name, "/\x00") && len(n.Name) <= 255
	v.require((n.Copy == CopyIn) == (n.Name != "") && plain, "name",
		"belongs to files that are copied in, which need one", "the last part of a path")
	return v.faults
}

// isTerm reports whether s may be the value of TERM; "" may. The agent passes it to the container's
// environment.
func isTerm(s string) bool {
	return len(s) <= 64 && strings.IndexFunc(s, func(r rune) bool {
		return r > 'z' || !strings.ContainsRune("-_.+", r) &&
			(r < '0' || r > '9' && r < 'A' || r > 'Z' && r < 'a')
	}) < 0
}

// WithDefaults returns the request with the default kind filled in.
func (n NewSession) WithDefaults() NewSession {
	if n.Kind == "" {
		n.Kind = SessionExec
	}
	return n
}

// Text describes the request in one line, for records and events.
func (n NewSession) Text() string {
	const longest = 400
	text := ""
	switch n.Kind {
	case SessionExec:
		text = strings.Join(n.Command, " ")
	case SessionFiles:
		text = n.Copy + " " + n.Path
	case SessionForward:
	}
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return strings.ToValidUTF8(text, "?")
}
