package blob

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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

// openS3 opens a bucket of S3. The opener leaves the encryption that the URL asks for in its options.
func openS3(ctx context.Context, u *url.URL) (*Store, error) {
	var opener s3blob.URLOpener
	bucket, err := opener.OpenBucketURL(ctx, u)
	if err != nil {
		return nil, err
	}
	return newS3(bucket, u.Host, opener.Options), nil
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
	s := &Store{location: location{bucket: opened}}
	var client *s3.Client
	if opened.As(&client) && client.Options().Credentials != nil { // nil: anonymous=true
		s.signer = &s3Signer{client: client, bucket: bucket, sse: o}
	}
	return s
}

// s3Signer signs requests to a bucket of S3 for processes that have no login there.
type s3Signer struct {
	client *s3.Client
	bucket string
	sse    s3blob.Options // encryption that each write must ask for
}

// presign returns a client whose addresses are valid for life. Headers stay headers: stores differ in which of them
// they accept as parameters of the address, and a condition that a store ignores protects nothing.
func (s *s3Signer) presign(life time.Duration) *s3.PresignClient {
	return s3.NewPresignClient(s.client, s3.WithPresignExpires(life), func(o *s3.PresignOptions) {
		o.Presigner = v4.NewSigner(func(o *v4.SignerOptions) {
			o.DisableHeaderHoisting, o.DisableURIPathEscaping = true, true
		})
	})
}

// signPut returns the address of a PUT whose conditions are signed headers.
func (s *s3Signer) signPut(
	ctx context.Context, key string, size int64, sum [32]byte, life time.Duration,
) (SignedAddress, error) {
	in := &s3.PutObjectInput{
		Bucket: &s.bucket, Key: &key, ContentLength: &size, IfNoneMatch: aws.String("*"),
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	}
	if kind := s.sse.EncryptionType; kind != "" {
		in.ServerSideEncryption = kind
	}
	if id := s.sse.KMSEncryptionID; id != "" {
		in.SSEKMSKeyId = &id
	}
	until := time.Now().Add(life)
	r, err := s.presign(life).PresignPutObject(ctx, in)
	return signedS3(r, until, err, key)
}

// signGet returns the address of a GET.
func (s *s3Signer) signGet(ctx context.Context, key string, life time.Duration) (SignedAddress, error) {
	until := time.Now().Add(life)
	r, err := s.presign(life).PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	return signedS3(r, until, err, key)
}

// record sets the checksum of a request.
func (s *s3Signer) record(signed http.Header, sum [32]byte) {
	signed.Set("X-Amz-Checksum-Sha256", base64.StdEncoding.EncodeToString(sum[:]))
}

// signedS3 returns the result of a presigner without the headers that every client sets by itself.
func signedS3(r *v4.PresignedHTTPRequest, until time.Time, err error, key string) (SignedAddress, error) {
	if err != nil {
		return SignedAddress{}, SigningError{key, err}
	}
	h := r.SignedHeader.Clone()
	h.Del("Host")
	h.Del("Content-Length")
	return SignedAddress{URL: spec.Sensitive(r.URL), Header: h, Until: until}, nil
}

// info reads the checksum that the bucket has computed when the object was created.
func (s *s3Signer) info(ctx context.Context, key string) (info ObjectInfo, err error) {
	o, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &s.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled,
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

// decodeSum reads a SHA-256 as S3 writes it.
func decodeSum(text string) (sum [32]byte, ok bool) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != len(sum) {
		return sum, false
	}
	return [32]byte(b), true
}
