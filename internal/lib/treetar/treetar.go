// Package treetar copies files and folders as a tar between two folders, neither of which trusts
// the other: berth cp on a user's computer, and the agent on a machine.
//
// Every path is opened below an os.Root, so that no link and no name leads out of the folder.
// Only folders, regular files and links travel.
package treetar

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Pack writes the file or folder at from, a path below root with slashes, as a tar in which it has
// this name. Sockets, devices and pipes are left out; skipped gets their paths.
func Pack(w io.Writer, root *os.Root, from, name string, skipped func(path string)) error {
	out := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), from, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && file != from {
			return nil // removed meanwhile: the tree of a running job changes
		}
		if err != nil {
			return err
		}
		below := strings.TrimPrefix(strings.TrimPrefix(file, from), "/")
		if from == "." {
			below = strings.TrimPrefix(file, ".")
		}
		return pack(out, root, file, path.Join(name, below), skipped)
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// pack writes one entry. A file that grows or shrinks while it is read keeps its size in the tar.
func pack(out *tar.Writer, root *os.Root, file, name string, skipped func(string)) error {
	info, err := root.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return out.WriteHeader(h)
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = root.Readlink(file); err != nil {
			return err
		}
		return out.WriteHeader(h)
	case !info.Mode().IsRegular():
		skipped(file)
		return nil
	}
	f, err := root.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil || !now.Mode().IsRegular() { // replaced by a pipe, for example
		skipped(file)
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, now.Size()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was read", file)
	}
	return err
}

// Unpack reads a tar with one tree and puts the tree at to, a path below root. own, if not nil, is
// called with each new path. It returns the number of files and their bytes.
func Unpack(r io.Reader, root *os.Root, to string, own func(path string)) (files int, bytes int64, err error) {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, bytes, nil
		}
		if err != nil {
			return files, bytes, fmt.Errorf("read the tar: %w", err)
		}
		_, below, _ := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
		at := path.Join(to, path.Join("/", below)) // a name cannot lead above its tree
		n, err := unpack(in, root, at, h)
		if err != nil {
			return files, bytes, fmt.Errorf("write %s: %w", at, err)
		}
		if own != nil {
			own(at)
		}
		if h.Typeflag == tar.TypeReg {
			files, bytes = files+1, bytes+n
		}
	}
}

// unpack writes one entry. It replaces files, and keeps folders that exist.
func unpack(in io.Reader, root *os.Root, at string, h *tar.Header) (int64, error) {
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	switch h.Typeflag {
	case tar.TypeDir:
		if info, err := root.Stat(at); err == nil && info.IsDir() {
			return 0, nil
		}
		return 0, root.Mkdir(at, mode|0o700)
	case tar.TypeSymlink:
		if err := root.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		return 0, root.Symlink(h.Linkname, at)
	case tar.TypeReg:
	default:
		return 0, fmt.Errorf("entry of type %q; allowed are folders, regular files and links", h.Typeflag)
	}
	// A new file: an old one may be a link, or be in use.
	if info, err := root.Lstat(at); err == nil && !info.IsDir() {
		if err := root.Remove(at); err != nil {
			return 0, err
		}
	}
	f, err := root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, in)
	if chmod := f.Chmod(mode); err == nil { // whatever the umask
		err = chmod
	}
	return n, errors.Join(err, f.Close())
}
