package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"berth/internal/check"
)

// Ledger is a file of the submits that clients saw accepted, in berth-check's format. It may be
// used concurrently.
type Ledger struct {
	mu sync.Mutex
	f  *os.File
	n  int
}

// OpenLedger creates or extends a ledger.
func OpenLedger(path string) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Ledger{f: f}, nil
}

// Add records a submit.
func (l *Ledger) Add(a check.Accepted) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	_, err = l.f.Write(append(line, '\n'))
	return err
}

// Len returns how many submits were added.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// Close closes the file.
func (l *Ledger) Close() error { return l.f.Close() }

// LedgerPath returns where a stack's ledger of this name is kept.
func (s *Stack) LedgerPath(name string) string { return filepath.Join(s.Dir, name+".jsonl") }

// Check runs berth-check over the rows: no accepted job is lost, and none ran
// twice at once. settled also requires that everything has come to its end. The
// error lists the breaches.
func (s *Stack) Check(ctx context.Context, settled bool, ledgers ...string) error {
	args := []string{"--database-url", s.database}
	if settled {
		args = append(args, "--settled")
	}
	for _, l := range ledgers {
		if _, err := os.Stat(l); errors.Is(err, os.ErrNotExist) {
			continue
		}
		args = append(args, "--accepted", l)
	}
	out, err := exec.CommandContext(ctx, s.Programs.Path("berth-check"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("berth-check: %w: %.4000s", err, out)
	}
	return nil
}
