package main

import (
	"context"
	"fmt"
	"time"
)

// watchPause is the time between two screens of --watch.
const watchPause = 2 * time.Second

// watchScreen calls draw again and again until Ctrl-C. draw clears the screen once it has its data,
// and prints. A server that does not answer for a while is reported in place of the data.
// instead names the way of programs, for which --watch is refused.
func watchScreen(ctx context.Context, a *app, instead string, draw func() error) error {
	if !a.outTerm.terminal || a.Output != "table" && a.Output != "wide" {
		return usagef("--watch is for a terminal, with -o table or wide; %s", instead)
	}
	for {
		if err := draw(); err != nil && !passing(err) {
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

// clearScreen moves to the top left of the terminal, clears below, and prints the time: the screen does
// not flicker as it would if it were cleared first.
func clearScreen(a *app, note string) {
	fmt.Fprintf(a.out, "\x1b[H\x1b[J%s  %s\n\n", a.now().UTC().Format("15:04:05Z"),
		a.outTerm.paint(faint, "every 2 s; "+note))
}
