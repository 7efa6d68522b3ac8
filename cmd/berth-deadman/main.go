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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "berth-deadman:", err)
		os.Exit(1)
	}
}

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
	if *beat < 10*time.Millisecond || *beat > deadman.MaxBeat/2 {
		return fmt.Errorf("--beat %s: allowed are 10ms to %s", *beat, deadman.MaxBeat/2)
	}
	dir, err := filepath.Abs(*state)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	// When memory runs out this process must be the last to go.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0o644); err != nil {
		log.Warn("not kept from being killed for want of memory", "err", err)
	}
	log.Info("berth-deadman starts", "state_dir", dir, "beat", *beat, "end_idle", *endIdle)
	return deadman.Run(ctx, deadman.Options{Dir: deadman.Dir(dir), Beat: *beat, EndIdle: *endIdle, Logger: log})
}
