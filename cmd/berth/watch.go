package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// watchPause is the time between two screens of --watch.
const watchPause = 2 * time.Second

// watchScreen calls draw again and again until Ctrl-C. draw clears the screen once it has its data,
// and prints. A server that does not answer for a while is reported in place of the data.
// instead names the way of programs, for which --watch is refused. A screen is cut to the height of the terminal: the
// first rows of a longer one would scroll away.
func watchScreen(ctx context.Context, a *app, instead string, draw func() error) error {
	if !a.outTerm.terminal || a.Output != "table" && a.Output != "wide" {
		return usagef("--watch is for a terminal, with -o table or wide; %s", instead)
	}
	for {
		if err := drawScreen(a, draw); err != nil && !passing(err) {
			return err
		} else if err != nil {
			clearScreen(a, "Ctrl-C ends")
			a.say("%v", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchPause):
		}
	}
}

// drawScreen calls draw, and prints its results and messages as far as they fit above the last line of the terminal,
// where the cursor stands.
func drawScreen(a *app, draw func() error) error {
	out, errs := a.out, a.err
	var b bytes.Buffer
	a.out = &b
	if a.errTerm.terminal {
		a.err = &b
	}
	err := draw()
	a.out, a.err = out, errs
	text := b.String()
	if a.outTerm.rows != nil {
		text = firstLines(text, a.outTerm.rows()-1)
	}
	if _, failed := io.WriteString(out, text); err == nil && failed != nil {
		return &outputError{failed}
	}
	return err
}

// firstLines cuts a text to n lines, of which the last counts the lines left out. Below 5 lines, as where the height is
// not known, the text stays whole.
func firstLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	if last := len(lines) - 1; lines[last] == "" {
		lines = lines[:last]
	}
	if n < 5 || len(lines) <= n {
		return text
	}
	return strings.Join(lines[:n-1], "") + fmt.Sprintf("… %d more\n", len(lines)-n+1)
}

// clearScreen moves to the top left of the terminal, clears below, and prints the time: the screen does
// not flicker as it would if it were cleared first.
func clearScreen(a *app, note string) {
	fmt.Fprintf(a.out, "\x1b[H\x1b[J%s  %s\n\n", a.now().UTC().Format("15:04:05Z"),
		a.outTerm.paint(faint, "every 2 s; "+note))
}
