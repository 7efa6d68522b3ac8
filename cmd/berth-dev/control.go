package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/devstack/dockerd"
	"berth/internal/machine/firewall"
)

// serveControl serves `berth-dev kill-machine` on a Unix socket in the folder, until ctx
// ends.
func serveControl(ctx context.Context, l layout, machines []*machine) error {
	_ = os.Remove(l.control()) // left by a killed process; the folder's lock is ours
	listener, err := net.Listen("unix", l.control())
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	// Only the owner of the stack may kill its machines.
	if err := os.Chmod(l.control(), 0o600); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /machines/{name}/kill", func(w http.ResponseWriter, r *http.Request) {
		i := slices.IndexFunc(machines, func(m *machine) bool { return m.name == r.PathValue("name") })
		if i < 0 {
			http.Error(w, "no such machine", http.StatusNotFound)
			return
		}
		if err := machines[i].kill(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	server := &http.Server{Handler: mux}
	// Serve does not watch ctx; closing the server ends it.
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// askKill is the client of serveControl.
func askKill(ctx context.Context, dir, name string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	l := layout{dir}
	// Every connection goes to the socket; the host name in the URL means nothing.
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.control())
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://berth-dev/machines/"+name+"/kill", nil)
	if err != nil {
		return err
	}
	answer, err := c.Do(req)
	if err != nil {
		return fmt.Errorf("no berth-dev runs on %s: %w", dir, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		// The body is the error's text, for the user.
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("kill machine %s: %s", name, strings.TrimSpace(string(said)))
	}
	return nil
}

// down stops the private engines of a stopped stack, with their containers. It fails while
// a berth-dev runs on the folder.
func down(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	lock, err := layout{dir}.open()
	if err != nil {
		return err
	}
	defer lock.Close()
	engines, err := filepath.Glob(filepath.Join(dir, "machines", "*", "docker"))
	if err != nil {
		return err
	}
	for _, path := range engines {
		// Start adopts an engine that runs; one that has ended starts, so that its
		// containers, which outlive it, end too.
		d, err := dockerd.Start(ctx, dockerd.Options{Dir: path})
		if err != nil {
			return err
		}
		if err := d.Stop(ctx); err != nil {
			return err
		}
		// A killed agent has left its rules for these containers behind.
		machine := filepath.Dir(path)
		if err := firewall.Delete(ctx, filepath.Join(machine, "agent")+"/"+filepath.Base(machine), ""); err != nil {
			return err
		}
		fmt.Println("stopped the engine of", filepath.Base(machine))
	}
	return nil
}
