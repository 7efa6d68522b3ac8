package blob

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"gocloud.dev/blob"

	"berth"
	"berth/spec"
)

// AddressLife is how long a signed address is valid: long enough for a request that is sent at once, with clocks
// that differ by minutes. A request that has begun in time may last longer.
const AddressLife = 5 * time.Minute

// MaxSigned is the greatest length of an object that one signed request may create, in bytes: the limit of S3 for a
// request without parts.
const MaxSigned = 5 << 30

// SignedAddress is one request to the store that anyone may send who knows it. It is a secret. The request is refused
// without the headers.
type SignedAddress struct {
	URL    spec.Sensitive
	Header http.Header
	Until  time.Time // the request must begin before
}

// SigningError is the error of a signature that could not be made, for example with credentials that may not sign. The
// store may answer all other requests.
type SigningError struct {
	object string
	err    error
}

// Error returns the object and the fault.
func (e SigningError) Error() string {
	return fmt.Sprintf("sign an address of object %s: %v", e.object, e.err)
}

// Unwrap returns the fault.
func (e SigningError) Unwrap() error { return e.err }

// signer is the protocol of a bucket that machines reach themselves: signed addresses, and uploads of parts. Keys and
// lengths are checked by the callers.
type signer interface {
	signPut(ctx context.Context, key string, size int64, sum [32]byte, life time.Duration) (SignedAddress, error)
	signGet(ctx context.Context, key string, life time.Duration) (SignedAddress, error)
	info(ctx context.Context, key string) (ObjectInfo, error)
	record(signed http.Header, sum [32]byte) // changes the sum that info shall return, for proofs
	uploader
}

// Signs reports whether the store can be used by signed addresses.
func (s *Store) Signs() bool { return s.signer != nil }

// errNoSigner is the answer of a store that only this process reaches.
var errNoSigner = berth.Errorf(berth.CodeUnavailable, "this blob store has no signed addresses")

// SignPut returns an address that creates one object, for life: this key, of exactly these bytes. The store refuses
// another length or content, and any request once the key exists.
func (s *Store) SignPut(
	ctx context.Context, key string, size int64, sum [32]byte, life time.Duration,
) (SignedAddress, error) {
	if err := signable(s, key); err != nil {
		return SignedAddress{}, err
	}
	if size < 1 || size > MaxSigned {
		return SignedAddress{}, berth.Errorf(berth.CodeInvalid, "object %s of %d bytes: allowed are 1 to %d", key, size,
			int64(MaxSigned))
	}
	return s.signer.signPut(ctx, key, size, sum, life)
}

// SignGet returns an address that reads one object, for life.
func (s *Store) SignGet(ctx context.Context, key string, life time.Duration) (SignedAddress, error) {
	if err := signable(s, key); err != nil {
		return SignedAddress{}, err
	}
	return s.signer.signGet(ctx, key, life)
}

// signable returns an error for a store that cannot sign, and for a key that is not allowed.
func signable(s *Store, key string) error {
	if s.signer == nil {
		return errNoSigner
	}
	return checkKey(key)
}

// ObjectInfo is the store's description of an object.
type ObjectInfo struct {
	Bytes  int64
	SHA256 *[32]byte // as the store has computed it when the object was created; nil: it has not
	Parts  int       // 0: SHA256 is of the content; else it is of the concatenated SHA-256 of so many parts
}

// Is reports whether the object has this length and, by the store's own checksum, this content. Without a checksum
// of the store, and for an object in parts, the answer is false.
func (o ObjectInfo) Is(bytes int64, sum [32]byte) bool {
	return o.Bytes == bytes && o.Parts == 0 && o.SHA256 != nil && *o.SHA256 == sum
}

// Consists reports whether the object has these parts, by the store's own checksum.
func (o ObjectInfo) Consists(of Parts) bool {
	return o.Bytes == of.Bytes && o.Parts == of.Count() && o.SHA256 != nil && *o.SHA256 == of.Sum
}

// Info describes the object at key, of a store with signed addresses. A missing object is an error of code not_found.
func (s *Store) Info(ctx context.Context, key string) (info ObjectInfo, err error) {
	if err := signable(s, key); err != nil {
		return info, err
	}
	return s.signer.info(ctx, key)
}

// Holds reports whether the store has an object of this length at key. Where the store has computed a SHA-256 of the
// object, it must be this one.
func (s *Store) Holds(ctx context.Context, key string, bytes int64, sum [32]byte) (bool, error) {
	if s.signer == nil {
		if err := s.usable(key); err != nil {
			return false, err
		}
		o, err := s.bucket.Attributes(ctx, key)
		if missing(err) {
			return false, nil
		}
		return err == nil && o.Size == bytes, mapError(err, "object "+key)
	}
	o, err := s.Info(ctx, key)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return false, nil
	}
	return err == nil && o.Bytes == bytes && (o.SHA256 == nil || o.Parts > 0 || *o.SHA256 == sum), err
}

// errTooMany refuses a folder with more objects than a comparison reads.
func errTooMany(key string, most int) error {
	return berth.Errorf(berth.CodeInvalid, "folder %s has more than the allowed %d objects", key, most)
}

// Sizes returns the lengths of the objects directly in the folder key, by name. A folder with more than most objects
// is an error of code invalid.
func (s *Store) Sizes(ctx context.Context, key string, most int) (map[string]int64, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	prefix := strings.TrimSuffix(key, "/") + "/"
	for all := s.bucket.List(&blob.ListOptions{Prefix: prefix, Delimiter: "/"}); ; {
		o, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			return sizes, nil
		}
		if err != nil {
			return nil, mapError(err, "objects in "+key)
		}
		if !o.IsDir {
			if len(sizes) >= most {
				return nil, errTooMany(key, most)
			}
			sizes[strings.TrimPrefix(o.Key, prefix)] = o.Size
		}
	}
}

// ParseSHA256 reads a SHA-256 of 64 hexadecimal digits in lower case.
func ParseSHA256(text string) (sum [32]byte, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(sum) || hex.EncodeToString(b) != text {
		return sum, berth.Errorf(berth.CodeInvalid, "sha256 %.70q: write 64 hexadecimal digits in lower case", text)
	}
	return [32]byte(b), nil
}
