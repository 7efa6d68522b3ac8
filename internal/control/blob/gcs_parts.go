package blob

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"

	"berth"
)

// This file stores objects by parts in Google Cloud Storage. Its own uploads of parts know no conditions and no
// SHA-256, so each part is an object, and the completion composes them. An upload is a folder of the bucket:
//
//	~parts/KEY/~ID/00000            begins the upload
//	~parts/KEY/~ID/00001 …          its parts, each by a signed address
//	~parts/KEY/~ID/join-TRY-1-00000 parts in one, during a completion
//
// No key contains ~, so no listing of objects names these, and no key lies in the folder of an upload. Addresses need
// no escape for it.

const (
	partsFolder = "~parts/"
	beginning   = "00000" // name of the object that begins an upload
	lastPart    = ":"     // follows all numbers in the order of names
)

// composeMost is the greatest number of objects that one request composes.
const composeMost = 32

// gcsAbreast is the number of requests about one upload at the same time.
const gcsAbreast = 16

// partName is the form of the objects of uploads, below partsFolder.
var partName = regexp.MustCompile(`^(.+)/~([a-z2-7]{26})/([^/~]+)$`)

// goodUpload matches the ids of uploads. Machines return them in requests.
var goodUpload = regexp.MustCompile(`^[a-z2-7]{26}$`)

// folder returns the folder of an upload. An id that this file has not created is an unknown upload.
func (s *gcsSigner) folder(u Upload) (string, error) {
	if !goodUpload.MatchString(u.ID) {
		return "", errNoUpload(u.Key)
	}
	return s.options.Prefix + partsFolder + u.Key + "/~" + u.ID + "/", nil
}

// begin creates the object that begins an upload.
func (s *gcsSigner) begin(ctx context.Context, key string) (id string, err error) {
	id = strings.ToLower(rand.Text())
	folder, err := s.folder(Upload{key, id})
	if err != nil {
		return "", err
	}
	w := s.bucket.Object(folder + beginning).If(storage.Conditions{DoesNotExist: true}).NewWriter(ctx)
	w.ContentType, w.ChunkSize = "application/octet-stream", gcsChunk
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("object %s in parts: %w", key, err)
	}
	return id, nil
}

// uploads lists the folders of uploads, by one request for each.
func (s *gcsSigner) uploads(ctx context.Context, prefix string, each func(openUpload) error) error {
	root := s.options.Prefix + partsFolder
	q := &storage.Query{Prefix: root + prefix, Projection: storage.ProjectionNoACL}
	if !strings.HasSuffix(prefix, "/") {
		q.Prefix += "/~"
	}
	if err := q.SetAttrSelection([]string{"Name", "Created"}); err != nil {
		return err
	}
	for {
		all := s.bucket.Objects(ctx, q)
		all.PageInfo().MaxSize = 1
		o, err := all.Next()
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return listError{prefix, err}
		}
		part := partName.FindStringSubmatch(strings.TrimPrefix(o.Name, root))
		if part == nil { // of another program
			q.StartOffset = o.Name + "\x01"
			continue
		}
		u := openUpload{Upload: Upload{Key: part[1], ID: part[2]}, begun: o.Created, over: part[3] != beginning}
		if err := each(u); err != nil {
			return err
		}
		q.StartOffset = strings.TrimSuffix(o.Name, part[3]) + "~" // after the names of the folder
	}
}

// exists fails with the code not_found for an upload that has not begun or is over.
func (s *gcsSigner) exists(ctx context.Context, u Upload, folder string) error {
	_, err := s.bucket.Object(folder + beginning).Attrs(ctx)
	if errors.Is(err, storage.ErrObjectNotExist) {
		return errNoUpload(u.Key)
	}
	if err != nil {
		return fmt.Errorf("object %s in parts: %w", u.Key, err)
	}
	return nil
}

// signPart returns the address of a PUT of one part, which may replace the part.
func (s *gcsSigner) signPart(
	ctx context.Context, u Upload, number int, size int64, sum [32]byte, life time.Duration,
) (SignedAddress, error) {
	folder, err := s.folder(u)
	if err != nil {
		return SignedAddress{}, err
	}
	if err := s.exists(ctx, u, folder); err != nil {
		return SignedAddress{}, err
	}
	return s.sign(ctx, http.MethodPut, folder+numbered(number), content(size, sum), life)
}

// numbered returns the name of a part.
func numbered(number int) string { return fmt.Sprintf("%05d", number) }

// renumber names another part in a signed address of one.
func (s *gcsSigner) renumber(address *url.URL, number int) {
	escaped := address.EscapedPath()
	address.Path = path.Join(path.Dir(address.Path), numbered(number))
	address.RawPath = path.Join(path.Dir(escaped), numbered(number))
}

// parts lists the parts of an upload after a number, in order. An upload ends before its parts are removed. So an
// upload that exists after the listing had all its parts during the listing.
func (s *gcsSigner) parts(ctx context.Context, u Upload, after, page int, each func(storedPart) error) error {
	folder, err := s.folder(u)
	if err != nil {
		return err
	}
	listed := s.listParts(ctx, u, folder, after, page, each)
	if err := s.exists(ctx, u, folder); err != nil {
		return err
	}
	return listed
}

