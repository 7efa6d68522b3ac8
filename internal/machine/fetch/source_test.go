package fetch_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/internal/lib/archive"
	"berth/internal/lib/publicnet"
	"berth/internal/machine/fetch"
	"berth/spec"
)

// near allows this machine, where the servers of these tests are.
var near = publicnet.Policy{}.Allow(netip.MustParsePrefix("127.0.0.0/8"))

// times tries so often.
func times(n int) fetch.Again {
	return func(ctx context.Context, try func() error) (err error) {
		for range n {
			if err = try(); err == nil || fetch.Final(err) || ctx.Err() != nil {
				return err
			}
		}
		return err
	}
}

// findAndRead finds an input and reads it, and returns its files by name; folders end
// in a slash.
func findAndRead(t *testing.T, s *fetch.Sources, in spec.Input, login spec.Sensitive, tries int) (*fetch.Found, map[string]string, error) {
	t.Helper()
	var found *fetch.Found
	err := times(tries)(t.Context(), func() (err error) {
		found, err = s.Find(t.Context(), in, login)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	files, err := read(t, found, tries)
	return found, files, err
}

func read(t *testing.T, found *fetch.Found, tries int) (map[string]string, error) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	sum, err := found.Fetch(t.Context(), root, times(tries))
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	bytes := int64(0)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			files[name+"/"] = ""
			return nil
		}
		text, err := os.ReadFile(path)
		files[name], bytes = string(text), bytes+int64(len(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := archive.Summary{Files: len(files), Bytes: bytes}
	if found.Once {
		content := sha256.Sum256([]byte(files[fetch.FileName]))
		want.Address = berth.AddressOf(content[:])
	}
	if sum != want {
		t.Errorf("it tells of %+v, and there is %+v", sum, want)
	}
	return files, nil
}

// refused fails unless an error is the user's, and says this.
func refused(t *testing.T, what string, err error, says string) {
	t.Helper()
	if _, ok := errors.AsType[fetch.Refused](err); !ok || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v; want a refusal with %q", what, err, says)
	}
}

// passing fails unless an error may pass, and says this.
func passing(t *testing.T, what string, err error, says string) {
	t.Helper()
	if err == nil || fetch.Final(err) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v; want an error that may pass, with %q", what, err, says)
	}
}
