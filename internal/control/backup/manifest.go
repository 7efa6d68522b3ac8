package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Files of a backup, in its folder.
const (
	manifestFile = "manifest.json"
	databaseFile = "database.dump"
	listingFile  = "objects.jsonl"
	objectsDir   = "objects"
)

// format is the version of the layout of a backup's folder.
const format = 1

// Ways in which a backup holds the objects.
const (
	ObjectsCopied = "copied" // as files below objects/
	ObjectsListed = "listed" // in the bucket alone
	ObjectsNone   = "none"   // the installation has no object store
)

// Manifest describes a backup. It is written last.
type Manifest struct {
	Format    int       `json:"format"`
	Berth     string    `json:"berth_version"`
	Schema    int       `json:"schema_version"`
	Cluster   string    `json:"cluster"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
	Database  Database  `json:"database"`
	Objects   Objects   `json:"objects"`

	// Keys are the fingerprints of the keys in the key file, the sealing key first. SealedWith are the
	// fingerprints of the keys that sealed values in the database.
	Keys       []string `json:"key_fingerprints,omitempty"`
	SealedWith []string `json:"sealed_with,omitempty"`
}

// Database describes the dump.
type Database struct {
	Server int    `json:"server_version"` // as PostgreSQL writes it: 150004 is 15.4
	Tool   int    `json:"pg_dump_version"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Objects describes the objects of a backup.
type Objects struct {
	Kind   string `json:"kind"`
	Store  string `json:"store,omitempty"` // URL, without its query
	Count  int    `json:"count"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"listing_sha256,omitempty"` // of objects.jsonl
}

// entry is one line of objects.jsonl.
type entry struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"` // of a copied object
	MD5    string `json:"md5,omitempty"`    // of a listed object, as far as the bucket knows it
}

// maxManifest bounds the bytes read of a manifest, which has a few hundred.
const maxManifest = 1 << 20

// ReadManifest reads the manifest of the backup in a folder. It refuses other formats, and folders without a
// manifest: their backup has not ended, or they hold something else.
func ReadManifest(dir string) (Manifest, error) {
	var m Manifest
	f, err := os.Open(filepath.Join(dir, manifestFile))
	if errors.Is(err, os.ErrNotExist) {
		return m, fmt.Errorf("%s is no backup: it has no %s, which a backup writes last", dir, manifestFile)
	}
	if err != nil {
		return m, fmt.Errorf("read backup: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return m, fmt.Errorf("read backup: %w", err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s: not the manifest of a backup: %w", f.Name(), err)
	}
	if m.Format != format {
		return m, fmt.Errorf("%s: the backup has format %d, and this program reads format %d: use the version of "+
			"Berth "+
			"that created it (%s)", f.Name(), m.Format, format, m.Berth)
	}
	return m, nil
}

// write writes the manifest.
func (m Manifest) write(dir string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), b.Bytes(), 0o600)
}

// sumFile returns the length and the SHA-256 of a file, in hexadecimal digits.
func sumFile(path string) (int64, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return n, hex.EncodeToString(h.Sum(nil)), err
}
