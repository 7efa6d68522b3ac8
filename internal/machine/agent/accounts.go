package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// mostAccounts bounds the number of files that accountFiles keeps. A member needs two.
const mostAccounts = 256

// accountFiles has the files that containers see as /etc/passwd and /etc/group, each content once. Members have
// hard links to them: most containers of a machine have the same accounts, and a link needs no room of its own. Its
// methods may be called by many goroutines.
type accountFiles struct {
	folder string

	mu      sync.Mutex
	written map[string]bool // names of files that this process has written as a whole
}

// openAccounts returns an empty store in the agent's folder. Files of an earlier process are removed, since a crash
// of the machine may have truncated them. Links of members to them stay.
func openAccounts(state string) *accountFiles {
	a := &accountFiles{folder: filepath.Join(state, "accounts")}
	a.clear()
	return a
}

// place creates a file with the content at the path, or replaces it. Every user may read the file. Nothing may
// write to it, since other members may have links to it.
func (a *accountFiles) place(at string, content []byte) error {
	// Without the lock, another call could clear the folder and write the file again while this one links it: the
	// member would get a part of the file if that write fails.
	a.mu.Lock()
	defer a.mu.Unlock()
	kept, err := a.file(content)
	if err == nil {
		err = os.Link(kept, at)
	}
	if errors.Is(err, fs.ErrExist) { // of an earlier try
		if err = os.Remove(at); err == nil {
			err = os.Link(kept, at)
		}
	}
	if err != nil { // the folder is gone, the file has too many links, or the file system has none
		return writeAccounts(at, content)
	}
	return nil
}

// file returns the path of the file with the content. a.mu is held.
func (a *accountFiles) file(content []byte) (string, error) {
	name := fmt.Sprintf("%x", sha256.Sum256(content))
	path := filepath.Join(a.folder, name)
	if a.written[name] {
		return path, nil
	}
	if len(a.written) >= mostAccounts {
		a.clear()
	}
	if err := os.MkdirAll(a.folder, 0o700); err != nil {
		return "", err
	}
	if err := writeAccounts(path, content); err != nil {
		return "", err
	}
	a.written[name] = true
	return path, nil
}

// clear removes all files. A file that cannot be removed is replaced before it is used again.
func (a *accountFiles) clear() {
	_ = os.RemoveAll(a.folder)
	a.written = map[string]bool{}
}

// writeAccounts replaces a file that every user may read. The file that was there stays as it is, for those who
// have links to it.
func writeAccounts(at string, content []byte) error {
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(at, content, 0o444); err != nil {
		return err
	}
	return os.Chmod(at, 0o444) // for any umask
}
