package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"berth/internal/machine/deadman"
)

func main() {
	// The first signal stops the watchdog in order; a second one ends the process at once.
	// Containers keep running, and are not fenced until the next watchdog starts.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "berth-deadman:", err)
		os.Exit(1)
	}
}

// run parses the arguments and watches until ctx ends, or with --end-idle until nothing is
// left to watch. It fails if another process watches the same folder. An error ends the
// process with exit status 1.
func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("berth-deadman", flag.ContinueOnError)
	state := f.String("state-dir", "/var/lib/berth-agent", "the agent's state folder")
	beat := f.Duration("beat", time.Second, "how often it looks")
	endIdle := f.Bool("end-idle", false,
		"end once no work is listed and no agent is there, as one that an agent started does")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	// The agent takes a deadman whose last pulse is older than MaxBeat for dead. Half of
	// MaxBeat leaves time for one late beat.
	if *beat < 10*time.Millisecond || *beat > deadman.MaxBeat/2 {
		return fmt.Errorf("--beat %s: allowed are 10ms to %s", *beat, deadman.MaxBeat/2)
	}
	// The log then shows which folder is watched, independent of the working folder.
	dir, err := filepath.Abs(*state)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	// When memory runs out, the kernel must choose this process last: the work that it
	// fences may be the cause. The lowest score needs privileges; without them the watchdog
	// still runs.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0o644); err != nil {
		log.Warn("cannot set oom_score_adj; the OOM killer may choose this process", "err", err)
	}
	log.Info("deadman starting", "state_dir", dir, "beat", *beat, "end_idle", *endIdle)
	return deadman.Run(ctx, deadman.Options{Dir: deadman.Dir(dir), Beat: *beat, EndIdle: *endIdle, Logger: log})
}
