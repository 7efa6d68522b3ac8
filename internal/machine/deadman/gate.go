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

// CloseGate closes a gate. One that is closed, or is not there, is left as it
// is. The stamp comes first: a gate is never closed at an unknown time.
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

// GateClosed reports whether a gate was closed, and when; the zero time if that
// could not be noted.
func GateClosed(gate string) (at time.Time, closed bool) {
	if _, err := os.Stat(gate + closedSuffix); err != nil {
		return time.Time{}, false
	}
	if info, err := os.Stat(gate + stampSuffix); err == nil {
		at = info.ModTime()
	}
	return at, true
}

// GateFolder is where the folder of a gate is now.
func GateFolder(gate string) string {
	if _, closed := GateClosed(gate); closed {
		return gate + closedSuffix
	}
	return gate
}
