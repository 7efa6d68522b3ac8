package chaos_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"berth/internal/devstack/dockerd"
	"berth/internal/devstack/temporaldev"
	"berth/internal/machine/firewall"
)

// Flags of make chaos.
var (
	budget = flag.Duration("budget", 0, "time for random cells and the soak, after the fixed cells; 0: none")
	seed   = flag.Int64("seed", 0, "replays the choices of an earlier run; 0: another one each time")
	only   = flag.String("only", "", "run only fixed cells whose name contains one of these, between commas")
)

// workshops is where runs keep everything: PostgreSQL's own user must be able to
// walk there, so it is not the test's private folder.
const workshops = "/var/tmp"

// temporalURL makes this binary a Temporal server on that PostgreSQL, in a
// process of its own that can be killed.
const (
	temporalURL  = "BERTH_CHAOS_TEMPORAL_URL"
	temporalFile = "BERTH_CHAOS_TEMPORAL_FILE" // is written when it is ready, with its address
)

func TestMain(m *testing.M) {
	if url := os.Getenv(temporalURL); url != "" {
		if err := runTemporal(url, os.Getenv(temporalFile)); err != nil {
			fmt.Fprintln(os.Stderr, "temporal:", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	if err := sweep(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: tidy up after an earlier run:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func runTemporal(url, file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := temporaldev.Start(ctx, temporaldev.Options{DatabaseURL: url, NoUI: true, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", []byte(s.Address()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	<-ctx.Done()
	return s.Stop()
}

// lockWorkshop locks a run's folder; it fails while that run lives.
func lockWorkshop(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sweep removes the leftovers of killed runs: their processes died with the test, their private
// engines may live on.
func sweep() error {
	found, err := filepath.Glob(filepath.Join(workshops, "berth-chaos-*"))
	if err != nil {
		return err
	}
	for _, dir := range found {
		lock, err := lockWorkshop(dir)
		if err != nil {
			continue // that run lives
		}
		engines, _ := filepath.Glob(filepath.Join(dir, "engine-*")) // the pattern is well-formed
		for _, e := range engines {
			if d, err := dockerd.Start(context.Background(), dockerd.Options{Dir: e}); err == nil {
				err = d.Remove(context.Background())
				if err != nil {
					return err
				}
			}
		}
		if err := errors.Join(deleteTables(dir), os.RemoveAll(dir)); err != nil {
			return err
		}
		_ = lock.Close()
	}
	return nil
}

// deleteTables deletes the tables of nftables that killed agents of a run have left on the host.
func deleteTables(dir string) error {
	states, err := filepath.Glob(filepath.Join(dir, "agents", "*"))
	for _, state := range states { // the agents name their tables so
		err = errors.Join(err, firewall.Delete(context.Background(), state+"/"+filepath.Base(state), ""))
	}
	return err
}
