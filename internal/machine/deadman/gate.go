package deadman

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// A gate is a folder that a container mounts, such as ranks/X/workspace. A closed
// gate has become
//
//	workspace.fenced      the folder itself, which a running container still has
//	workspace.fenced-at   an empty file of the time at which it was closed first
//
// and no engine can start the container from then on: its mount has no source.
const (
	closedSuffix = ".fenced"
	stampSuffix  = ".fenced-at"
)

// CloseGate closes a gate. A closed or missing gate stays as it is. The stamp is created before
// the folder is renamed, so that a process that dies in between leaves no closed gate without a
// time. If the stamp cannot be created, CloseGate closes the gate all the same and returns an
// error.
func CloseGate(gate string) error {
	if _, err := os.Stat(gate); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	f, err := os.OpenFile(gate+stampSuffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("stamp the gate: %w", err)
	} else {
		err = nil
	}
	// A full disk refuses the stamp. The rename alone closes the gate.
	if moved := os.Rename(gate, gate+closedSuffix); moved != nil && !errors.Is(moved, os.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("close the gate: %w", moved))
	}
	return err
}

// GateClosed reports whether a gate was closed, and at what time. The time is zero if the stamp
// could not be created.
func GateClosed(gate string) (at time.Time, closed bool) {
	if _, err := os.Stat(gate + closedSuffix); err != nil {
		return time.Time{}, false
	}
	if info, err := os.Stat(gate + stampSuffix); err == nil {
		at = info.ModTime()
	}
	return at, true
}

// GateFolder returns the present path of a gate's folder.
func GateFolder(gate string) string {
	if _, closed := GateClosed(gate); closed {
		return gate + closedSuffix
	}
	return gate
}
