package node

import (
	"context"
	"errors"
	"time"
)

// LineReader is implemented by runtimes that can show the unfinished line of a container's output, such as a progress
// bar. Logs contain finished lines only.
type LineReader interface {
	// UnfinishedLines calls emit with a picture of the unfinished line after changes, about once a second at most,
	// until ctx ends or the container does. The first picture is empty and shows that the output is being read. The
	// container is never held up longer than a fixed time, also while this process is frozen.
	//
	// It returns nil after the container's end, the cause of ctx's end, ErrOutputTooFast, ErrReaderKilled, or an error
	// of the engine.
	UnfinishedLines(ctx context.Context, name string, emit func(UnfinishedLine)) error
}

// UnfinishedLine is a picture of the unfinished line of a container: text after the last line feed, without the part
// that a carriage return has overwritten. An empty text means that there is no unfinished line.
type UnfinishedLine struct {
	At     time.Time // when the text changed
	Stderr bool
	Text   string // valid UTF-8 without zero bytes, of at most MaxUnfinishedLine bytes
}

// MaxUnfinishedLine is the greatest size of the text of an UnfinishedLine in bytes. A longer line is cut.
const MaxUnfinishedLine = 4 << 10

// Reasons why a LineReader has stopped before the end of the container.
var (
	// ErrOutputTooFast means that the container writes more than any person could read.
	ErrOutputTooFast = errors.New("the container writes too fast to read its unfinished line")
	// ErrReaderKilled means that the kernel, or another process, killed the reader of the line.
	ErrReaderKilled = errors.New("the reader of the unfinished line was killed")
)
