package blob

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"strings"
	"time"

	"berth"
)

// This file stores large objects by parts, each by a signed address of its own
// (docs/adr/0092-large-objects-go-by-parts.md). An upload of parts is kept by the store alone: its list of uploads
// names them after a crash of every process of Berth. The rules are the same for all stores; uploader is the protocol.

// PartBytes is the length of every part of an object but the last one, in bytes. S3 allows 10,000 parts, so the
// greatest object of a machine has 8,192.
const PartBytes = 128 << 20

// LeastPart is the least length of a part that S3 allows, except for the last part of an object.
const LeastPart = 5 << 20

// maxParts is the greatest number of parts that S3 allows.
const maxParts = 10_000

// Parts describes an object that is stored by parts: its length, the length of its parts, and the SHA-256 of the
// concatenated SHA-256 of all parts. S3 calls this sum composite; it computes no SHA-256 of a whole object in parts.
type Parts struct {
	Bytes, PartBytes int64
	Sum              [32]byte
}

// Check returns an error for lengths that no store takes.
func (p Parts) Check() error {
	if p.Bytes < 1 || p.PartBytes < LeastPart || p.PartBytes > MaxSigned || p.Bytes > p.PartBytes*maxParts {
		return berth.Errorf(berth.CodeInvalid,
			"object of %d bytes in parts of %d: allowed are 1 to %d parts of %d to %d", p.Bytes,
			p.PartBytes, maxParts, int64(LeastPart), int64(MaxSigned))
	}
	return nil
}

// Count returns the number of parts.
func (p Parts) Count() int { return int((p.Bytes + p.PartBytes - 1) / p.PartBytes) }

// Length returns the length of a part, by its number from 1, and 0 for a part that the object does not have.
func (p Parts) Length(number int) int64 {
	if number < 1 || number > p.Count() {
		return 0
	}
	return min(p.PartBytes, p.Bytes-int64(number-1)*p.PartBytes)
}

// Upload is an unfinished upload of parts.
type Upload struct{ Key, ID string }

// openUpload is one entry of a store's list of uploads.
type openUpload struct {
	Upload
	begun time.Time
	own   bool // a transfer of a process of Berth itself, as of Put
	over  bool // only leftovers, which no part can be added to
}

// storedPart is a part as its store lists it.
type storedPart struct {
	number  int
	bytes   int64
	sum     *[32]byte // as the store has checked it; nil: it has not
	version string    // names this content of the part
}

// uploader is the protocol of uploads of parts. A missing upload is an error of code not_found, apart from abort and
// uploads. Errors of each, and errEnough as well, are returned as they are.
type uploader interface {
	begin(ctx context.Context, key string) (id string, err error)
	// uploads lists the uploads of a key, perhaps followed by the uploads of longer keys with this prefix, or the
	// uploads in a folder, whose name ends with /.
	uploads(ctx context.Context, prefix string, each func(openUpload) error) error
	signPart(
		ctx context.Context, u Upload, number int, size int64, sum [32]byte, life time.Duration,
	) (SignedAddress, error)
	renumber(address *url.URL, number int) // names another part in a signed address, for proofs
	parts(ctx context.Context, u Upload, after, page int, each func(storedPart) error) error
	// complete creates the object from the listed parts, in their listed versions. The error for an object that exists
	// has the code conflict, and for another version the code invalid.
	complete(ctx context.Context, u Upload, parts []storedPart, want Parts) error
	abort(ctx context.Context, u Upload) error
}

// PartStore stores large objects by parts in a store with signed addresses.
type PartStore struct{ *Store }

// InParts returns the store for objects in parts.
func (s *Store) InParts() PartStore { return PartStore{s} }

// Begin returns the id of an unfinished upload of an object, the newest one, and creates one if there is none.
func (s PartStore) Begin(ctx context.Context, key string) (id string, resumed bool, err error) {
	if err := signable(s.Store, key); err != nil {
		return "", false, err
	}
	var newest time.Time
	err = s.each(ctx, key, func(u openUpload) error {
		if u.Key == key && !u.own && !u.over && (id == "" || u.begun.After(newest)) {
			id, newest = u.ID, u.begun
		}
		return nil
	})
	if err != nil || id != "" {
		return id, id != "", err
	}
	id, err = s.signer.begin(ctx, key)
	return id, false, err
}

// Of calls each for the unfinished uploads of one object that were begun for signed parts. Other transfers, as of Put,
// are left out. It reads the list up to the first upload of another key: the store sorts by key.
func (s PartStore) Of(ctx context.Context, key string, each func(Upload) error) error {
	return s.each(ctx, key, func(u openUpload) error {
		switch {
		case u.Key != key:
			return errEnough
		case u.own:
			return nil
		}
		return each(u.Upload)
	})
}

// Sign returns an address that stores one part of an upload, for life: this key and number, of exactly these
// bytes. A second use stores the same bytes again. Once the upload is completed or aborted, the store refuses the
// address, or this call has the code not_found.
func (s PartStore) Sign(
	ctx context.Context, key, id string, number int, size int64, sum [32]byte, life time.Duration,
) (SignedAddress, error) {
	if err := signable(s.Store, key); err != nil {
		return SignedAddress{}, err
	}
	if err := checkUpload(id); err != nil {
		return SignedAddress{}, err
	}
	if number < 1 || number > maxParts || size < 1 || size > MaxSigned {
		return SignedAddress{}, berth.Errorf(berth.CodeInvalid, "part %d of %d bytes: allowed are parts 1 to %d of 1 "+
			"to %d bytes", number, size, maxParts, int64(MaxSigned))
	}
	return s.signer.signPart(ctx, Upload{key, id}, number, size, sum, life)
}

