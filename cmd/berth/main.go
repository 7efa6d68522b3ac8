package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"berth/internal/lib/buildinfo"
)

func main() { os.Exit(Main()) }

// Main runs the command line of this process and returns its exit code; see exitCodes. The
// first SIGINT or SIGTERM cancels the context, so that a command can print which work
// continues.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// stop restores the default handling of signals: a second Ctrl-C ends the program at
	// once, during any wait.
	context.AfterFunc(ctx, stop)
	return run(ctx, fromProcess(), os.Args[1:])
}

// fromProcess returns an app with all settings of the process: environment, standard
// streams and terminal. No other code of this package reads the environment, so tests build
// an app without a process.
func fromProcess() *app {
	a := &app{
		config: config{
			URL:      os.Getenv("BERTH_URL"),
			Token:    os.Getenv("BERTH_TOKEN"),
			Context:  os.Getenv("BERTH_CONTEXT"),
			Contexts: contextsPath(os.Getenv("BERTH_CONFIG"), os.Getenv("XDG_CONFIG_HOME"), os.Getenv("HOME")),
		},
		in:      os.Stdin,
		out:     os.Stdout,
		err:     os.Stderr,
		now:     time.Now,
		version: buildinfo.Version(),

		console:  openConsole(),
		termName: os.Getenv("TERM"),
		home:     os.Getenv("HOME"),
		lookup:   os.LookupEnv,
	}
	// NO_COLOR (no-color.org) and TERM=dumb switch colours off. The line of progress stays,
	// as it needs a terminal and no colours.
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	a.outTerm = terminal(os.Stdout, plain)
	a.errTerm = terminal(os.Stderr, plain)
	// Only a terminal can hide typed text; from a pipe, commands read standard input.
	if fd := int(os.Stdin.Fd()); term.IsTerminal(fd) {
		a.readSecret = func(ctx context.Context) ([]byte, error) {
			before, err := term.GetState(fd)
			if err != nil {
				return nil, err
			}
			secret, err := untilDone(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
			if ctx.Err() != nil {
				_ = term.Restore(fd, before) // ReadPassword still waits, with the echo off
			}
			return secret, err
		}
	}
	return a
}

// contextsPath returns the path of the file of contexts: BERTH_CONFIG, else config.yaml in
// the user's configuration folder. The path is "" without a home, as in some containers;
// then no context can be stored, and --url and BERTH_TOKEN still work.
func contextsPath(explicit, xdg, home string) string {
	switch {
	case explicit != "":
		return explicit
	case xdg != "":
		return filepath.Join(xdg, "berth", "config.yaml")
	case home != "":
		return filepath.Join(home, ".config", "berth", "config.yaml")
	default:
		return ""
	}
}

// terminal describes the terminal behind a stream; the zero screen if the stream is none. A
// width that is unknown or below 40 columns counts as 80: tables cut to less would be
// useless. Lines that are drawn again are cut to the present width, however small.
func terminal(f *os.File, plain bool) screen {
	fd := int(f.Fd())
	if !term.IsTerminal(fd) {
		return screen{}
	}
	measure := func() int {
		width, _, err := term.GetSize(fd)
		if err != nil {
			return 0
		}
		return width
	}
	rows := func() int {
		_, height, err := term.GetSize(fd)
		if err != nil {
			return 0
		}
		return height
	}
	width := measure()
	if width < narrowest {
		width = usualWidth
	}
	return screen{terminal: true, colour: !plain, width: width, measure: measure, rows: rows}
}
