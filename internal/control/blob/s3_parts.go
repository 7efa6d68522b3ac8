package blob

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"berth"
)

// begin creates a multipart upload whose parts have a SHA-256 each.
func (s *s3Signer) begin(ctx context.Context, key string) (id string, err error) {
	in := &s3.CreateMultipartUploadInput{
		Bucket: &s.bucket, Key: &key, ContentType: aws.String("application/octet-stream"),
		ChecksumAlgorithm: types.ChecksumAlgorithmSha256, ChecksumType: types.ChecksumTypeComposite,
	}
	// The encryption of an object is set when its upload begins; the parts inherit it.
	if kind := s.sse.EncryptionType; kind != "" {
		in.ServerSideEncryption = kind
	}
	if id := s.sse.KMSEncryptionID; id != "" {
		in.SSEKMSKeyId = &id
	}
	out, err := s.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return "", uploadError(err, key)
	}
	return aws.ToString(out.UploadId), nil
}

// uploads lists the multipart uploads of keys with a prefix, sorted by key.
func (s *s3Signer) uploads(ctx context.Context, prefix string, each func(openUpload) error) error {
	in := &s3.ListMultipartUploadsInput{Bucket: &s.bucket, Prefix: &prefix}
	for {
		out, err := s.client.ListMultipartUploads(ctx, in)
		if err != nil {
			return listError{prefix, err}
		}
		for _, u := range out.Uploads {
			if err := each(openUpload{
				Upload: Upload{Key: aws.ToString(u.Key), ID: aws.ToString(u.UploadId)}, begun: aws.ToTime(u.Initiated),
				own: u.ChecksumAlgorithm != types.ChecksumAlgorithmSha256,
			}); err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}

// signPart returns the address of a PUT of one part.
func (s *s3Signer) signPart(
	ctx context.Context, u Upload, number int, size int64, sum [32]byte, life time.Duration,
) (SignedAddress, error) {
	until := time.Now().Add(life)
	r, err := s.presign(life).PresignUploadPart(ctx, &s3.UploadPartInput{
		Bucket: &s.bucket, Key: &u.Key, UploadId: &u.ID, PartNumber: aws.Int32(int32(number)), ContentLength: &size,
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	})
	return signedS3(r, until, err, u.Key)
}

// renumber names another part in a signed address of one.
func (s *s3Signer) renumber(address *url.URL, number int) {
	q := address.Query()
	q.Set("partNumber", strconv.Itoa(number))
	address.RawQuery = q.Encode()
}

// parts lists the parts of an upload after a number, in order.
func (s *s3Signer) parts(ctx context.Context, u Upload, after, page int, each func(storedPart) error) error {
	in := &s3.ListPartsInput{Bucket: &s.bucket, Key: &u.Key, UploadId: &u.ID,
		PartNumberMarker: aws.String(strconv.Itoa(after)), MaxParts: aws.Int32(int32(page))}
	for {
		out, err := s.client.ListParts(ctx, in)
		if err != nil {
			return uploadError(err, u.Key)
		}
		for _, p := range out.Parts {
			part := storedPart{number: int(aws.ToInt32(p.PartNumber)), bytes: aws.ToInt64(p.Size),
				version: aws.ToString(p.ETag)}
			// Without a checksum, sum stays nil and the part counts as unproven.
			if sum, ok := decodeSum(aws.ToString(p.ChecksumSHA256)); ok {
				part.sum = &sum
			}
			if err := each(part); err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			return nil
		}
		in.PartNumberMarker = out.NextPartNumberMarker
	}
}

// complete names the checksum of each part, so the bucket refuses another part that is stored meanwhile.
func (s *s3Signer) complete(ctx context.Context, u Upload, parts []storedPart, _ Parts) error {
	list := make([]types.CompletedPart, len(parts))
	for i, p := range parts {
		list[i] = types.CompletedPart{ETag: &p.version, PartNumber: aws.Int32(int32(p.number)),
			ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(p.sum[:]))}
	}
	// If-None-Match makes the bucket refuse a key that exists: an object is never overwritten.
	_, err := s.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &s.bucket, Key: &u.Key, UploadId: &u.ID, IfNoneMatch: aws.String("*"),
		ChecksumType: types.ChecksumTypeComposite, MultipartUpload: &types.CompletedMultipartUpload{Parts: list},
	})
	return uploadError(err, u.Key)
}

// abort removes a multipart upload.
func (s *s3Signer) abort(ctx context.Context, u Upload) error {
	_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &s.bucket, Key: &u.Key, UploadId: &u.ID,
	})
	return uploadError(err, u.Key)
}

// listError is the error of a request for a list of uploads.
type listError struct {
	prefix string
	err    error
}

// Error returns the prefix and the fault of the store.
func (e listError) Error() string { return fmt.Sprintf("uploads below %s: %v", e.prefix, e.err) }

// Unwrap returns the fault of the store.
func (e listError) Unwrap() error { return e.err }

// notAllowed reports whether a store refused a request because of the login, or does not know the request.
func notAllowed(err error) bool {
	fault, ok := errors.AsType[smithy.APIError](err)
	return ok && slices.Contains([]string{"AccessDenied", "NotImplemented", "MethodNotAllowed"}, fault.ErrorCode())
}

// uploadError turns an error of the store about an upload into one of Berth.
func uploadError(err error, key string) error {
	if err == nil {
		return nil
	}
	fault, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return fmt.Errorf("object %s in parts: %w", key, err)
	}
	switch code := fault.ErrorCode(); {
	case code == "NoSuchUpload":
		return errNoUpload(key)
	case code == "PreconditionFailed":
		return errObjectExists(key)
	// The upload no longer has the parts that were listed.
	case slices.Contains([]string{"InvalidPart", "InvalidPartOrder", "BadDigest"}, code):
		return berth.Errorf(berth.CodeInvalid, "object %s: a part was replaced meanwhile (%s)", key, code)
	}
	return fmt.Errorf("object %s in parts: %w", key, err)
}
