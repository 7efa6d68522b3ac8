package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"

	"berth/internal/lib/framed"
	"berth/internal/lib/treetar"
	"berth/spec"
	"berth/wire"
)

// files copies files between the user and the container. Paths in /workspace and in the folder of
// checkpoints are read and written here, below an os.Root: the image needs no program for it. Other
// paths need tar in the image.
func (v *visit) files() {
	root, at, ok := v.mounted(v.order.Request.Path)
	if !ok {
		v.order.Request.Command = tarCommand(v.order.Request)
		v.exec()
		return
	}
	c := framed.New(v.ws, []framed.Channel{framed.Stdin}, []framed.Channel{framed.Stdout, framed.Stderr}, v.beats,
		func(framed.Channel, []byte) {})
	// The connection outlives the container: the user still has to receive the reason of the end.
	ctx, cancel := context.WithCancel(context.WithoutCancel(v.inside))
	defer cancel()
	gone := make(chan struct{}) // closed at the end of the connection
	v.all.Go(func() {
		defer close(gone)
		_ = c.Serve(ctx)
	})
	copied := make(chan error, 1)
	v.all.Go(func() { copied <- v.copyFiles(c, root, at) })
	var status wire.SessionStatus
	select {
	case err := <-copied:
		status = wire.SessionStatus{Cause: wire.CauseExited, Exit: new(int)}
		if err != nil {
			status = wire.SessionStatus{Cause: wire.CauseRefused, Message: err.Error()}
		}
	case <-v.inside.Done():
		status = v.over()
	case <-gone:
	}
	v.part(c, status, gone)
	cancel()
	v.all.Wait()
}

// mounted returns the folder of this machine that holds a path of the container, and the path below
// it. ok is false for a path in the image, or in a folder that only the container may read.
func (v *visit) mounted(name string) (root *os.Root, at string, ok bool) {
	name = path.Clean(name)
	folders := []struct {
		target string
		root   *os.Root
	}{{"/workspace", v.scratch.workspace}}
	if folder := v.claim.checkpoints(); folder != "" {
		folders = append(folders, struct {
			target string
			root   *os.Root
		}{path.Clean(folder), v.scratch.checkpoint})
	}
	best := ""
	for _, f := range folders {
		if below, in := strings.CutPrefix(name, f.target); in && f.root != nil && len(f.target) > len(best) &&
			(below == "" || below[0] == '/') {
			best, root, at = f.target, f.root, path.Join(".", below)
		}
	}
	for _, input := range v.claim.Spec.Inputs { // inputs may lie below /workspace, as mounts of their own
		if in := path.Clean(input.To); strings.HasPrefix(name+"/", in+"/") || strings.HasPrefix(in+"/", name+"/") {
			return nil, "", false
		}
	}
	return root, at, root != nil
}

// copyFiles copies in the direction of the request.
func (v *visit) copyFiles(c *framed.Conn, root *os.Root, at string) error {
	req := v.order.Request
	if req.Copy == spec.CopyOut {
		if _, err := root.Lstat(at); err != nil {
			return fmt.Errorf("%s: %w", req.Path, plain(err))
		}
		to, errs := c.Writer(framed.Stdout), c.Writer(framed.Stderr)
		err := treetar.Pack(to, root, at, path.Base(req.Path), func(file string) {
			_, _ = fmt.Fprintf(errs, "left out, since it is no regular file: %s\n", file)
		})
		_ = errs.Close()
		return errors.Join(err, to.Close())
	}
	to := at
	if info, err := root.Stat(at); err == nil && info.IsDir() {
		to = path.Join(at, v.order.Request.Name)
	} else if info, err := root.Stat(path.Dir(at)); err != nil || !info.IsDir() {
		return fmt.Errorf("%s: there is no such folder in the container", path.Dir(req.Path))
	}
	_, _, err := treetar.Unpack(c.Reader(framed.Stdin), root, to, func(file string) { giveAway(root, file) })
	if err == nil { // the rest of the tar, which may be padding
		_, err = io.Copy(io.Discard, c.Reader(framed.Stdin))
	}
	return err
}

// giveAway makes a new file belong to the owner of its folder, as if the job had written it.
func giveAway(root *os.Root, file string) {
	// Lstat and Lchown follow no link that the job may have put there.
	info, err := root.Lstat(path.Dir(file))
	if err != nil {
		return
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = root.Lchown(file, int(stat.Uid), int(stat.Gid)) // not as root: the agent's own
	}
}

// plain returns the reason of an error of a path, without the path: it is the machine's.
func plain(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}

// tarCommand is the command that copies a path by the image's own tar.
func tarCommand(req spec.NewSession) []string {
	if req.Copy == spec.CopyOut {
		name := path.Clean(req.Path)
		return []string{"tar", "-c", "-f", "-", "-C", path.Dir(name), "--", path.Base(name)}
	}
	return []string{"tar", "-x", "-f", "-", "-C", path.Clean(req.Path)}
}
