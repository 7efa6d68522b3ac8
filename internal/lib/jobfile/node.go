package jobfile

import "fmt"

// kind is the syntactic form of a value, before its meaning is known.
type kind int

const (
	null kind = iota
	boolean
	number
	text
	list
	mapping
)

// String names the kind as faults do: "got a list".
func (k kind) String() string {
	switch k {
	case null:
		return "nothing"
	case boolean:
		return "true or false"
	case number:
		return "a number"
	case text:
		return "text"
	case list:
		return "a list"
	case mapping:
		return "a mapping"
	default:
		panic(fmt.Sprintf("unknown kind %d", int(k)))
	}
}

// place is a position in the source, from 1, with its width in characters. The zero place
// means that the position is unknown.
type place struct{ line, column, width int }

// node is a value of the source and its place. A node may have several parents: the
// aliases of an anchor share one.
type node struct {
	kind    kind
	text    string // of a scalar, as the user wrote it, without quotes
	at      place
	items   []*node
	entries []entry
}

// entry is one key of a mapping. Keys may repeat; the decoder refuses repeated keys.
type entry struct {
	key   string
	at    place
	value *node
}

// syntaxError reports that a text is neither YAML nor JSON.
type syntaxError struct {
	at     place
	detail string
}

func (e *syntaxError) Error() string { return e.detail }
