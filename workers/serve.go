package workers

import (
	"context"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
)

const (
	firstPause = 500 * time.Millisecond
	maxPause   = 10 * time.Second

	// drain is how long a stopping worker waits for what it is at: steps take
	// milliseconds, and waits on machines return by themselves.
	drain = 5 * time.Second

	// healthLimit bounds the question whether Temporal is there.
	healthLimit = 5 * time.Second
)

// serve runs the worker that build makes, until ctx ends. It starts one when
// Temporal answers, and another when one dies. It returns ctx's error.
func serve(ctx context.Context, c client.Client, log *slog.Logger, build func(worker.Options) worker.Worker) error {
	pause := firstPause
	for ctx.Err() == nil {
		start := time.Now()
		err := serveOnce(ctx, c, log, build)
		if ctx.Err() != nil {
			break
		}
		log.Warn("worker not running; tried again", "pause", pause, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
		if time.Since(start) > time.Minute {
			pause = firstPause
		}
	}
	return ctx.Err()
}

func serveOnce(ctx context.Context, c client.Client, log *slog.Logger, build func(worker.Options) worker.Worker) error {
	// A worker's start cannot be cut short, so it is not tried in vain.
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
