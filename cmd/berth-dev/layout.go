package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// layout is where things lie below --dir.
type layout struct{ dir string }

func (l layout) postgres() string           { return filepath.Join(l.dir, "postgres") }
func (l layout) blobs() string              { return filepath.Join(l.dir, "blobs") }
func (l layout) token() string              { return filepath.Join(l.dir, "admin-token") }
func (l layout) secretKey() string          { return filepath.Join(l.dir, "secret-key") }
func (l layout) addresses() string          { return filepath.Join(l.dir, "stack.json") }
func (l layout) ports() string              { return filepath.Join(l.dir, "ports.json") }
func (l layout) control() string            { return filepath.Join(l.dir, "control.sock") }
func (l layout) lock() string               { return filepath.Join(l.dir, "lock") }
func (l layout) machine(name string) string { return filepath.Join(l.dir, "machines", name) }

// open makes the folder and locks it: one berth-dev a folder.
func (l layout) open() (*os.File, error) {
	// PostgreSQL runs under another uid where we are root, so the folder must
	// be open to pass through.
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.lock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is in use by another berth-dev: stop it, or choose another --dir", l.dir)
	}
	return f, nil
}

// addresses is what a running stack tells scripts, in stack.json.
type addresses struct {
	API         string `json:"api,omitempty"`
	TokenFile   string `json:"token_file,omitempty"`
	Temporal    string `json:"temporal,omitempty"`
	TemporalUI  string `json:"temporal_ui,omitempty"`
	DatabaseURL string `json:"database_url,omitempty"`
	BlobURL     string `json:"blob_url,omitempty"`
	PID         int    `json:"pid"`
}

// write publishes the addresses; the file appears whole, when all are true.
func (l layout) write(a addresses) error {
	b, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.addresses()+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(l.addresses()+".new", l.addresses())
}
