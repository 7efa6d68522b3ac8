// Package agentbin finds the programs berth-agent that berthd serves to new machines.
//
// The folder of --agent-binaries has a folder for each platform, as linux-amd64, whose file berth-agent is
// the program for new launches. All other files there are served too, so that launches from before an upgrade
// find the program of that time:
//
//	linux-amd64/berth-agent        named in new launches
//	linux-amd64/berth-agent-1.4    served, for launches that name its hash
//	linux-arm64/berth-agent
//
// The files are hashed once and stay open. If a rename replaces a file, the old content is still served. If a
// file is changed in place, it no longer has its hash, and machines refuse it.
package agentbin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// Name is the name of the program for new launches.
const Name = "berth-agent"

// Limits of a folder: larger ones hold something else.
const (
	maxFiles = 64
	maxBytes = 512 << 20
)

// Platforms are the platforms whose machines can install the agent, as cloud-init of this version does.
var Platforms = []string{"linux-amd64", "linux-arm64"}

// hash is the form of a SHA-256 in this package and in URLs.
var hash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Binaries are the programs of a folder. The zero value has none. Its methods may be called concurrently.
type Binaries struct {
	current map[string]string // by platform, the hash of the file berth-agent
	files   map[key]*os.File
}

type key struct{ platform, sha256 string }

// Open reads the folder, and returns every fault in it. Close closes its files.
func Open(dir string) (*Binaries, error) {
	b := &Binaries{current: map[string]string{}, files: map[key]*os.File{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var faults []error
	for _, entry := range entries {
		if platform := entry.Name(); slices.Contains(Platforms, platform) {
			faults = append(faults, b.openPlatform(filepath.Join(dir, platform), platform))
		} else {
			faults = append(faults, fmt.Errorf("%s: no platform; allowed are the folders %q",
				filepath.Join(dir, platform), Platforms))
		}
	}
	if len(entries) == 0 {
		faults = append(faults, fmt.Errorf("%s is empty: it has no folder as %s", dir, Platforms[0]))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// openPlatform opens the files of one platform.
func (b *Binaries) openPlatform(dir, platform string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var faults []error
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if len(b.files) >= maxFiles {
			return errors.Join(append(faults, fmt.Errorf("%s: more than %d files", path, maxFiles))...)
		}
		sum, err := b.openFile(path, platform)
		if err != nil {
			faults = append(faults, err)
		} else if entry.Name() == Name {
			b.current[platform] = sum
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if b.current[platform] == "" {
		return fmt.Errorf("%s has no file %s", dir, Name)
	}
	return nil
}

// openFile opens and hashes one program.
func (b *Binaries) openFile(path, platform string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() == 0 || info.Size() > maxBytes) {
		err = fmt.Errorf("%s: allowed is a regular file of 1 byte to %d MiB", path, maxBytes>>20)
	}
	sum := sha256.New()
	if err == nil {
		_, err = io.Copy(sum, f)
	}
	if err != nil {
		return "", errors.Join(err, f.Close())
	}
	text := hex.EncodeToString(sum.Sum(nil))
	if b.files[key{platform, text}] != nil { // the same program under two names
		return text, f.Close()
	}
	b.files[key{platform, text}] = f
	return text, nil
}

// Current returns the hashes of the programs for new launches, by platform.
func (b *Binaries) Current() map[string]string {
	if b == nil {
		return nil
	}
	return maps.Clone(b.current)
}

// Find returns the program with the hash, with its size, or false.
func (b *Binaries) Find(platform, sha256 string) (io.Reader, int64, bool) {
	if b == nil || !hash.MatchString(sha256) {
		return nil, 0, false
	}
	f := b.files[key{platform, sha256}]
	if f == nil {
		return nil, 0, false
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, false
	}
	return io.NewSectionReader(f, 0, info.Size()), info.Size(), true
}

// Close closes the files. Readers of Find fail afterwards.
func (b *Binaries) Close() error {
	if b == nil {
		return nil
	}
	var errs []error
	for _, f := range b.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
