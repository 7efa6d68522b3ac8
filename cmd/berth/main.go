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

// Main runs the command line of this process and returns its exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends the program at once, during any wait.
	context.AfterFunc(ctx, stop)
	return run(ctx, fromProcess(), os.Args[1:])
}

// fromProcess reads everything that the environment decides.
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
	}
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	a.outTerm = terminal(os.Stdout, plain)
	a.errTerm = terminal(os.Stderr, plain)
	if fd := int(os.Stdin.Fd()); term.IsTerminal(fd) {
		a.readSecret = func() ([]byte, error) { return term.ReadPassword(fd) }
	}
	return a
}

// contextsPath is where named contexts are kept: BERTH_CONFIG, or config.yaml
// in the user's configuration folder. It is empty where there is no home.
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

func terminal(f *os.File, plain bool) screen {
	fd := int(f.Fd())
	if !term.IsTerminal(fd) {
		return screen{}
	}
	width, _, err := term.GetSize(fd)
	if err != nil || width < 40 {
		width = 80
	}
	return screen{terminal: true, colour: !plain, width: width}
}
