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
	"berth/spec"
	"berth/wire"
)

// outputStore stores the outputs that a job has declared, once its container has
// ended.
type outputStore struct {
	*core
	control *control
	retry   *retrier
	scratch *scratch
}

// store stores all outputs. An output that is missing, or cannot be stored, becomes a
// warning; the settlement of the attempt judges missing outputs. store returns the
// names of the others: unstored, which the program is not to blame for, and refused,
// which no machine would store. quota is the server's text about the first output that
// exceeds a storage quota.
func (s *outputStore) store(ctx context.Context) (unstored, refused []string, quota string) {
	for _, o := range s.claim.Spec.Outputs {
		err := s.storeOne(ctx, o)
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return unstored, refused, quota
		case errors.Is(err, node.ErrNoPath) && s.number > 0:
			s.log.Info("output not produced by this member", "output", o.Name, "path", o.Path)
			continue
		case !outputRefused(err):
			unstored = append(unstored, o.Name)
		case !errors.Is(err, node.ErrNoPath):
			refused = append(refused, o.Name)
		}
		if e, ok := errors.AsType[*berth.Error](err); ok && quota == "" && overQuota(err) {
			quota = fmt.Sprintf("%s (%s): %s", o.Name, o.Path, e.Message)
		}
		why := err.Error()
		if errors.Is(err, node.ErrNoPath) {
			why = o.Path + " does not exist in the container"
		}
		s.reports.warn(fmt.Sprintf("output %s was not stored: %s", o.Name, why))
	}
	return unstored, refused, quota
}

// storeAlways stores the outputs with "when: always" of a member that has not done its work. The
// end of the attempt is judged without them: an output that does not exist is no fault, and one
// that cannot be stored becomes a warning.
func (s *outputStore) storeAlways(ctx context.Context) {
	for _, o := range s.claim.Spec.Outputs {
		if !o.Always() {
			continue
		}
		err := s.storeOne(ctx, o)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return
		case errors.Is(err, node.ErrNoPath):
			s.log.Info("output not produced before the end", "output", o.Name, "path", o.Path)
		default:
			s.reports.warn(fmt.Sprintf("output %s was not stored: %s", o.Name, err))
		}
	}
}

// outputRefused reports whether every machine would fail to store an output: the path does not
// exist, no archive can hold its content, or the content is too large. Any other error is the
// fault of this machine, of the store or of the network.
func outputRefused(err error) bool {
	return errors.Is(err, node.ErrNoPath) || berth.CodeOf(err) == berth.CodeInvalid
}

// storeOne packs an output into the member's folder, uploads the archive and registers the
// object.
func (s *outputStore) storeOne(ctx context.Context, o spec.Output) error {
	at := filepath.Join(s.scratch.dir, "output-"+o.Name+".tar.zst")
	f, err := os.OpenFile(at, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(at)
	defer f.Close()
	sum, err := s.pack(ctx, o, f)
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
	stored := wire.StoredOutput{
		Name: o.Name, Attempt: s.attempt, Member: s.number,
		Address: sum.Address, Files: sum.Files, Bytes: sum.Bytes, Stored: info.Size(),
	}
	_ = failpoint.Hit("agent.output.before")
	key := berth.OutputKey(s.claim.Tenant, s.job, s.attempt, s.number, o.Name)
	err = s.retry.insist("store an output", func(ctx context.Context) error {
		body := &hashed{f: f, size: info.Size(), hash: sha256.New()}
		if _, err := body.Seek(0, io.SeekStart); err != nil {
			return localError{err}
		}
		if err := s.control.putObject(ctx, key, body, info.Size()); err != nil {
			if fault := body.fault(); fault != nil {
				return localError{fault}
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
	err = s.retry.insist("register an output", func(ctx context.Context) error {
		return s.control.reportOutput(ctx, wire.OutputReport{
			Alloc: s.alloc, Job: s.job, Attempt: s.attempt, Rank: s.number, Output: stored,
		})
	})
	_ = failpoint.Hit("agent.output.after")
	if err == nil {
		s.log.Info("output stored", "output", o.Name, "files", sum.Files, "bytes", sum.Bytes)
	}
	return err
}

// outputStreams is the number of streams of an output that may break off before the agent gives
// the output up.
const outputStreams = 5

// pack writes an output into a file as an archive. It waits for an engine that does not
// answer, within Timing.EnginePatience, and starts again when a stream breaks off.
func (s *outputStore) pack(ctx context.Context, o spec.Output, to *os.File) (archive.Summary, error) {
	patience, broken := time.Now().Add(s.timing.EnginePatience), 0
	for wait := s.timing.backoff(); ; {
		in, err := s.runtime.CopyOut(ctx, s.name(), o.Path)
		if err == nil {
			var sum archive.Summary
			sum, err = archive.Repack(in, to, archive.Output)
			_ = in.Close()
			if err == nil {
				return sum, nil
			}
			broken, patience = broken+1, time.Now().Add(s.timing.EnginePatience) // the stream may have lasted long
		}
		local, ok := errors.AsType[*fs.PathError](err)
		switch {
		case ok && local.Path == to.Name(), outputRefused(err), errors.Is(err, node.ErrNoContainer):
			return archive.Summary{}, err
		case ctx.Err() != nil, broken >= outputStreams, time.Now().After(patience):
			return archive.Summary{}, err
		}
		s.log.Warn("output read failed, will retry", "output", o.Name, "err", err)
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

// reportOutput registers a stored output under the terms of the present session.
func (c *control) reportOutput(ctx context.Context, p wire.OutputReport) error {
	return c.withTerms(ctx, func(epoch int64) error {
		p.AgentBoot, p.Epoch = c.boot, epoch
		return c.call(ctx, 3*callTimeout, "outputs", p, nil)
	})
}
