package workers

import (
	"context"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"

	"berth/internal/lib/buildinfo"
)

const (
	firstPause = 500 * time.Millisecond
	maxPause   = 10 * time.Second

	// drain bounds the wait of a stopping worker for its tasks: steps take milliseconds,
	// and waits for machines return by themselves.
	drain = 5 * time.Second

	// healthLimit bounds the health check of Temporal before a start.
	healthLimit = 5 * time.Second
)

// serve runs a worker made by build until ctx ends. It starts a worker when Temporal
// answers, and a new one after a fatal error, with growing pauses. It returns ctx's error.
//
// Each history names the build that completed its tasks. The SDK's default for that name is the MD5
// hash of the program's file, which costs a start as much CPU as reading all of the file takes.
func serve(ctx context.Context, c client.Client, log *slog.Logger, build func(worker.Options) worker.Worker) error {
	worker.SetBinaryChecksum(buildinfo.Version())
	pause := firstPause
	for ctx.Err() == nil {
		start := time.Now()
		err := serveOnce(ctx, c, log, build)
		if ctx.Err() != nil {
			break
		}
		log.Warn("Temporal worker failed, will retry", "retry_in", pause, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
		// The worker ran for a while, so this failure is a new one.
		if time.Since(start) > time.Minute {
			pause = firstPause
		}
	}
	return ctx.Err()
}

// serveOnce runs one worker until ctx ends or the worker fails.
func serveOnce(ctx context.Context, c client.Client, log *slog.Logger, build func(worker.Options) worker.Worker) error {
	// A worker's start cannot be interrupted, so it is attempted only if Temporal answers.
	healthy, cancel := context.WithTimeout(ctx, healthLimit)
	_, err := c.CheckHealth(healthy, &client.CheckHealthRequest{})
	cancel()
	if err != nil {
		return err
	}
	fatal := make(chan error, 1)
	w := build(worker.Options{
		WorkerStopTimeout: drain,
		Interceptors:      []interceptor.WorkerInterceptor{&activities{log: log}},
		OnFatalError: func(err error) {
			select {
			case fatal <- err:
			// Only the first fatal error counts; the callback must not block.
			default:
			}
		},
	})
	if err := w.Start(); err != nil {
		return err
	}
	defer w.Stop()
	log.Info("worker started")
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-fatal:
		return err
	}
}
