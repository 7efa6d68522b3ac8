package preflight

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/control/blob"
	"berth/internal/control/controlplane"
)

// leastFree is the free share of an object store's file system below which it is reported.
const leastFree = 0.1

// store writes, reads and deletes an object. A folder that does not exist is left for berthd to create, since
// a folder that root creates could not be written to by the service.
func (r *report) store(ctx context.Context) {
	if r.Config.BlobURL == "" { // a fault of the settings, if the API needs one
		return
	}
	u, err := url.Parse(r.Config.BlobURL)
	if err != nil {
		r.add("store", Fault, "write file:///FOLDER, s3://BUCKET?region=… or gs://BUCKET/PREFIX",
			"blob-url is not a URL")
		return
	}
	name := u.Scheme + "://" + u.Host + u.Path // a query may hold keys
	if u.Scheme == "file" && u.Host == "" && filepath.IsAbs(u.Path) {
		if _, err := os.Stat(u.Path); errors.Is(err, fs.ErrNotExist) {
			r.writable("store", "blob-url", parent(u.Path), "the first start creates the folder "+u.Path)
			return
		}
	}
	// Each step may take the limit of a dependency; a store that hangs must not keep the report.
	ctx, cancel := context.WithTimeout(ctx, 2*r.Limit)
	defer cancel()
	s, err := blob.Open(ctx, r.Config.BlobURL)
	if err != nil {
		r.add("store", Fault, "", "%v", err)
		return
	}
	defer s.Close()
	if step, err := probe(ctx, s); err != nil {
		r.add("store", Fault, "berthd must be able to write, read and delete objects", "cannot %s in %s: %v", step,
			name, err)
		return
	}
	r.add("store", OK, "", "an object in %s was written, read and deleted", name)
	r.identity(ctx, s, name)
	r.signing(ctx, s, name)
	if free, ok := s.FreeShare(); ok && free < leastFree {
		r.add("store", Advice, "extend it, or shorten output-retention and log-retention",
			"the file system of %s has %.1f %% free", name, 100*free)
	}
}

// identity compares the store with the one that the database names: berthd refuses to start with another one.
func (r *report) identity(ctx context.Context, s *blob.Store, name string) {
	id, err := s.ID(ctx)
	switch {
	case err != nil:
		r.add("store", Fault, "", "cannot read the id of %s: %v", name, err)
	case r.storeID != "" && id != r.storeID:
		r.add("store", Fault, "correct blob-url; or, to use this store from now on, stop every berthd, copy all "+
			"objects, and run: berthd store adopt", "%s is not the store of this cluster: it has the id %q, and the "+
			"database names %s", name, id, r.storeID)
	}
}

// signing proves that machines may use the store by signed addresses, if they are to. A store that
// fails is advice: berthd moves the objects itself then.
func (r *report) signing(ctx context.Context, s *blob.Store, name string) {
	if !s.Signs() || r.Config.ObjectAccess == controlplane.ProxyAccess {
		return
	}
	if err := s.ProveSigning(ctx); err != nil {
		r.add("store", Advice, "set object-access to proxy, unless machines shall use the store directly",
			"machines cannot use %s by signed addresses: %v", name, err)
		return
	}
	r.add("store", OK, "", "%s keeps the conditions of signed addresses", name)
	if err := s.InParts().Prove(ctx); err != nil {
		r.add("store", Advice,
			"let berthd list and abort uploads of parts, or accept that objects above 5 GiB pass berthd",
			"machines cannot store large objects in %s by parts: %v", name, err)
	}
}

// parent returns the nearest folder above path that exists. It ends at the root, also if that cannot be
// examined.
func parent(path string) string {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
	}
}

// probe writes, reads and deletes an object of a new name. The error is of the named step. The name is
// random, so two runs at once, or a leftover of a killed one, do no harm.
func probe(ctx context.Context, s *blob.Store) (step string, err error) {
	key, content := "preflight/"+strings.ToLower(rand.Text()), []byte("berthd check-config\n")
	if err := s.Create(ctx, key, content); err != nil {
		return "write", err
	}
	got, err := s.ReadAll(ctx, key, 1024)
	if err == nil && !bytes.Equal(got, content) {
		err = errors.New("the object has another content")
	}
	if err != nil {
		_ = s.Delete(ctx, key)
		return "read", err
	}
	return "delete", s.Delete(ctx, key)
}
