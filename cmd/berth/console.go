package main

import (
	"os"
	"sync"

	"golang.org/x/term"
)

// processConsole is the terminal of this process.
type processConsole struct{ in, out int } // file descriptors

// openConsole returns the console, nil unless input and output are terminals.
func openConsole() console {
	in, out := int(os.Stdin.Fd()), int(os.Stdout.Fd())
	if !term.IsTerminal(in) || !term.IsTerminal(out) {
		return nil
	}
	return processConsole{in, out}
}

// Raw switches the terminal to raw mode.
func (c processConsole) Raw() (restore func(), err error) {
	before, err := term.MakeRaw(c.in)
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { _ = term.Restore(c.in, before) }), nil
}

// Size returns the size of the terminal.
func (c processConsole) Size() (rows, columns int) {
	columns, rows, err := term.GetSize(c.out)
	if err != nil {
		return 0, 0
	}
	return rows, columns
}
