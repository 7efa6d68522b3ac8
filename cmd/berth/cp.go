package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/internal/lib/treetar"
	"berth/spec"
)

// newCp builds "berth cp" over a session of kind files.
func newCp(a *app) *cobra.Command {
	req := spec.NewSession{Kind: spec.SessionFiles}
	cmd := &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files into or out of a running job",
		Long: "Cp copies a file or a folder between this computer and the container of a running job. One of the\n" +
			"two is JOB:PATH, with an absolute path in the container. A target that is a folder gets the source\n" +
			"into it.\n\n" +
			"In /workspace and in the folder of checkpoints it needs nothing of the image; for other paths the\n" +
			"image must have tar, and the target must be a folder.",
		Example:           "  berth cp notebook:/workspace/results .\n  berth cp fix.py notebook:/workspace/",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeCopy(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkSession(req); err != nil {
				return err
			}
			from, fromPath, out := strings.Cut(args[0], ":")
			to, toPath, in := strings.Cut(args[1], ":")
			// Neither or both sides name a job: Berth copies no files between two containers.
			if out == in {
				return &usageError{message: "one of SOURCE and TARGET must be JOB:PATH, and the other one a path here",
					hint: "a local path with a colon begins with ./"}
			}
			job := from
			req.Copy, req.Path = spec.CopyOut, fromPath
			if in {
				job, req.Copy, req.Path = to, spec.CopyIn, toPath
			}
			// The root of the container is refused: a copy keeps the name of its source, and the root has none.
			if !path.IsAbs(req.Path) || path.Clean(req.Path) == "/" {
				return usagef("%q is no path in a container; allowed: absolute paths such as /workspace/model.pt",
					req.Path)
			}
			if in {
				return copyIn(cmd.Context(), a, job, req, args[0])
			}
			return copyOut(cmd.Context(), a, job, req, args[1])
		},
	}
	addSessionFlags(cmd.Flags(), &req)
	return cmd
}

// copyIn copies a local file or folder into the container.
func copyIn(ctx context.Context, a *app, job string, req spec.NewSession, source string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	// A root confines the reads: a symbolic link in the folder cannot lead outside of it while it is packed.
	root, err := os.OpenRoot(filepath.Dir(source))
	if err != nil {
		return err
	}
	defer root.Close()
	req.Name = filepath.Base(source)
	if _, err := root.Lstat(req.Name); err != nil {
		return usagef("%v", err)
	}
	reader, writer := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := treetar.Pack(writer, root, req.Name, req.Name, func(file string) {
			a.say("left out, since it is no regular file: %s", oneLine(file))
		})
		// A copy that broke off must not look complete: only a whole tar ends the input.
		_ = writer.CloseWithError(err)
		packed <- err
	}()
	err = copyFiles(ctx, a, job, req, client.Streams{Stdin: reader, Stdout: io.Discard, Stderr: a.err})
	// The session may end before it has read all input; this ends the packer, which would block on the pipe.
	_ = reader.CloseWithError(io.ErrClosedPipe)
	if local := <-packed; local != nil && !errors.Is(local, io.ErrClosedPipe) {
		return local
	}
	return err
}

// copyOut copies a file or folder of the container to this computer.
func copyOut(ctx context.Context, a *app, job string, req spec.NewSession, target string) error {
	target, err := filepath.Abs(target)
	if err != nil {
		return err
	}
	// As cp does: an existing folder receives the source, any other target is its new name.
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		target = filepath.Join(target, path.Base(path.Clean(req.Path)))
	}
	// The tar comes from a container, which may be hostile: no entry may be written outside of this root.
	root, err := os.OpenRoot(filepath.Dir(target))
	if err != nil {
		return usagef("%v", err)
	}
	defer root.Close()
	reader, writer := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		_, _, err := treetar.Unpack(reader, root, filepath.Base(target), nil)
		if err == nil {
			_, err = io.Copy(io.Discard, reader) // the padding
		}
		_ = reader.CloseWithError(err)
		unpacked <- err
	}()
	err = copyFiles(ctx, a, job, req, client.Streams{Stdout: writer, Stderr: a.err})
	_ = writer.CloseWithError(err) // nil: the whole tar has come
	if local := <-unpacked; err == nil {
		return local
	}
	return err
}

// copyFiles runs the session to its end.
func copyFiles(ctx context.Context, a *app, arg string, req spec.NewSession, streams client.Streams) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	job, err := a.job(ctx, c, arg)
	if err != nil {
		return err
	}
	code, err := c.Sessions().Run(ctx, job.ID, req, streams)
	// The error of a broken connection explains itself; errors of the API get their usual text.
	_, cut := errors.AsType[*client.CutError](err)
	switch {
	case cut:
		return err
	case err != nil:
		return a.failed(ctx, err)
	case code != 0:
		return fmt.Errorf("tar in the container ended with exit code %d; outside of /workspace and the folder of "+
			"checkpoints the image needs tar, and a target must be a folder", code)
	}
	return nil
}
