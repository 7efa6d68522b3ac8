package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// pullTries is the number of attempts to download a file.
const pullTries = 3

// newCheckpointsPull builds "berth checkpoints pull".
func newCheckpointsPull(a *app) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "pull JOB [STEP]",
		Short: "Download a checkpoint and verify its hashes",
		Long: "Download a verified checkpoint, by default the newest, into the folder step-N. For a gang, step-N\n" +
			"has a folder member-M for each member. The folder appears once all files have arrived and match their\n" +
			"hashes. An existing folder is never overwritten.",
		Example: "  berth checkpoints pull digits\n  berth checkpoints pull digits 40 --dir runs\n" +
			"  berth checkpoints pull digits best",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: inTurn(a.completeJobs(anyJob), completeSteps(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := newPull(cmd.Context(), a, args)
			if err != nil {
				return err
			}
			return p.into(cmd.Context(), filepath.Join(to, fmt.Sprintf("step-%d", p.step)))
		},
	}
	cmd.Flags().StringVarP(&to, "dir", "d", ".", "target folder")
	return cmd
}

// newCheckpointsVerify builds "berth checkpoints verify", a pull that stores nothing.
func newCheckpointsVerify(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "verify JOB [STEP]",
		Short: "Download a checkpoint, compare its hashes and store nothing",
		Long: "Read every file of a verified checkpoint, by default the newest, and compare its hash. The command\n" +
			"does not change the checkpoint: a restore that finds damage marks it as bad and uses an older one.",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: inTurn(a.completeJobs(anyJob), completeSteps(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := newPull(cmd.Context(), a, args)
			if err != nil {
				return err
			}
			if err := p.all(cmd.Context(), func(string, wire.SavedFile) (io.WriteCloser, error) {
				return unkept{io.Discard}, nil
			}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "step %d of %s is intact: %s, %s\n", p.step, named(p.job),
				plural(p.files, "file", "files"), berth.BytesText(p.meter.total))
			return err
		},
	}
}

// unkept is a writer that discards its content.
type unkept struct{ io.Writer }

// Close implements io.Closer.
func (unkept) Close() error { return nil }

// checkpointPull downloads one checkpoint.
type checkpointPull struct {
	app     *app
	client  *client.Client
	job     wire.Job
	step    int64
	members []wire.CheckpointFiles // by number
	files   int
	meter   meter // of all files together
}

// newPull resolves JOB [STEP] and lists the files of all members, so that the size is known
// before the first byte.
func newPull(ctx context.Context, a *app, args []string) (*checkpointPull, error) {
	c, job, step, err := findStep(ctx, a, args)
	if err != nil {
		return nil, err
	}
	p := &checkpointPull{app: a, client: c, job: job, step: step}
	for member := 0; member == 0 || member < p.members[0].Members; member++ {
		files, err := c.CheckpointFiles(ctx, job.ID, step, member)
		if err != nil {
			return nil, a.failed(ctx, err)
		}
		if member > 0 && files.Attempt != p.members[0].Attempt {
			return nil, berth.Errorf(berth.CodeConflict, "step %d of %s was saved again meanwhile; try again",
				step, named(job))
		}
		p.members = append(p.members, files)
		p.files += len(files.Files)
		for _, f := range files.Files {
			p.meter.total += f.Bytes
		}
	}
	p.meter.app, p.meter.name = a, fmt.Sprintf("step-%d", step)
	return p, nil
}

// into downloads into a folder next to place, and moves that folder to place once it is
// complete. So a place that exists is complete, also after a crash.
func (p *checkpointPull) into(ctx context.Context, place string) error {
	// Lstat, so that a dangling link counts as existing too.
	if _, err := os.Lstat(place); err == nil {
		return &usageError{message: place + " already exists",
			hint: "move it away, or pull into another folder with --dir"}
	}
	to := filepath.Dir(place)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return usagef("%v", err)
	}
	part, err := os.MkdirTemp(to, "."+filepath.Base(place)+".part-")
	if err != nil {
		return usagef("%v", err)
	}
	defer os.RemoveAll(part) // after the rename nothing is left under this name
	// The names come from a job. os.Root keeps them from reaching files outside of the folder.
	root, err := os.OpenRoot(part)
	if err != nil {
		return usagef("%v", err)
	}
	defer root.Close()
	if err := p.all(ctx, func(name string, f wire.SavedFile) (io.WriteCloser, error) {
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return nil, err
		}
		return root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, os.FileMode(f.Mode).Perm()|0o600)
	}); err != nil {
		return err
	}
	// MkdirTemp creates folders with mode 0700; a checkpoint gets the mode of any new folder.
	if err := errors.Join(os.Chmod(part, 0o755), os.Rename(part, place)); err != nil {
		return usagef("%v", err)
	}
	_, err = fmt.Fprintln(p.app.out, place)
	p.app.say("step %d of %s: %s, %s", p.step, named(p.job), plural(p.files, "file", "files"),
		berth.BytesText(p.meter.total))
	return err
}

// all downloads and verifies every file. create opens the target of a file, again after a
// transfer that broke off.
func (p *checkpointPull) all(ctx context.Context,
	create func(name string, f wire.SavedFile) (io.WriteCloser, error)) error {
	defer p.meter.done()
	for _, m := range p.members {
		for i, f := range m.Files {
			name := f.Path
			if !filepath.IsLocal(f.Path) || path.Clean(f.Path) != f.Path {
				return p.damaged(fmt.Sprintf("it names the file %q, which lies outside of its folder", f.Path))
			}
			if m.Members > 1 {
				name = fmt.Sprintf("member-%d/%s", m.Member, f.Path)
			}
			if err := p.insist(ctx, m, i, func() (io.WriteCloser, error) { return create(name, f) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// damaged returns the error for content that differs from the saved content.
func (p *checkpointPull) damaged(why string) error {
	return berth.Errorf(berth.CodeConflict, "step %d of %s is damaged: %s", p.step, named(p.job), why)
}

// insist downloads one file, and retries after a broken transfer.
func (p *checkpointPull) insist(ctx context.Context, m wire.CheckpointFiles, i int,
	create func() (io.WriteCloser, error)) error {
	before := p.meter.read
	for try := 1; ; try++ {
		err := p.one(ctx, m, i, create)
		if err == nil || ctx.Err() != nil || try == pullTries || !client.Unreachable(err) {
			return p.app.failed(ctx, err)
		}
		p.meter.read = before
	}
}

// one downloads one file and compares its length and hash.
func (p *checkpointPull) one(ctx context.Context, m wire.CheckpointFiles, i int,
	create func() (io.WriteCloser, error)) error {
	f := m.Files[i]
	in, err := p.client.CheckpointFile(ctx, p.job.ID, m, i)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := create()
	if err != nil {
		return usagef("%v", err)
	}
	defer out.Close()
	p.meter.Reader = in
	hash := sha256.New()
	local := &localWriter{Writer: out}
	n, err := io.Copy(io.MultiWriter(local, hash), &p.meter)
	switch {
	case local.err != nil:
		return usagef("%v", local.err)
	case err != nil:
		return fmt.Errorf("%s: %w", f.Path, errors.Join(io.ErrUnexpectedEOF, err))
	case n != f.Bytes || hex.EncodeToString(hash.Sum(nil)) != f.SHA256:
		return p.damaged(f.Path + " does not match its hash")
	}
	if err := out.Close(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

// localWriter records a failed write, which is a fault of this machine and not of the server.
type localWriter struct {
	io.Writer
	err error
}

// Write writes and keeps the error.
func (w *localWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}
