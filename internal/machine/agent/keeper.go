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
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/internal/lib/tracing"
)

// keeper stores a rank's checkpoints: it looks for complete steps, uploads and
// registers them in ascending order, so that a newer step never overtakes an
// older one.
type keeper struct {
	r     *member
	begun bool
	done  chan struct{} // closed when the last look has been taken
	last  int64         // steps up to here need no storing
	seen  atomic.Int64  // newest complete step in the folder
	bad   map[int64]bool

	ended chan struct{} // closed when the container has ended
}

const (
	doneFile     = "DONE"
	maxFiles     = 100_000
	maxPathBytes = 1024
)

func newKeeper(r *member) *keeper {
	k := &keeper{r: r, last: -1, done: make(chan struct{}), ended: make(chan struct{}), bad: map[int64]bool{}}
	k.seen.Store(-1)
	for _, p := range r.claim.Restore {
		if p.Attempt == r.attempt { // stored by an earlier agent process
			k.last = max(k.last, p.Step)
		}
	}
	return k
}

// skip leaves the step alone that the agent itself put there.
func (k *keeper) skip(restored *int64) {
	if restored != nil {
		k.last = max(k.last, *restored)
	}
}

// newest is the newest complete step in the folder, stored or not.
func (k *keeper) newest() int64 { return k.seen.Load() }

// begin starts looking. It ends after finish, or with the rank.
func (k *keeper) begin() {
	k.begun = true
	k.r.helpers.Go(func() {
		defer close(k.done)
		k.run()
	})
}

// finish asks for a last look, now that the container has ended, and waits for
// it.
func (k *keeper) finish(ctx context.Context) {
	if !k.begun {
		return
	}
	close(k.ended)
	select {
	case <-k.done:
	case <-ctx.Done():
	}
}

func (k *keeper) run() {
	tick := time.NewTimer(k.r.sup.beat.next(k.r.timing().CheckpointPoll))
	defer tick.Stop()
	for {
		last := false
		select {
		case <-k.ended:
			last = true
		case <-tick.C:
			tick.Reset(k.r.sup.beat.next(k.r.timing().CheckpointPoll))
		case <-k.r.ctx.Done():
			return
		}
		if err := k.store(); err != nil {
			return
		}
		if last {
			return
		}
	}
}

// store uploads what is complete and new, oldest first. Where uploads cannot
// keep up, only as many of the newest are worth it as will be kept. An error
// ends the keeper.
func (k *keeper) store() error {
	steps, err := k.complete()
	if err != nil {
		k.r.log.Warn("checkpoint folder not read", "err", err)
		return nil
	}
	if keep := max(k.r.claim.Spec.Checkpoint.Keep, 1); len(steps) > keep {
		steps = steps[len(steps)-keep:]
	}
	for _, step := range steps {
		err := k.save(step)
		switch {
		case k.r.ctx.Err() != nil:
			return context.Cause(k.r.ctx)
		case errors.Is(err, errGivenUp):
			k.r.reports.warn(fmt.Sprintf("checkpoint of step %d was not stored: %v", step, err))
			return err
		case errors.Is(err, fs.ErrNotExist):
			k.r.log.Info("checkpoint was removed by its job before it was stored", "step", step)
		case overQuota(err): // the server has added an event, and deletes the stored part
			k.r.log.Warn("checkpoint exceeds a storage quota", "step", step, "err", err)
			k.bad[step] = true
			continue
		case err != nil:
			k.r.reports.warn(fmt.Sprintf("checkpoint of step %d is refused: %v", step, err))
			k.bad[step] = true
			continue
		}
		k.last = step
	}
	return nil
}

