package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/archive"
	"berth/internal/lib/failpoint"
)

// storeOutputs collects what the job has declared, now that its container has
// ended. One that is not there, or cannot be stored, is told as a warning; that
// it is missing is judged when the attempt is settled. It returns the names of
// those that were there: unstored, which the program is not to blame for, and
// refused, which would be stored nowhere. quota is the server's text about the first
// output that exceeds a storage quota.
func (r *member) storeOutputs(ctx context.Context) (unstored, refused []string, quota string) {
	for _, o := range r.claim.Spec.Outputs {
		err := r.storeOutput(ctx, o)
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return unstored, refused, quota
		case errors.Is(err, node.ErrNoPath) && r.number > 0:
			r.log.Info("this member has no such output", "output", o.Name, "path", o.Path)
			continue
		case !outputRefused(err):
			unstored = append(unstored, o.Name)
		case !errors.Is(err, node.ErrNoPath):
			refused = append(refused, o.Name)
		}
		if e, ok := errors.AsType[*berth.Error](err); ok && quota == "" && overQuota(err) {
			quota = fmt.Sprintf("%s (%s): %s", o.Name, o.Path, e.Message)
		}
		r.reports.warn(fmt.Sprintf("output %s (%s) was not stored: %v", o.Name, o.Path, err))
	}
	return unstored, refused, quota
}

// outputRefused reports whether an output would not be stored on any machine:
// nothing lies there, or it is what no archive may hold, or too much. All else
// is the fault of this machine, the store or the way there.
func outputRefused(err error) bool {
	return errors.Is(err, node.ErrNoPath) || berth.CodeOf(err) == berth.CodeInvalid
}

// storeOutput packs an output into the rank's folder, sends it and registers it.
func (r *member) storeOutput(ctx context.Context, o berth.Output) error {
	at := filepath.Join(r.scratch.dir, "output-"+o.Name+".tar.zst")
	f, err := os.OpenFile(at, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(at)
	defer f.Close()
	sum, err := r.packOutput(ctx, o, f)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	stored := berth.StoredOutput{Name: o.Name, Attempt: r.attempt, Member: r.number, Address: sum.Address, Files: sum.Files, Bytes: sum.Bytes, Stored: info.Size()}
	_ = failpoint.Hit("agent.output.before")
	key := berth.OutputKey(r.claim.Tenant, r.job, r.attempt, r.number, o.Name)
	err = r.insist("store an output", func(ctx context.Context) error {
		body := &hashed{f: f, size: info.Size(), hash: sha256.New()}
		if _, err := body.Seek(0, io.SeekStart); err != nil {
			return localError{err}
		}
		if err := r.sup.control.putObject(ctx, key, body, info.Size()); err != nil {
			if body.err != nil {
				return localError{body.err}
			}
			return err
		}
		stored.SHA256 = hex.EncodeToString(body.hash.Sum(nil))
		return nil
	})
	if err != nil {
		return err
	}
	_ = failpoint.Hit("agent.output.stored")
	err = r.insist("register an output", func(ctx context.Context) error {
		return r.sup.control.reportOutput(ctx, berth.OutputReport{Alloc: r.alloc, Job: r.job, Attempt: r.attempt, Rank: r.number, Output: stored})
	})
	_ = failpoint.Hit("agent.output.after")
	if err == nil {
		r.log.Info("output stored", "output", o.Name, "files", sum.Files, "bytes", sum.Bytes)
	}
	return err
}

// outputStreams is how many streams of an output may break off before it is given
// up.
const outputStreams = 5

// packOutput waits for an engine that does not answer, as long as one is waited
// for elsewhere, and begins anew when one breaks off in the midst.
func (r *member) packOutput(ctx context.Context, o berth.Output, to *os.File) (archive.Summary, error) {
	patience, broken := time.Now().Add(r.timing().EnginePatience), 0
	for wait := r.timing().backoff(); ; {
		in, err := r.runtime().CopyOut(ctx, r.name(), o.Path)
		if err == nil {
			var sum archive.Summary
			sum, err = archive.Repack(in, to, archive.Output)
			_ = in.Close()
			if err == nil {
				return sum, nil
			}
			broken, patience = broken+1, time.Now().Add(r.timing().EnginePatience) // it may have gone well for long
		}
		local, ok := errors.AsType[*fs.PathError](err)
		switch {
		case ok && local.Path == to.Name(), outputRefused(err), errors.Is(err, node.ErrNoContainer):
			return archive.Summary{}, err
		case ctx.Err() != nil, broken >= outputStreams, time.Now().After(patience):
			return archive.Summary{}, err
		}
		r.log.Warn("output not read; tried again", "output", o.Name, "err", err)
		if err := wait.wait(ctx); err != nil {
			return archive.Summary{}, err
		}
		if _, err := to.Seek(0, io.SeekStart); err != nil {
			return archive.Summary{}, err
		}
		if err := to.Truncate(0); err != nil {
			return archive.Summary{}, err
		}
	}
}

func (c *control) reportOutput(ctx context.Context, p berth.OutputReport) error {
	return c.withTerms(ctx, func(epoch int64) error {
		p.AgentBoot, p.Epoch = c.boot, epoch
		return c.call(ctx, 3*callTimeout, "outputs", p, nil)
	})
}
