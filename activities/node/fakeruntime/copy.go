package fakeruntime

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"berth/activities/node"
	"berth/spec"
)

// CopyOut returns a tar of a path in one of the container's mounts; elsewhere the fake has
// no files.
func (f *Fake) CopyOut(ctx context.Context, name, at string) (io.ReadCloser, error) {
	if err := f.allow(ctx, Call{Method: "CopyOut", Subject: name}); err != nil {
		return nil, err
	}
	c, err := f.find(name)
	if err != nil {
		return nil, err
	}
	m, rest, err := c.mount(at)
	host := filepath.Join(m.Host, rest)
	if err == nil {
		_, err = os.Lstat(host)
	}
	if errors.Is(err, errNoMount) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) ||
		errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s in container %s: %w", at, name, node.ErrNoPath)
	}
	if err != nil {
		return nil, err
	}
	// A pipe, since a folder may be larger than memory.
	out, in := io.Pipe()
	go func() { // ends with the pipe, which the caller closes
		w := tar.NewWriter(in)
		var owner *spec.UserID
		if m.Target == "/" {
			owner = &c.owner
		}
		err := writeTree(w, host, path.Base(at), owner)
		if err == nil {
			err = w.Close()
		}
		_ = in.CloseWithError(err)
	}()
	return out, nil
}

// writeTree writes a file, or a folder and then its contents, with names that begin with
// base. Links stay links and are not followed. With an owner, all entries belong to it.
func writeTree(w *tar.Writer, host, base string, owner *spec.UserID) error {
	return filepath.WalkDir(host, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		// A header needs the link's target, which may not exist.
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(file); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(host, file)
		if err != nil {
			return err
		}
		// The root's own path below itself is ".", which Join removes.
		h.Name = path.Join(base, filepath.ToSlash(below))
		if owner != nil {
			h.Uid, h.Gid = owner.UID, owner.GID
		}
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	})
}
