package blob

import (
	"errors"
	"path/filepath"
	"testing"
)

// Some file systems cannot sync a folder. The id is there all the same, and identifies the folder.
func TestAFolderThatCannotBeSyncedIsKnownByItsID(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), "file://"+filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	invalid := errors.New("invalid argument")
	if err := mark(s, func(string) error { return invalid }); !errors.Is(err, invalid) {
		t.Errorf("the failed sync is not reported: %v", err)
	}
	if now, err := identify(s.folder); err != nil || now.id == "" || s.is != now {
		t.Errorf("the store is known as %+v, its folder is %+v, %v", s.is, now, err)
	}
}