// complete lists the steps that are whole and not stored yet, ascending.
func (k *keeper) complete() ([]int64, error) {
	folder, err := k.r.scratch.checkpoint.Open(".")
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var steps []int64
	for _, name := range names {
		step, ok := stepOf(name)
		if !ok || step <= k.last && step <= k.seen.Load() {
			continue
		}
		if info, err := k.r.scratch.checkpoint.Lstat(path.Join(name, doneFile)); err != nil || !info.Mode().IsRegular() {
			continue
		}
		k.seen.Store(max(k.seen.Load(), step))
		if step > k.last && !k.bad[step] {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// stepOf reads step-<number>, in its one spelling.
func stepOf(name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, ok && err == nil && n >= 0 && stepName(n) == name
}

func stepName(step int64) string { return "step-" + strconv.FormatInt(step, 10) }

// save uploads one step: its files, then the manifest that makes it whole, then
// the row that makes it the job's.
func (k *keeper) save(step int64) error {
	_, span := k.r.traced(k.r.ctx, "checkpoint", attribute.Int64("berth.step", step))
	err := k.saveTraced(step, span)
	span.End(faultOf(k.r.ctx, nil, err))
	return err
}

func (k *keeper) saveTraced(step int64, span *tracing.Span) error {
	r := k.r
	m := berth.CheckpointManifest{Job: r.job, Attempt: r.attempt, Rank: r.number, Step: step, At: time.Now().UTC()}
	folder := berth.CheckpointKey(r.claim.Tenant, r.job, r.attempt, r.number, step)
	names, rest, err := k.files(stepName(step))
	if err != nil {
		return err
	}
	total := int64(0)
	for i, name := range names {
		f := berth.CheckpointFile{Path: name, Object: fmt.Sprintf("%s/file-%06d", folder, i)}
		_ = failpoint.Hit("agent.file.before")
		if err := k.upload(path.Join(stepName(step), name), &f, rest-total); err != nil {
			return err
		}
		_ = failpoint.Hit("agent.file.after")
		total += f.Bytes
		m.Files = append(m.Files, f)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	key := folder + "/" + berth.ManifestName
	_ = failpoint.Hit("agent.manifest.before")
	err = r.insist("store the manifest of a checkpoint", func(ctx context.Context) error {
		return r.sup.control.putObject(ctx, key, bytes.NewReader(body), int64(len(body)))
	})
	if err != nil {
		return err
	}
	_ = failpoint.Hit("agent.manifest.after")
	err = r.insist("register a checkpoint", func(ctx context.Context) error {
		return r.sup.control.reportCheckpoint(ctx, berth.CheckpointReport{
			Alloc: r.alloc, Job: r.job, Attempt: r.attempt, Rank: r.number, Step: step, OfAttempt: r.attempt,
			Manifest: key, SHA256: hex.EncodeToString(sum[:]), Bytes: total,
		})
	})
	if err == nil {
		span.Set(attribute.Int("berth.files", len(names)), attribute.Int64("berth.bytes", total))
		r.log.Info("checkpoint stored", "step", step, "files", len(names), "bytes", total)
	}
	return err
}

// files lists a step's files in order, DONE last, as the job put it there last.
// Only folders and regular files make a checkpoint: a link could lead anywhere.
// bytes is the size of all files.
func (k *keeper) files(dir string) (names []string, bytes int64, err error) {
	err = fs.WalkDir(k.r.scratch.checkpoint.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", name)
		case len(name) > maxPathBytes:
			return fmt.Errorf("the path of a file has more than %d bytes", maxPathBytes)
		case len(names) >= maxFiles:
			return fmt.Errorf("it has more than %d files", maxFiles)
		}
		names = append(names, strings.TrimPrefix(name, dir+"/"))
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case a == doneFile:
			return 1
		case b == doneFile:
			return -1
		}
		return strings.Compare(a, b)
	})
	return names, bytes, err
}

// upload stores one file and notes its hash, which is taken of the very bytes
// that are sent. rest is the size of this file and of all that follow.
func (k *keeper) upload(name string, f *berth.CheckpointFile, rest int64) error {
	return k.r.insist("store a file of a checkpoint", func(ctx context.Context) error {
		file, err := openRegular(k.r.scratch.checkpoint, name)
		if err != nil {
			return localError{err}
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return localError{err}
		}
		body := &hashed{f: file, size: info.Size(), hash: sha256.New()}
		if err := k.r.sup.control.putPart(ctx, f.Object, body, info.Size(), rest); err != nil {
			if body.err != nil {
				return localError{body.err}
			}
			return err
		}
		if body.read != info.Size() {
			return localError{fmt.Errorf("%s changed while it was stored", name)}
		}
		f.SHA256, f.Bytes, f.Mode = hex.EncodeToString(body.hash.Sum(nil)), info.Size(), uint32(info.Mode().Perm())
		return nil
	})
}

// localError is a fault of this machine's files, which no patience with the
// server cures.
type localError struct{ err error }

func (e localError) Error() string { return e.err.Error() }
func (e localError) Unwrap() error { return e.err }

// insist calls f until it succeeds. It gives up with errGivenUp when the server
// says that the work is not ours any more, or when, after the container's end,
// it has failed for longer than the patience. A server that is away is waited
// for: without it nothing else could be told either.
func (r *member) insist(what string, f func(ctx context.Context) error) error {
	var since time.Time
	for wait := r.timing().backoff(); ; {
		err := f(r.ctx)
		if err == nil {
			return nil
		}
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if local, ok := errors.AsType[localError](err); ok {
			return local.err
		}
		if overQuota(err) {
			return err
		}
		if refused(err) {
			return fmt.Errorf("%w: %s: %w", errGivenUp, what, err)
		}
		if !answered(err) || !r.ended.Load() {
			since = time.Time{}
		} else if since.IsZero() {
			since = time.Now()
		}
		if !since.IsZero() && time.Since(since) > r.timing().UploadPatience {
			return fmt.Errorf("%w: %s: %w", errGivenUp, what, err)
		}
		r.log.Warn("call not done; tried again", "what", what, "err", err)
		if err := wait.wait(r.ctx); err != nil {
			return err
		}
	}
}

// hashed reads a file from its beginning and hashes what it reads. A redirect
// makes the client seek back and read again.
type hashed struct {
	f    *os.File
	size int64
	read int64
	hash interface {
		io.Writer
		Sum([]byte) []byte
		Reset()
	}
	err error
}

func (h *hashed) Read(p []byte) (int, error) {
	if h.read >= h.size {
		return 0, io.EOF
	}
	n, err := h.f.Read(p[:min(int64(len(p)), h.size-h.read)])
	h.read += int64(n)
	_, _ = h.hash.Write(p[:n])
	if errors.Is(err, io.EOF) && h.read < h.size {
		err = fmt.Errorf("%s became shorter while it was stored: %w", h.f.Name(), io.ErrUnexpectedEOF)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		h.err = err
	}
	return n, err
}

func (h *hashed) Seek(offset int64, whence int) (int64, error) {
	h.hash.Reset()
	h.read = 0
	return h.f.Seek(offset, whence)
}
