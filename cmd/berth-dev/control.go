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
)

// serveControl answers `berth-dev kill-machine` on a socket in the folder.
func serveControl(ctx context.Context, l layout, machines []*machine) error {
	_ = os.Remove(l.control()) // left by a killed process; the folder's lock is ours
	listener, err := net.Listen("unix", l.control())
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
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
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// askKill is the client's side of serveControl.
func askKill(ctx context.Context, dir, name string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	l := layout{dir}
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
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("kill machine %s: %s", name, strings.TrimSpace(string(said)))
	}
	return nil
}

// down ends the private engines that a stopped stack left running.
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
		d, err := dockerd.Start(ctx, dockerd.Options{Dir: path})
		if err != nil {
			return err
		}
		if err := d.Stop(ctx); err != nil {
			return err
		}
		fmt.Println("stopped the engine of", filepath.Base(filepath.Dir(path)))
	}
	return nil
}
