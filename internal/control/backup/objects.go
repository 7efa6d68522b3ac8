package backup

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"berth"
	"berth/internal/control/blob"
)

// ownKeys is the key prefix of the cluster's own objects, its watermarks. Backups leave them out: a restored
// database gets new ones.
const ownKeys = "clusters/"

// saveObjects writes the listing of a store into the folder of a backup, and copies the objects of a
// store in a folder. A folder keeps no earlier versions, so its objects must be copied; a bucket keeps
// the bytes by its versioning. The manifest has the SHA-256 of the listing, and the listing that of
// each copy, so both cover every copied byte.
func saveObjects(ctx context.Context, store *blob.Store, dir string) (Objects, error) {
	o := Objects{Kind: ObjectsListed}
	if store.Folder() != "" {
		o.Kind = ObjectsCopied
	}
	f, err := os.OpenFile(filepath.Join(dir, listingFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return o, err
	}
	defer f.Close()
	sum := sha256.New()
	out := bufio.NewWriter(io.MultiWriter(f, sum))
	lines := json.NewEncoder(out)
	err = store.Walk(ctx, func(x blob.Object) error {
		if strings.HasPrefix(x.Key, ownKeys) {
			return nil
		}
		e := entry{Key: x.Key, Size: x.Size, MD5: hex.EncodeToString(x.MD5)}
		if o.Kind == ObjectsCopied {
			var err error
			e.Size, e.SHA256, err = copyObject(ctx, store, x.Key, filepath.Join(dir, objectsDir,
				filepath.FromSlash(x.Key)))
			if berth.CodeOf(err) == berth.CodeNotFound {
				return nil // deleted meanwhile, so no row of the dump names it
			}
			if err != nil {
				return err
			}
		}
		o.Count++
		o.Bytes += e.Size
		return lines.Encode(e)
	})
	if err == nil {
		err = out.Flush()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	o.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return o, err
}

// copyObject copies an object to a new file, and returns its length and its SHA-256. Only the owner may
// read the file, since logs and outputs of jobs may contain secrets.
func copyObject(ctx context.Context, store *blob.Store, key, path string) (int64, string, error) {
	from, size, err := store.Open(ctx, key)
	if err != nil {
		return 0, "", err
	}
	defer from.Close()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, "", err
	}
	// O_EXCL: a file that exists would mean that two keys share a path.
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, "", err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, sum), from)
	if closed := to.Close(); err == nil {
		err = closed
	}
	// A read that ends early must not pass as a whole copy.
	if err == nil && n != size {
		err = fmt.Errorf("object %s: %d bytes of %d were read", key, n, size)
	}
	return n, hex.EncodeToString(sum.Sum(nil)), err
}

// readListing calls each for every line of a backup's listing. It first compares the listing with the
// manifest. An error of each ends the call, and is returned.
func readListing(dir string, m Manifest, each func(entry) error) error {
	path := filepath.Join(dir, listingFile)
	_, sum, err := sumFile(path)
	if err != nil {
		return err
	}
	if sum != m.Objects.SHA256 {
		return fmt.Errorf("%s is not the listing of this backup: its SHA-256 is %.12s, and the manifest has "+
			"%.12s", path, sum,
			m.Objects.SHA256)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	count := 0
	for d := json.NewDecoder(bufio.NewReader(f)); ; count++ {
		var e entry
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s, object %d: %w", path, count+1, err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	// The listing has the right SHA-256 here, so a wrong count is a fault of the manifest.
	if count != m.Objects.Count {
		return fmt.Errorf("%s has %d objects, and the manifest %d", path, count, m.Objects.Count)
	}
	return nil
}
