package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
)

// contexts is the content of the file of named servers, as kubectl's kubeconfig: each
// context has an address and a token.
type contexts struct {
	// Current names the context that applies without --context and --url; "": none.
	Current  string             `yaml:"current,omitempty"`
	Contexts map[string]*target `yaml:"contexts,omitempty"`
}

// target is one server with its token. An empty token makes calls without credentials.
type target struct {
	URL   string `yaml:"url"`
	Token string `yaml:"token,omitempty"`
}

// loadContexts reads the file of contexts. A missing file, an empty one and an empty path
// give no contexts and no error, since the first login creates the file. Unknown fields are
// refused: a misspelt key would otherwise lose a token silently.
func loadContexts(path string) (*contexts, error) {
	c := &contexts{Contexts: map[string]*target{}}
	if path == "" {
		return c, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, usagef("read contexts: %v", err)
	}
	err = yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(c)
	if err != nil && len(bytes.TrimSpace(b)) > 0 {
		// The parser's own text shows the source, and the source contains tokens. Only the
		// line number and the parser's message are printed.
		message := "not a file of contexts"
		var e yaml.Error
		if errors.As(err, &e) && e.GetToken() != nil {
			message = fmt.Sprintf("line %d: %s", e.GetToken().Position.Line, e.GetMessage())
		}
		return nil, &usageError{message: path + ": " + message,
			hint: "correct the file, or remove it and run berth login"}
	}
	for name, t := range c.Contexts {
		if t == nil || t.URL == "" {
			return nil, &usageError{message: fmt.Sprintf("%s: context %q has no url", path, name),
				hint: "berth login URL --name " + name}
		}
	}
	return c, nil
}

// save replaces the file atomically: a crash leaves the old file or the new one, never a
// part. Only the user can read the file, since it contains tokens.
func (c *contexts) save(path string) error {
	if path == "" {
		return usagef("cannot store contexts: HOME is not set; set BERTH_CONFIG")
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("marshal contexts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return usagef("save contexts: %v", err)
	}
	// The temporary file must be in the same folder: a rename across file systems fails.
	f, err := os.CreateTemp(filepath.Dir(path), ".config-*") // mode 0600
	if err != nil {
		return usagef("save contexts: %v", err)
	}
	_, err = f.Write(b)
	// Sync before the rename: otherwise a power failure could leave the new name with no
	// content.
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return usagef("save contexts: %v", err)
	}
	return nil
}

// exposed reports whether other users of this machine can read or write the file, by its
// permission bits for group and others.
func exposed(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o077 != 0
}