// Has reports whether an upload has a part of this length and, by the store's own checksum, of this content.
func (s PartStore) Has(
	ctx context.Context, key, id string, number int, size int64, sum [32]byte,
) (bool, error) {
	has := false
	err := s.parts(ctx, key, id, number-1, 1, func(p storedPart) error {
		has = p.number == number && p.bytes == size && p.sum != nil && *p.sum == sum
		return errEnough
	})
	return has && err == nil, err
}

// completeTries is the number of comparisons of an upload before its completion fails.
const completeTries = 3

// Complete creates the object of an upload from its parts. The parts must be in the store with their
// lengths and with checksums whose sum is the announced one; the error for others has the code invalid. An object
// that exists stays as it is, and the error has the code conflict. For an upload that the store does not know, since
// it is completed or aborted, the code is not_found. Calls at the same time, also of several processes, create one
// object, and the other calls get one of these two codes.
func (s PartStore) Complete(ctx context.Context, key, id string, want Parts) error {
	if err := want.Check(); err != nil {
		return err
	}
	for try := 1; ; try++ {
		parts, err := s.compare(ctx, key, id, want)
		if err != nil {
			return err
		}
		err = s.signer.complete(ctx, Upload{key, id}, parts, want)
		// A repeated request may have replaced a part with the same content after the comparison.
		if berth.CodeOf(err) != berth.CodeInvalid || try == completeTries {
			return err
		}
	}
}

// compare returns the parts of an upload if they make up the object, and else an error of code invalid.
func (s PartStore) compare(ctx context.Context, key, id string, want Parts) ([]storedPart, error) {
	var parts []storedPart
	all := sha256.New()
	err := s.parts(ctx, key, id, 0, 1000, func(p storedPart) error {
		number := len(parts) + 1
		if number > want.Count() {
			return errEnough // a part beyond the end is no part of the object
		}
		if p.number != number || p.bytes != want.Length(number) || p.sum == nil {
			return berth.Errorf(berth.CodeInvalid, "object %s: the store has part %d of %d bytes, and part %d of %d "+
				"bytes with a SHA-256 is next", key, p.number, p.bytes, number, want.Length(number))
		}
		_, _ = all.Write(p.sum[:])
		parts = append(parts, p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(parts) != want.Count() || [32]byte(all.Sum(nil)) != want.Sum {
		return nil, berth.Errorf(berth.CodeInvalid, "object %s: the store has %d of %d parts, or parts of another "+
			"content than announced", key, len(parts), want.Count())
	}
	return parts, nil
}

// Uploads calls each for the unfinished uploads below a folder, also for this process's own transfers. A store without
// signed addresses has none. A login that may not list uploads sees none: the proof of parts fails there, so machines
// begin none.
func (s *Store) Uploads(ctx context.Context, folder string, each func(Upload) error) error {
	if s.signer == nil {
		return nil
	}
	return s.openUploads(ctx, folder, func(u openUpload) error {
		if checkKey(u.Key) != nil {
			return nil // of a key that Berth did not create
		}
		return each(u.Upload)
	})
}

// openUploads is Uploads for all keys. Errors of each are returned as they are, a refused one as well.
func (s *Store) openUploads(ctx context.Context, folder string, each func(openUpload) error) error {
	err := s.InParts().each(ctx, strings.TrimSuffix(folder, "/")+"/", each)
	if refused, ok := errors.AsType[listError](err); ok && notAllowed(refused.err) {
		return nil
	}
	return err
}

// AbortUpload removes an upload with its parts. An upload that the store does not know is no error. A part that is
// still on its way may arrive afterwards. The store then lists the upload again, and the next pass over the list
// aborts it again.
func (s *Store) AbortUpload(ctx context.Context, u Upload) error {
	if err := signable(s, u.Key); err != nil {
		return err
	}
	if err := s.signer.abort(ctx, u); berth.CodeOf(err) != berth.CodeNotFound {
		return err
	}
	return nil
}

// errEnough ends a listing early.
var errEnough = errors.New("enough")

// each lists the unfinished uploads of keys with a prefix.
func (s PartStore) each(ctx context.Context, prefix string, each func(openUpload) error) error {
	if err := s.signer.uploads(ctx, prefix, each); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// parts lists the parts of an upload after a number, in order.
func (s PartStore) parts(
	ctx context.Context, key, id string, after, page int, each func(storedPart) error,
) error {
	if err := signable(s.Store, key); err != nil {
		return err
	}
	if err := checkUpload(id); err != nil {
		return err
	}
	if err := s.signer.parts(ctx, Upload{key, id}, after, page, each); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// checkUpload refuses text that no store gives as the id of an upload.
func checkUpload(id string) error {
	if id == "" || len(id) > 1024 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return berth.Errorf(berth.CodeInvalid, "upload %.40q: allowed are the ids that the server returns", id)
	}
	return nil
}

// errNoUpload is the error for an upload that the store does not know.
func errNoUpload(key string) error {
	return berth.Errorf(berth.CodeNotFound, "object %s: the store has no such upload", key)
}

// errObjectExists is the error for an object that would replace another one.
func errObjectExists(key string) error {
	return berth.Errorf(berth.CodeConflict, "object %s exists", key)
}