// listParts is parts without the look for the upload.
func (s *gcsSigner) listParts(
	ctx context.Context, u Upload, folder string, after, page int, each func(storedPart) error,
) error {
	q := &storage.Query{Prefix: folder, StartOffset: folder + numbered(after+1), EndOffset: folder + lastPart,
		Projection: storage.ProjectionNoACL}
	if err := q.SetAttrSelection([]string{"Name", "Size", "Generation", "Metadata"}); err != nil {
		return err
	}
	all := s.bucket.Objects(ctx, q)
	all.PageInfo().MaxSize = page
	for {
		o, err := all.Next()
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("object %s in parts: %w", u.Key, err)
		}
		number, err := strconv.Atoi(strings.TrimPrefix(o.Name, folder))
		if err != nil {
			continue // of another program
		}
		if err := each(storedPart{number: number, bytes: o.Size, sum: metaSumOf(o),
			version: strconv.FormatInt(o.Generation, 10)}); err != nil {
			return err
		}
	}
}

// complete composes the generations of the parts that were compared, in steps of 32. Two completions at once use
// intermediate objects of their own, and one of them creates the object. The parts are removed afterwards, best effort:
// the list of uploads names the rest.
func (s *gcsSigner) complete(ctx context.Context, u Upload, parts []storedPart, want Parts) error {
	folder, err := s.folder(u)
	if err != nil {
		return err
	}
	sources := make([]*storage.ObjectHandle, len(parts))
	for i, p := range parts {
		generation, err := strconv.ParseInt(p.version, 10, 64)
		if err != nil {
			return fmt.Errorf("object %s in parts: part %d has the generation %q", u.Key, p.number, p.version)
		}
		sources[i] = s.bucket.Object(folder + numbered(p.number)).Generation(generation)
	}
	try := strings.ToLower(rand.Text())
	for level := 1; len(sources) > composeMost; level++ {
		name := func(i int) string { return fmt.Sprintf("%sjoin-%s-%d-%05d", folder, try, level, i) }
		if sources, err = s.join(ctx, sources, name); err != nil {
			return s.composeError(ctx, err, u, folder)
		}
	}
	if len(parts) > composeMost {
		// An abort leaves the intermediate objects that were created after its list. An abort that begins after this
		// look removes all of them, so the last composition never succeeds after the end of an abort.
		if err := s.exists(ctx, u, folder); err != nil {
			return err
		}
	}
	object := s.bucket.Object(s.name(u.Key)).If(storage.Conditions{DoesNotExist: true})
	c := object.ComposerFrom(sources...)
	c.ContentType = "application/octet-stream"
	c.Metadata = map[string]string{metaParts: fmt.Sprintf("%s-%d", hex.EncodeToString(want.Sum[:]), want.Count())}
	if _, err := c.Run(ctx); err != nil {
		return s.composeError(ctx, err, u, folder)
	}
	_ = s.abort(ctx, u)
	return nil
}

// join composes each 32 sources into an object and returns these objects.
func (s *gcsSigner) join(
	ctx context.Context, sources []*storage.ObjectHandle, name func(int) string,
) ([]*storage.ObjectHandle, error) {
	joined := make([]*storage.ObjectHandle, (len(sources)+composeMost-1)/composeMost)
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(gcsAbreast)
	for i := range joined {
		all.Go(func() error {
			object := s.bucket.Object(name(i))
			c := object.ComposerFrom(sources[i*composeMost : min((i+1)*composeMost, len(sources))]...)
			c.ContentType = "application/octet-stream"
			o, err := c.Run(ctx)
			if err != nil {
				return err
			}
			joined[i] = object.Generation(o.Generation)
			return nil
		})
	}
	return joined, all.Wait()
}

// composeError turns an error of a composition into one of Berth. The only condition is that the object does not exist.
// A generation that is gone belongs to a part that was replaced, or to an upload that another completion has ended.
func (s *gcsSigner) composeError(ctx context.Context, err error, u Upload, folder string) error {
	fault, ok := errors.AsType[*googleapi.Error](err)
	switch {
	case ok && fault.Code == http.StatusPreconditionFailed:
		return errObjectExists(u.Key)
	case ok && fault.Code == http.StatusNotFound:
		if err := s.exists(ctx, u, folder); err != nil {
			return err
		}
		return berth.Errorf(berth.CodeInvalid, "object %s: a part was replaced meanwhile", u.Key)
	}
	return fmt.Errorf("object %s in parts: %w", u.Key, err)
}

// abort removes all objects of an upload. Its beginning is removed before the others, so that an upload which exists
// has all its parts. Otherwise a completion at the same time would take it for an upload with missing or replaced
// parts.
func (s *gcsSigner) abort(ctx context.Context, u Upload) error {
	folder, err := s.folder(u)
	if err != nil {
		return err
	}
	if err := s.remove(ctx, u, folder+beginning); err != nil {
		return err
	}
	q := &storage.Query{Prefix: folder, Projection: storage.ProjectionNoACL}
	if err := q.SetAttrSelection([]string{"Name"}); err != nil {
		return err
	}
	all, limited := errgroup.WithContext(ctx)
	all.SetLimit(gcsAbreast)
	for list := s.bucket.Objects(limited, q); ; {
		o, err := list.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return errors.Join(all.Wait(), fmt.Errorf("object %s in parts: %w", u.Key, err))
		}
		all.Go(func() error { return s.remove(limited, u, o.Name) })
	}
	return all.Wait()
}

// remove removes one object of an upload. A missing object is no error.
func (s *gcsSigner) remove(ctx context.Context, u Upload, name string) error {
	err := s.bucket.Object(name).Delete(ctx)
	if err == nil || errors.Is(err, storage.ErrObjectNotExist) {
		return nil
	}
	return fmt.Errorf("object %s in parts: %w", u.Key, err)
}
