package controlplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"berth/db"
)

// tokenFile is the path of a file with one admin token, on a line of its own. Its writers
// make it readable by its owner alone.
type tokenFile string

// tokenFileLimit bounds the size of a token file; a token has fewer than 100 bytes.
const tokenFileLimit = 4096

// read returns the token of the file. The error wraps os.ErrNotExist if there is no file. A
// file that others may write is refused: they could choose the admin token.
func (f tokenFile) read() (string, error) {
	file, err := os.Open(string(f))
	if err != nil {
		return "", fmt.Errorf("admin token file: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("admin token file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("admin token file %s: not a regular file", f)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("admin token file %s: mode %04o lets other users write it; allowed are 0600 and other "+
			"modes that only its owner may write: chmod 600 %s", f, info.Mode().Perm(), f)
	}
	b, err := io.ReadAll(io.LimitReader(file, tokenFileLimit))
	if err != nil {
		return "", fmt.Errorf("admin token file: %w", err)
	}
	text := strings.TrimSpace(string(b))
	if !db.TokenShaped(text) {
		return "", fmt.Errorf("admin token file %s: it holds no token of the form "+
			"berth_<12 hex digits>_<64 hex digits>; name another file, or remove it", f)
	}
	return text, nil
}

// create writes the token to a new file. A file that exists and holds the same token is no
// error, and any other file is.
func (f tokenFile) create(text string) error {
	temp, err := f.prepare(text)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	err = os.Link(temp, string(f)) // unlike a rename, this never replaces a file
	if errors.Is(err, os.ErrExist) {
		if there, readErr := f.read(); readErr == nil && there == text {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("admin token file: %w", err)
	}
	return f.syncFolder()
}

// replace writes the token to the file in place of any content.
func (f tokenFile) replace(text string) error {
	temp, err := f.prepare(text)
	if err != nil {
		return err
	}
	return f.commit(temp)
}

// prepare writes the token to a temporary file in the same folder and returns its path. After
// prepare, commit can hardly fail: the folder is writable and the disk has the bytes.
func (f tokenFile) prepare(text string) (temp string, err error) {
	file, err := os.CreateTemp(filepath.Dir(string(f)), "."+filepath.Base(string(f))+".*") // mode 0600
	if err != nil {
		return "", fmt.Errorf("admin token file: %w", err)
	}
	_, err = file.WriteString(text + "\n")
	if err == nil {
		err = f.own(file)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return "", fmt.Errorf("admin token file: %w", err)
	}
	return file.Name(), nil
}

// commit gives the temporary file the name of the file, in place of any file of that name.
func (f tokenFile) commit(temp string) error {
	if err := os.Rename(temp, string(f)); err != nil {
		return fmt.Errorf("admin token file: %w", err)
	}
	return f.syncFolder()
}

// own gives a file that root writes the owner of the file in its place, or of the folder: the
// service that reads the file has a user of its own.
func (f tokenFile) own(file *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(string(f))
	if err != nil {
		info, err = os.Stat(filepath.Dir(string(f)))
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return file.Chown(int(owner.Uid), int(owner.Gid))
}

// syncFolder makes the name of the file durable.
func (f tokenFile) syncFolder() error {
	dir, err := os.Open(filepath.Dir(string(f)))
	if err != nil {
		return fmt.Errorf("admin token file: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("admin token file: %w", err)
	}
	return nil
}
