// Package unfinished reads the unfinished last line of a container's output, such as a progress bar. The logs of the
// container engine contain only finished lines.
//
// The engine copies output to each attached client in turn and waits for the slowest client. A client that stops
// reading therefore blocks the container once about a megabyte is buffered. So the client is a separate process, the
// reader, and the kernel kills a reader that does not read:
//
//   - The reader creates a timer of the kernel (timer_create) that sends SIGKILL, and sets the timer again before each
//     read. A reader that is stopped (SIGSTOP), debugged or starved is killed at most Patience after its last read, and
//     the engine drops its stream. SIGKILL ends stopped processes; neither the reader nor the agent takes part.
//   - The reader leaves a container that writes more than MaxRate, or that takes more than MaxReads: no person reads
//     such output, and the reader must not be the slowest part, nor cost other containers their CPU time.
//   - The reader never waits for the agent: it hands over the last picture, or drops it.
//   - The reader ends with the agent, whose end closes its standard input.
//
// The reader is the agent's own program, started with Argument. Read starts a reader and returns its result; Main is
// the reader itself.
package unfinished

import "time"

const (
	// Argument is the first argument of a process that is a reader.
	Argument = "read-unfinished-line"

	// Patience is the time of the kernel's timer: the longest time for which a reader may hold up a container.
	Patience = 2 * time.Second

	// MaxRate is the output of a container in bytes within one second above which a reader leaves.
	MaxRate = 8 << 20

	// MaxReads is the number of reads within one second above which a reader leaves. A container that writes a few
	// bytes at a time costs the reader a read for each of them.
	MaxReads = 20_000

	// Every is the least time between two pictures.
	Every = time.Second
)
