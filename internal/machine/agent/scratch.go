package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/machine/deadman"
	"berth/wire"
)

// scratch is a member's folder:
//
//	rank.json     the memo for the next agent process
//	workspace/    /workspace in the container
//	checkpoint/   spec.checkpoint.path in the container, of a job that has one
//	log.json      how far its log was sent
//	use.json      the samples of its resource usage so far
//
// For at_most_one work, workspace/ is also the gate of the fence; see
// deadman.CloseGate.
//
// The container's files are not to be trusted: the agent reads and writes below
// workspace/ and checkpoint/ through os.Root alone, and opens regular files only.
type scratch struct {
	state      string // the agent's folder
	dir        string // the member's; "" before open
	workspace  *os.Root
	checkpoint *os.Root // nil without spec.checkpoint
}

// memo is the state of a member that outlives the agent's process, but not the
// container.
type memo struct {
	Restored   *int64            `json:"restored,omitempty"`
	RestoredOf berth.JobID       `json:"restored_of,omitempty"` // that saved the step; "": the member's own
	Begun      bool              `json:"begun,omitempty"`       // it was about to start on the claim alone
	Intent     failure.ExitCause `json:"intent,omitempty"`      // why we began to stop it
	IntentAt   time.Time         `json:"intent_at,omitzero"`    // when that was delivered
	IntentSays string            `json:"intent_says,omitempty"`
	Saved      int64             `json:"saved,omitempty"`     // berth.Orders.Save that was carried out last
	SavedFor   time.Duration     `json:"saved_for,omitempty"` // time limit before which the job was signaled to save
	Heeds      heeded            `json:"heeds,omitzero"`      // notice of the machine's end that was carried out last
	Advised    time.Time         `json:"advised,omitzero"`    // advice of the cloud that was carried out last
}

// scratchDir returns the folder of the container with this name.
func scratchDir(state, name string) string { return filepath.Join(state, "ranks", name) }

// open creates the folder, with a folder for checkpoints if wanted, or opens
// an existing one. Inside the container any user may write, since the image chooses
// the user. Other users of the host cannot pass the state folder.
func (s *scratch) open(name string, checkpoints bool) error {
	o := scratch{state: s.state, dir: scratchDir(s.state, name)}
	if err := o.openFolders(checkpoints); err != nil {
		o.close()
		return fmt.Errorf("open scratch folder: %w", err)
	}
	*s = o
	return nil
}

// openFolders opens the workspace, and the checkpoint folder if the job has checkpoints. Any user
// may write to .berth, since a container chooses its own user.
func (s *scratch) openFolders(checkpoints bool) (err error) {
	if s.workspace, err = openShared(deadman.GateFolder(s.gate())); err != nil {
		return err
	}
	if checkpoints {
		if s.checkpoint, err = openShared(filepath.Join(s.dir, "checkpoint")); err != nil {
			return err
		}
	}
	err = s.workspace.Mkdir(".berth", 0o777)
	switch {
	case err == nil:
		return s.workspace.Chmod(".berth", 0o777) // regardless of the umask
	case errors.Is(err, os.ErrExist):
		return nil
	}
	return err
}

// isOpen reports whether the folder has been opened.
func (s *scratch) isOpen() bool { return s.workspace != nil }

// openShared opens a folder that a container mounts. The container cannot replace
// the folder itself, only its content.
func openShared(path string) (*os.Root, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, err
	}
	return os.OpenRoot(path)
}

// gate is the folder without which no engine starts the container. The fence closes
// it.
func (s *scratch) gate() string { return filepath.Join(s.dir, "workspace") }

// input is the folder of the i-th input.
func (s *scratch) input(i int) string { return filepath.Join(s.dir, fmt.Sprintf("input-%d", i)) }

// close closes the opened folders and leaves their content.
func (s *scratch) close() {
	if s.workspace != nil {
		_ = s.workspace.Close()
	}
	if s.checkpoint != nil {
		_ = s.checkpoint.Close()
	}
}

// memo returns the record of an earlier process, zero without a readable one.
func (s *scratch) memo() memo {
	var m memo
	if b, err := os.ReadFile(filepath.Join(s.dir, "rank.json")); err == nil {
		_ = json.Unmarshal(b, &m) // a damaged memo counts as none
	}
	return m
}

// remember replaces the record for later processes.
func (s *scratch) remember(m memo) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, "rank.json")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, os.ErrExist):
		return writeFile(path, b)
	case err != nil:
		return err
	}
	_, err = f.Write(b) // a part of the first record counts as none
	return errors.Join(err, f.Close())
}

// removeScratch deletes a member's folder. A container's files may have modes that
// forbid even their removal, except to root.
func removeScratch(state, name string) error {
	if err := os.RemoveAll(scratchDir(state, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove scratch folder: %w", err)
	}
	return nil
}

// sweep removes the folders of unknown members, whose end an operator has confirmed or which a
// restored database has forgotten. set is the machine's full set of assignments. A folder stays
// if a container of this machine may have mounted it, whichever cluster the container belongs to.
func (s *Supervisor) sweep(ctx context.Context, set []wire.Assignment) {
	// The folders first: a folder that is created after this has its member here.
	folders, err := os.ReadDir(filepath.Join(s.cfg.StateDir, "ranks"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return
	}
	mounted, err := s.mounts.Names()
	if err != nil {
		s.log.Warn("cannot list leftover mounts", "err", err)
	}
	if len(folders) == 0 && len(mounted) == 0 {
		return
	}
	containers, err := s.cfg.Runtime.List(ctx, map[string]string{berth.LabelMachine: string(s.cfg.Machine)})
	if err != nil {
		s.log.Warn("cannot list leftover folders", "err", err)
		return
	}
	known := map[string]bool{}
	for _, c := range containers {
		known[c.Name] = true
	}
	for _, a := range set {
		known[berth.ContainerName(a.Job, a.Rank, a.Attempt)] = true
	}
	s.mu.Lock()
	for _, m := range s.members {
		p, _, _ := m.reports.present()
		known[berth.ContainerName(m.job, p.Rank, m.attempt)] = true
	}
	s.mu.Unlock()
	for _, name := range mounted {
		if known[name] || ctx.Err() != nil {
			continue
		}
		s.log.Warn("leftover mounts removed", "folder", name)
		if err := s.mounts.Remove(ctx, name); err != nil {
			s.log.Error("cannot remove leftover mounts", "err", err)
		}
	}
	for _, f := range folders {
		if known[f.Name()] || ctx.Err() != nil {
			continue
		}
		s.log.Warn("leftover folder removed", "folder", f.Name())
		if err := errors.Join(s.vault.remove(f.Name()), removeScratch(s.cfg.StateDir, f.Name())); err != nil {
			s.log.Error("cannot remove leftover folder", "err", err)
		}
	}
}
