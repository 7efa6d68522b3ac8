package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/internal/machine/fetch"
)

const (
	maxManifest = 64 << 20
	partial     = ".restoring" // folder of a restore that is not complete
)

// damage is proof that a stored checkpoint is not what was stored.
type damage struct{ says string }

func (d damage) Error() string { return d.says }

// cannotFetch is a file of a checkpoint that did not arrive, although the store
// answers: no proof of damage.
type cannotFetch struct{ err error }

func (c cannotFetch) Error() string { return c.err.Error() }
func (c cannotFetch) Unwrap() error { return c.err }

// restores reports whether there is, or should be, something to go on from.
func (r *member) restores() bool {
	return r.claim.Spec.Checkpoint != nil && (len(r.claim.Restore) > 0 || r.claim.HadCheckpoint)
}

// restore puts the newest checkpoint that verifies in place and returns its
// step. Damaged ones are reported and passed over. A job that had a checkpoint
// and of which none verifies does not begin anew in silence: that is an exit.
func (r *member) restore(ctx context.Context) (*int64, *berth.Exit, error) {
	r.reports.enter(slow, berth.PhaseRestoring)
	says := "every checkpoint of this job was found damaged before"
	for _, p := range r.claim.Restore {
		err := r.restorePoint(ctx, p)
		if err == nil {
			r.log.Info("checkpoint restored", "step", p.Step, "of_attempt", p.Attempt)
			return &p.Step, nil, nil
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		bad, damaged := errors.AsType[damage](err)
		fetch, unfetched := errors.AsType[cannotFetch](err)
		if !damaged {
			if unfetched {
				_ = r.rejectCheckpoint(ctx, p, fetch.Error(), true)
			}
			x := notStarted(berth.CauseRestoreFailed, fmt.Sprintf("restore step %d: %v", p.Step, err))
			return nil, &x, nil
		}
		r.log.Error("checkpoint damaged", "step", p.Step, "of_attempt", p.Attempt, "damage", bad.says)
		if err := r.rejectCheckpoint(ctx, p, bad.says, false); err != nil {
			x := notStarted(berth.CauseRestoreFailed, fmt.Sprintf("report the damage of step %d: %v", p.Step, err))
			return nil, &x, nil
		}
		if r.gang() {
			// The other ranks may have this step in place already: all of them begin
			// anew from an older one.
			x := notStarted(berth.CauseRestoreFailed, fmt.Sprintf("its part of step %d is damaged, and the gang goes back to an older one: %s", p.Step, bad.says))
			return nil, &x, nil
		}
		says = fmt.Sprintf("no checkpoint verifies; step %d: %s", p.Step, bad.says)
	}
	x := notStarted(berth.CauseCheckpointCorrupt, says)
	return nil, &x, nil
}

func (r *member) rejectCheckpoint(ctx context.Context, p berth.RestorePoint, says string, failed bool) error {
	return r.patiently(ctx, func() error {
		return r.sup.control.reportCheckpoint(ctx, berth.CheckpointReport{
			Alloc: r.alloc, Job: r.job, Attempt: r.attempt, Rank: r.number, Step: p.Step, OfAttempt: p.Attempt, Bad: says, Failed: failed,
		})
	})
}

// patiently tries again for as long as a store that does not answer is waited
// for. Damage and the server's refusals are final.
func (r *member) patiently(ctx context.Context, f func() error) error {
	until := time.Now().Add(r.timing().RestorePatience)
	for wait := r.timing().backoff(); ; {
		err := f()
		if _, damaged := errors.AsType[damage](err); err == nil || damaged || refused(err) || fetch.Final(err) || ctx.Err() != nil || time.Now().After(until) {
			return err
		}
		r.log.Warn("store does not answer; tried again", "err", err)
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
}

// restorePoint fetches and verifies one checkpoint into step-N/.
func (r *member) restorePoint(ctx context.Context, p berth.RestorePoint) error {
	m, err := r.manifest(ctx, p)
	if err != nil {
		return err
	}
	root := r.scratch.checkpoint
	_ = failpoint.Hit("agent.restore.before")
	if err := root.RemoveAll(partial); err != nil {
		return err
	}
	if err := root.Mkdir(partial, 0o777); err != nil {
		return err
	}
	whole := false
	for _, f := range m.Files {
		if err := r.fetch(ctx, f); err != nil {
			return err
		}
		whole = whole || f.Path == doneFile
	}
	if !whole {
		if err := root.WriteFile(path.Join(partial, doneFile), nil, 0o666); err != nil {
			return err
		}
	}
	if err := r.openFolders(); err != nil {
		return err
	}
	_ = failpoint.Hit("agent.restore.fetched")
	if err := root.RemoveAll(stepName(p.Step)); err != nil {
		return err
	}
	err = root.Rename(partial, stepName(p.Step))
	_ = failpoint.Hit("agent.restore.placed")
	return err
}

// manifest fetches and checks the list of files.
func (r *member) manifest(ctx context.Context, p berth.RestorePoint) (m berth.CheckpointManifest, err error) {
	var body []byte
	err = r.patiently(ctx, func() error {
		in, size, err := r.sup.control.getObject(ctx, p.Manifest)
		if err != nil {
			return err
		}
		defer in.Close()
		if size > maxManifest {
			return damage{fmt.Sprintf("the manifest has %d bytes", size)}
		}
		body, err = io.ReadAll(io.LimitReader(in, maxManifest))
		if err == nil && int64(len(body)) != size {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if berth.CodeOf(err) == berth.CodeNotFound && answered(err) {
		return m, damage{"the manifest is missing"}
	}
	if err != nil {
		return m, err
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != p.SHA256 {
		return m, damage{"the manifest's sha256 is not the registered one"}
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&m); err != nil {
		return m, damage{"the manifest cannot be read: " + err.Error()}
	}
	if m.Job != r.job || m.Step != p.Step || m.Rank != r.number || len(m.Files) > maxFiles {
		return m, damage{"the manifest is of another checkpoint"}
	}
	prefix := path.Dir(p.Manifest) + "/"
	for _, f := range m.Files {
		if !localPath(f.Path) || !strings.HasPrefix(f.Object, prefix) || f.Bytes < 0 {
			return m, damage{fmt.Sprintf("the manifest names %q, which is not allowed", f.Path)}
		}
	}
	return m, nil
}

// localPath reports whether a path stays inside its folder, in one spelling.
func localPath(p string) bool {
	return filepath.IsLocal(p) && path.Clean(p) == p && p != "." && len(p) <= maxPathBytes && !strings.ContainsAny(p, "\x00\\")
}

// fetch downloads one file and verifies it.
func (r *member) fetch(ctx context.Context, f berth.CheckpointFile) error {
	root := r.scratch.checkpoint
	name := path.Join(partial, f.Path)
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	var local error
	err := r.patiently(ctx, func() error {
		in, size, err := r.sup.control.getObject(ctx, f.Object)
		if err != nil {
			return err
		}
		defer in.Close()
		if size != f.Bytes {
			return damage{fmt.Sprintf("%s has %d bytes instead of %d", f.Path, size, f.Bytes)}
		}
		out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			local = err
			return damage{err.Error()} // ends the tries
		}
		defer out.Close()
		hash := sha256.New()
		disk := &disk{Writer: out}
		n, err := io.Copy(io.MultiWriter(disk, hash), in)
		switch {
		case disk.err != nil:
			local = disk.err
			return damage{local.Error()} // ends the tries
		case err == nil && n != size:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
		if hex.EncodeToString(hash.Sum(nil)) != f.SHA256 {
			return damage{f.Path + ": the sha256 is not the manifest's"}
		}
		// Whatever user the container runs as, the files are its own to use.
		if err := out.Chmod(os.FileMode(f.Mode).Perm() | 0o666); err != nil {
			local = err
		}
		return nil
	})
	_, damaged := errors.AsType[damage](err)
	switch {
	case local != nil:
		return fmt.Errorf("write %s: %w", f.Path, local)
	case err == nil, damaged, ctx.Err() != nil:
		return err
	case berth.CodeOf(err) == berth.CodeNotFound && answered(err):
		return damage{f.Path + " is missing"}
	case refused(err):
		return err
	}
	return cannotFetch{fmt.Errorf("fetch %s: %w", f.Path, err)}
}

// disk remembers that it could not be written to: then it is this machine that
// fails, and neither the checkpoint nor the store.
type disk struct {
	io.Writer
	err error
}

func (d *disk) Write(p []byte) (int, error) {
	n, err := d.Writer.Write(p)
	if err != nil {
		d.err = err
	}
	return n, err
}

// openFolders lets the container's user into the restored folders, whatever the
// agent's umask is.
func (r *member) openFolders() error {
	root := r.scratch.checkpoint
	var walk func(dir string) error
	walk = func(dir string) error {
		if err := root.Chmod(dir, 0o777); err != nil {
			return err
		}
		f, err := root.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		entries, err := f.ReadDir(-1)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() {
				if err := walk(path.Join(dir, e.Name())); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return walk(partial)
}
