package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// layout names the files and folders below --dir.
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

// open creates and locks the folder, so that a second berth-dev fails. The lock lasts until
// the returned file is closed or the process ends.
func (l layout) open() (*os.File, error) {
	// Started by root, PostgreSQL runs under another uid, so others must be able to enter
	// the folder.
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

// addresses is the content of stack.json, from which scripts learn the addresses of a
// running stack. Parts that do not run are left out.
type addresses struct {
	API         string `json:"api,omitempty"`
	TokenFile   string `json:"token_file,omitempty"`
	Temporal    string `json:"temporal,omitempty"`
	TemporalUI  string `json:"temporal_ui,omitempty"`
	DatabaseURL string `json:"database_url,omitempty"`
	BlobURL     string `json:"blob_url,omitempty"`
	PID         int    `json:"pid"`
}

// write publishes the addresses once all parts run. The file appears whole, by a rename.
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
