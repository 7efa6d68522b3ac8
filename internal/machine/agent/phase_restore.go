package agent

import (
	"cmp"
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
	"sync/atomic"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

const (
	maxManifest = 64 << 20
	partial     = ".restoring" // folder of an incomplete restore
)

// damage is the error for stored content that has provably changed since it was stored.
type damage struct{ says string }

// Error returns the proof as text.
func (d damage) Error() string { return d.says }

// cannotFetch is the error for a file of a checkpoint that did not arrive, although the
// store answers. The file need not be damaged.
type cannotFetch struct{ err error }

// Error returns the text of the last failed fetch.
func (c cannotFetch) Error() string { return c.err.Error() }

// Unwrap returns the error of the last failed fetch.
func (c cannotFetch) Unwrap() error { return c.err }

// restorePhase puts the newest checkpoint that verifies in place.
type restorePhase struct {
	*core
	control  *control
	disk     *diskWatch // nil: all parts of a checkpoint are fetched without a look at the free space
	retry    *retrier
	scratch  *scratch
	uploader *checkpointUploader // nil without checkpoints
	recipe   *recipe
	spans    spans
	result   *result

	manifests *manifestRoom // of the agent; nil: no bound
}

// Do restores the newest good checkpoint if the claim names any. The restored step goes to disk
// before the report, so that a later agent process reports the same step.
func (p *restorePhase) Do(ctx context.Context) (phase, error) {
	if p.claim.Spec.Checkpoint != nil && (len(p.claim.Restore) > 0 || p.claim.HadCheckpoint) {
		if next, err := p.spans.step(ctx, "restore", p.result, p.newest); err != nil || next != phaseCreate {
			return next, err
		}
	}
	restored := p.recipe.restored
	if p.uploader != nil {
		p.uploader.skip(restored, p.recipe.source)
	}
	if restored != nil {
		if err := p.scratch.remember(memo{Restored: restored, RestoredOf: p.recipe.source}); err != nil {
			return p.result.notStarted(failure.CauseEngine, err.Error())
		}
		_ = failpoint.Hit("agent.restore.after")
		p.reports.edit(later, func(r *wire.RankReport) { r.Restored = restored })
	}
	return phaseCreate, nil
}

// newest restores the newest checkpoint that verifies. It reports damaged ones and
// passes over them. If none verifies of a job that had one, the member ends: the job
// must not silently start from its beginning. A step that the store does not return costs
// the attempt, and is tried again by the next one, until it can be passed over; see passesOver.
func (p *restorePhase) newest(ctx context.Context) (phase, error) {
	p.reports.enter(slow, berth.PhaseRestoring)
	says := "every checkpoint of this job was found damaged before"
	absent := map[int]cannotFetch{} // steps that the store did not return, by index in the claim
	var last error                  // the failed restore of one of them
	for i, point := range p.claim.Restore {
		// The checkpoint of another job is in the place of no step of this one, also behind a damaged step.
		if last != nil && point.Job != "" {
			break
		}
		err := p.restore(ctx, point)
		if err == nil {
			return p.passesOver(ctx, absent, i)
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if bad, ok := errors.AsType[damage](err); ok {
			if end := p.rejectDamaged(ctx, point, bad.says); end != "" {
				return p.result.notStarted(failure.CauseRestoreFailed, end)
			}
			says = fmt.Sprintf("no checkpoint passed verification; step %d: %s", point.Step, bad.says)
			continue
		}
		last = fmt.Errorf("restore step %d%s: %w", point.Step, ofJob(point), err)
		missing, ok := errors.AsType[cannotFetch](err)
		if ok {
			_ = p.reject(ctx, point, missing.Error(), nil)
		}
		if !ok || !p.looksFurther(point, len(absent)) {
			return p.result.notStarted(failure.CauseRestoreFailed, last.Error())
		}
		absent[i] = missing
	}
	if last != nil {
		return p.result.notStarted(failure.CauseRestoreFailed, last.Error())
	}
	return p.result.notStarted(failure.CauseCheckpointCorrupt, says)
}

// ofJob names the job that saved a checkpoint, if it is another one.
func ofJob(point wire.RestorePoint) string {
	if point.Job == "" {
		return ""
	}
	return fmt.Sprintf(" of job %s", point.Job)
}

// restored notes the step that is in place.
func (p *restorePhase) restored(point wire.RestorePoint) (phase, error) {
	p.log.Info("checkpoint restored", "step", point.Step, "of_attempt", point.Attempt, "of_job", point.Job)
	p.recipe.restored, p.recipe.source, p.recipe.parts = &point.Step, point.Job, len(point.Parts)
	return phaseCreate, nil
}

// restore fetches and verifies one checkpoint into step-N/: the member's part, or the parts of all members, each in a
// folder of its own.
func (p *restorePhase) restore(ctx context.Context, point wire.RestorePoint) error {
	root := p.scratch.checkpoint
	if err := root.RemoveAll(partial); err != nil {
		return err
	}
	parts := p.parts(point)
	if err := p.check(ctx, point, parts); err != nil {
		return err
	}
	_ = failpoint.Hit("agent.restore.before")
	if err := root.Mkdir(partial, 0o777); err != nil {
		return err
	}
	whole := false
	for _, part := range parts {
		err := p.withFiles(ctx, part, func(files []wire.CheckpointFile) error {
			for _, f := range files {
				if err := p.fetchFile(ctx, part, f); err != nil {
					return err
				}
				whole = whole || part.folder == "" && f.Path == doneFile
			}
			return nil
		})
		if err != nil {
			return part.named(err)
		}
	}
	if !whole {
		if err := root.WriteFile(path.Join(partial, doneFile), nil, 0o666); err != nil {
			return err
		}
		p.claim.own(root, path.Join(partial, doneFile))
	}
	if err := p.openFolders(); err != nil {
		return err
	}
	_ = failpoint.Hit("agent.restore.fetched")
	if err := root.RemoveAll(stepName(point.Step)); err != nil {
		return err
	}
	err := root.Rename(partial, stepName(point.Step))
	_ = failpoint.Hit("agent.restore.placed")
	return err
}

// fetchFile puts one file of a part in place.
func (p *restorePhase) fetchFile(ctx context.Context, part savedPart, f wire.CheckpointFile) error {
	if len(f.Chunks) > 0 {
		return p.fetchChunks(ctx, part, f)
	}
	return p.fetch(ctx, part, f)
}

// manifest fetches and checks the list of a part's files, for which it takes room in place.
func (p *restorePhase) manifest(
	ctx context.Context, part savedPart, place *manifestPlace,
) (m wire.CheckpointManifest, err error) {
	var body []byte
	var progress atomic.Int64
	point := part.RestorePoint
	err = p.retry.patientlySince(ctx, &progress, func() (err error) {
		body, err = p.manifestOnce(ctx, point, place, &progress)
		return part.passing(err)
	})
	if berth.CodeOf(err) == berth.CodeNotFound && answered(err) {
		return m, damage{"the manifest is missing"}
	}
	if err != nil && !refused(err) && ctx.Err() == nil {
		return m, cannotFetch{fmt.Errorf("fetch the manifest: %w", err)}
	}
	if err != nil {
		return m, err
	}
	if err := registered(body, point); err != nil {
		return m, err
	}
	return readManifest(body, point, cmp.Or(point.Job, p.job), part.rank)
}

// manifestOnce fetches the list of files by one request, and does not check its content.
func (p *restorePhase) manifestOnce(
	ctx context.Context, point wire.RestorePoint, place *manifestPlace, progress *atomic.Int64,
) ([]byte, error) {
	in, size, err := p.openManifest(ctx, point, place, progress)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if size > maxManifest {
		return nil, damage{fmt.Sprintf("the manifest has %d bytes", size)}
	}
	if size <= unknownManifest {
		return nil, io.ErrUnexpectedEOF
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(in, body); errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return nil, err
	}
	return body, nil
}

// registered compares a manifest with the hash that the database has. The error is a damage.
func registered(manifest []byte, point wire.RestorePoint) error {
	if sum := sha256.Sum256(manifest); hex.EncodeToString(sum[:]) != point.SHA256 {
		return damage{"the manifest's sha256 is not the registered one"}
	}
	return nil
}

// readManifest parses the manifest of one member's part of a checkpoint and checks that its files
// belong to this part and lie in the folder of the step. The error is a damage.
func readManifest(
	body []byte, point wire.RestorePoint, job berth.JobID, rank int,
) (m wire.CheckpointManifest, err error) {
	if err := json.Unmarshal(body, &m); err != nil {
		return m, damage{"the manifest cannot be read: " + err.Error()}
	}
	if m.Job != job || m.Step != point.Step || m.Rank != rank || len(m.Files) > maxFiles {
		return m, damage{"the manifest is of another checkpoint"}
	}
	folder := path.Dir(point.Manifest)
	seen := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		placed := path.Dir(f.Object) == folder && len(f.Chunks) == 0 || f.Object == "" && consists(f)
		if !localPath(f.Path) || !placed || f.Bytes < 0 || seen[f.Path] {
			return m, damage{fmt.Sprintf("the manifest names %q, which is not allowed", f.Path)}
		}
		seen[f.Path] = true
	}
	return m, nil
}

// consists reports whether a file consists of its chunks.
func consists(f wire.CheckpointFile) bool {
	bytes := int64(0)
	for _, c := range f.Chunks {
		if !c.Valid() {
			return false
		}
		bytes += c.Bytes
	}
	return len(f.Chunks) > 0 && bytes == f.Bytes
}

// localPath reports whether a path stays inside its folder, in one spelling.
func localPath(p string) bool {
	return filepath.IsLocal(p) && path.Clean(p) == p && p != "." && len(p) <= maxPathBytes &&
		!strings.ContainsAny(p, "\x00\\")
}

// fetch downloads one file of a part and verifies its size and hash.
func (p *restorePhase) fetch(ctx context.Context, part savedPart, f wire.CheckpointFile) error {
	root := p.scratch.checkpoint
	name := path.Join(partial, part.folder, f.Path)
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	var local error
	var progress atomic.Int64
	var furthest int64
	err := p.retry.patientlySince(ctx, &progress, func() error {
		in, size, direct, err := p.control.openObject(ctx, f.Object, f.Bytes)
		if err != nil {
			return part.passing(err)
		}
		defer in.Close()
		damaged := func(says string) error {
			if direct {
				return p.control.direct.doubt(f.Object, says)
			}
			return damage{says}
		}
		if size != f.Bytes {
			return damaged(fmt.Sprintf("%s has %d bytes instead of %d", f.Path, size, f.Bytes))
		}
		out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			local = err
			return damage{err.Error()} // ends the tries
		}
		defer out.Close()
		hash := sha256.New()
		disk := &disk{Writer: out, progress: &progress, furthest: &furthest}
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
			return damaged(f.Path + ": the sha256 is not the manifest's")
		}
		// The container may run as any user, who must be able to use the files.
		if err := out.Chmod(os.FileMode(f.Mode).Perm() | 0o666); err != nil {
			local = err
		}
		p.claim.own(root, name)
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

// disk records a failed write, for which this machine is to blame, and not the checkpoint
// or the store.
type disk struct {
	io.Writer
	progress *atomic.Int64 // time of the last write beyond furthest; nil: not kept
	furthest *int64        // bytes that the best try has written; nil: not kept
	written  int64
	err      error
}

// Write writes to the file and keeps its error, which distinguishes a full disk from a broken stream.
func (d *disk) Write(p []byte) (int, error) {
	n, err := d.Writer.Write(p)
	if err != nil {
		d.err = err
	}
	// A try begins at the first byte. Only bytes that no earlier try has reached are progress: a transfer that always
	// breaks at the same place would otherwise hold its GPUs without end.
	if d.written += int64(n); err == nil && d.progress != nil && d.written > *d.furthest {
		*d.furthest = d.written
		d.progress.Store(time.Now().UnixNano())
	}
	return n, err
}

// openFolders gives the container's user access to the restored folders, regardless of the
// agent's umask.
func (p *restorePhase) openFolders() error {
	root := p.scratch.checkpoint
	var walk func(dir string) error
	walk = func(dir string) error {
		if err := root.Chmod(dir, 0o777); err != nil {
			return err
		}
		p.claim.own(root, dir)
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
