package blob

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

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

// signer signs requests to a bucket of S3 for processes that have no login there.
type signer struct {
	client *s3.Client
	bucket string
	sse    s3blob.Options // encryption that each write must ask for
}

// presign returns a client whose addresses are valid for life. Headers stay headers: stores differ in which of them
// they accept as parameters of the address, and a condition that a store ignores protects nothing.
func (s *signer) presign(life time.Duration) *s3.PresignClient {
	return s3.NewPresignClient(s.client, s3.WithPresignExpires(life), func(o *s3.PresignOptions) {
		o.Presigner = v4.NewSigner(func(o *v4.SignerOptions) {
			o.DisableHeaderHoisting, o.DisableURIPathEscaping = true, true
		})
	})
}

// NewS3 returns the store in a bucket of S3, as the client reaches it. Writes ask for the encryption of the options.
func NewS3(ctx context.Context, client *s3.Client, bucket string, o s3blob.Options) (*Store, error) {
	opened, err := s3blob.OpenBucket(ctx, client, bucket, &o)
	if err != nil {
		return nil, err
	}
	return newS3(opened, bucket, o), nil
}

// newS3 adds a signer to an open bucket of S3. A client without a login signs nothing.
func newS3(opened *blob.Bucket, bucket string, o s3blob.Options) *Store {
	s := &Store{bucket: opened}
	var client *s3.Client
	if opened.As(&client) && client.Options().Credentials != nil { // nil: anonymous=true
		s.signer = &signer{client: client, bucket: bucket, sse: o}
	}
	return s
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
	if err := s.signable(key); err != nil {
		return SignedAddress{}, err
	}
	if size < 1 || size > MaxSigned {
		return SignedAddress{}, berth.Errorf(berth.CodeInvalid, "object %s of %d bytes: allowed are 1 to %d", key, size,
			int64(MaxSigned))
	}
	in := &s3.PutObjectInput{
		Bucket: &s.signer.bucket, Key: &key, ContentLength: &size, IfNoneMatch: aws.String("*"),
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	}
	if kind := s.signer.sse.EncryptionType; kind != "" {
		in.ServerSideEncryption = kind
	}
	if id := s.signer.sse.KMSEncryptionID; id != "" {
		in.SSEKMSKeyId = &id
	}
	until := time.Now().Add(life)
	r, err := s.signer.presign(life).PresignPutObject(ctx, in)
	return signed(r, until, err, key)
}

// SignGet returns an address that reads one object, for life.
func (s *Store) SignGet(ctx context.Context, key string, life time.Duration) (SignedAddress, error) {
	if err := s.signable(key); err != nil {
		return SignedAddress{}, err
	}
	until := time.Now().Add(life)
	r, err := s.signer.presign(life).PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &s.signer.bucket, Key: &key})
	return signed(r, until, err, key)
}

// signable returns an error for a store that cannot sign, and for a key that is not allowed.
func (s *Store) signable(key string) error {
	if s.signer == nil {
		return errNoSigner
	}
	return checkKey(key)
}

// signed returns the result of a presigner without the headers that every client sets by itself.
func signed(r *v4.PresignedHTTPRequest, until time.Time, err error, key string) (SignedAddress, error) {
	if err != nil {
		return SignedAddress{}, fmt.Errorf("sign an address of object %s: %w", key, err)
	}
	h := r.SignedHeader.Clone()
	h.Del("Host")
	h.Del("Content-Length")
	return SignedAddress{URL: spec.Sensitive(r.URL), Header: h, Until: until}, nil
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
	if err := s.signable(key); err != nil {
		return info, err
	}
	o, err := s.signer.client.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &s.signer.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		if _, missing := errors.AsType[*types.NotFound](err); missing {
			return info, berth.Errorf(berth.CodeNotFound, "no such object %s", key)
		}
		return info, fmt.Errorf("object %s: %w", key, err)
	}
	info.Bytes = aws.ToInt64(o.ContentLength)
	// The checksum of an object in parts has a suffix with their number.
	text, parts, composite := strings.Cut(aws.ToString(o.ChecksumSHA256), "-")
	if sum, ok := decodeSum(text); ok {
		info.SHA256 = &sum
	}
	if composite {
		if info.Parts, err = strconv.Atoi(parts); err != nil || info.Parts < 1 {
			return ObjectInfo{Bytes: info.Bytes}, nil // of a form that no store documents
		}
	}
	return info, nil
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
