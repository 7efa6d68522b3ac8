package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// maxFaults bounds the faults that Verify lists.
const maxFaults = 20

// Verify reads every file of a backup and compares it with the manifest. The error lists the first
// faults. It returns the manifest even if the backup is damaged, and reads every byte, so a call may
// take as long as the backup.
func Verify(ctx context.Context, dir string) (Manifest, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return m, err
	}
	var faults []error
	// n counts all faults, also the ones beyond maxFaults, of which the error gives only the
	// number.
	n := 0
	fault := func(format string, args ...any) {
		if n++; n <= maxFaults {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	bytes, sum, err := sumFile(filepath.Join(dir, databaseFile))
	switch {
	case err != nil:
		fault("%v", err)
	case bytes != m.Database.Bytes || sum != m.Database.SHA256:
		fault("%s is damaged: it has %d bytes and SHA-256 %.12s, and the manifest has %d and "+
			"%.12s", databaseFile, bytes, sum,
			m.Database.Bytes, m.Database.SHA256)
	}
	if m.Objects.Kind != ObjectsNone {
		err := readListing(dir, m, func(e entry) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// The bytes of listed objects are in the bucket alone: only the listing can be compared
			// here.
			if m.Objects.Kind == ObjectsCopied {
				if err := verifyObject(dir, e); err != nil {
					fault("%v", err)
				}
			}
			return nil
		})
		if ctx.Err() != nil {
			return m, ctx.Err()
		}
		if err != nil {
			fault("%v", err)
		}
	}
	if n > maxFaults {
		faults = append(faults, fmt.Errorf("and %d more faults", n-maxFaults))
	}
	if n > 0 {
		return m, fmt.Errorf("backup %s is damaged: %w", dir, errors.Join(faults...))
	}
	return m, nil
}

// verifyObject compares a copied object with its line in the listing.
func verifyObject(dir string, e entry) error {
	// A damaged or forged listing must not lead to files outside of the backup.
	if !filepath.IsLocal(filepath.FromSlash(e.Key)) {
		return fmt.Errorf("object %q: the key leads out of the backup", e.Key)
	}
	n, sum, err := sumFile(filepath.Join(dir, objectsDir, filepath.FromSlash(e.Key)))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("object %s is missing", e.Key)
	case err != nil:
		return err
	case n != e.Size || sum != e.SHA256:
		return fmt.Errorf("object %s is damaged: it has %d bytes and SHA-256 %.12s, and the listing has %d and "+
			"%.12s", e.Key, n,
			sum, e.Size, e.SHA256)
	}
	return nil
}
