package blob

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"berth"
)

// This file stores large objects by parts, each by a signed address of its own
// (docs/adr/0092-large-objects-go-by-parts.md). An upload of parts is kept by the store alone: its list of uploads
// names them after a crash of every process of Berth.

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

// PartStore stores large objects by parts in a store with signed addresses.
type PartStore struct{ *Store }

// InParts returns the store for objects in parts.
func (s *Store) InParts() PartStore { return PartStore{s} }

// Begin returns the id of an unfinished upload of an object, the newest one, and creates one if there is none.
func (s PartStore) Begin(ctx context.Context, key string) (id string, resumed bool, err error) {
	if err := s.signable(key); err != nil {
		return "", false, err
	}
	var newest time.Time
	err = s.each(ctx, key, func(u types.MultipartUpload) error {
		if at := aws.ToTime(u.Initiated); aws.ToString(u.Key) == key && (id == "" || at.After(newest)) &&
			u.ChecksumAlgorithm == types.ChecksumAlgorithmSha256 {
			id, newest = aws.ToString(u.UploadId), at
		}
		return nil
	})
	if err != nil || id != "" {
		return id, id != "", err
	}
	in := &s3.CreateMultipartUploadInput{
		Bucket: &s.signer.bucket, Key: &key, ContentType: aws.String("application/octet-stream"),
		ChecksumAlgorithm: types.ChecksumAlgorithmSha256, ChecksumType: types.ChecksumTypeComposite,
	}
	if kind := s.signer.sse.EncryptionType; kind != "" {
		in.ServerSideEncryption = kind
	}
	if id := s.signer.sse.KMSEncryptionID; id != "" {
		in.SSEKMSKeyId = &id
	}
	out, err := s.signer.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return "", false, uploadError(err, key)
	}
	return aws.ToString(out.UploadId), false, nil
}

// Of calls each for the unfinished uploads of one object that were begun for signed parts. Other transfers, as of Put,
// are left out. It reads the list up to the first upload of another key: the store sorts by key.
func (s PartStore) Of(ctx context.Context, key string, each func(Upload) error) error {
	return s.each(ctx, key, func(u types.MultipartUpload) error {
		switch {
		case aws.ToString(u.Key) != key:
			return errEnough
		case u.ChecksumAlgorithm != types.ChecksumAlgorithmSha256:
			return nil
		}
		return each(Upload{Key: key, ID: aws.ToString(u.UploadId)})
	})
}

// Sign returns an address that stores one part of an upload, for life: this key and number, of exactly these
// bytes. A second use stores the same bytes again. The store refuses it once the upload is completed or aborted.
func (s PartStore) Sign(
	ctx context.Context, key, id string, number int, size int64, sum [32]byte, life time.Duration,
) (SignedAddress, error) {
	if err := s.signable(key); err != nil {
		return SignedAddress{}, err
	}
	if err := checkUpload(id); err != nil {
		return SignedAddress{}, err
	}
	if number < 1 || number > maxParts || size < 1 || size > MaxSigned {
		return SignedAddress{}, berth.Errorf(berth.CodeInvalid, "part %d of %d bytes: allowed are parts 1 to %d of 1 "+
			"to %d bytes", number, size, maxParts, int64(MaxSigned))
	}
	until := time.Now().Add(life)
	r, err := s.signer.presign(life).PresignUploadPart(ctx, &s3.UploadPartInput{
		Bucket: &s.signer.bucket, Key: &key, UploadId: &id, PartNumber: aws.Int32(int32(number)), ContentLength: &size,
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	})
	return signed(r, until, err, key)
}

// Has reports whether an upload has a part of this length and, by the store's own checksum, of this content.
func (s PartStore) Has(
	ctx context.Context, key, id string, number int, size int64, sum [32]byte,
) (bool, error) {
	has := false
	err := s.parts(ctx, key, id, number-1, 1, func(p types.Part) error {
		got, ok := decodeSum(aws.ToString(p.ChecksumSHA256))
		has = int(aws.ToInt32(p.PartNumber)) == number && aws.ToInt64(p.Size) == size && ok && got == sum
		return errEnough
	})
	return has, err
}

// Complete creates the object of an upload from its parts. The parts must be in the store with their
// lengths and with checksums whose sum is the announced one; the error for others has the code invalid. An object
// that exists stays as it is, and the error has the code conflict. For an upload that the store does not know, since
// it is completed or aborted, the code is not_found.
func (s PartStore) Complete(ctx context.Context, key, id string, want Parts) error {
	if err := want.Check(); err != nil {
		return err
	}
	var parts []types.CompletedPart
	all := sha256.New()
	err := s.parts(ctx, key, id, 0, 1000, func(p types.Part) error {
		number := len(parts) + 1
		if number > want.Count() {
			return errEnough // a part beyond the end is no part of the object
		}
		sum, ok := decodeSum(aws.ToString(p.ChecksumSHA256))
		if int(aws.ToInt32(p.PartNumber)) != number || aws.ToInt64(p.Size) != want.Length(number) || !ok {
			return berth.Errorf(berth.CodeInvalid, "object %s: the store has part %d of %d bytes, and part %d of %d "+
				"bytes with a SHA-256 is next", key, aws.ToInt32(p.PartNumber), aws.ToInt64(p.Size), number,
				want.Length(number))
		}
		_, _ = all.Write(sum[:])
		parts = append(parts, types.CompletedPart{ETag: p.ETag, ChecksumSHA256: p.ChecksumSHA256,
			PartNumber: p.PartNumber})
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(parts) != want.Count() || [32]byte(all.Sum(nil)) != want.Sum:
		return berth.Errorf(berth.CodeInvalid, "object %s: the store has %d of %d parts, or parts of another content "+
			"than announced", key, len(parts), want.Count())
	}
	// The checksums bind the object to the listed parts: another part that is stored meanwhile is refused.
	_, err = s.signer.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &s.signer.bucket, Key: &key, UploadId: &id, IfNoneMatch: aws.String("*"),
		ChecksumType: types.ChecksumTypeComposite, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return uploadError(err, key)
}

// Upload is an unfinished upload of parts.
type Upload struct{ Key, ID string }

// Uploads calls each for the unfinished uploads below a folder, also for this process's own transfers. A store without
// signed addresses has none. A login that may not list uploads sees none: the proof of parts fails there, so machines
// begin none.
func (s *Store) Uploads(ctx context.Context, folder string, each func(Upload) error) error {
	if s.signer == nil {
		return nil
	}
	return s.uploads(ctx, folder, func(u types.MultipartUpload) error {
		if checkKey(aws.ToString(u.Key)) != nil {
			return nil // of a key that Berth did not create
		}
		return each(Upload{Key: aws.ToString(u.Key), ID: aws.ToString(u.UploadId)})
	})
}

// uploads is Uploads for all keys. Errors of each are returned as they are, a refused one as well.
func (s *Store) uploads(ctx context.Context, folder string, each func(types.MultipartUpload) error) error {
	err := s.InParts().each(ctx, strings.TrimSuffix(folder, "/")+"/", each)
	if refused, ok := errors.AsType[listError](err); ok && notAllowed(refused.err) {
		return nil
	}
	return err
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

// AbortUpload removes an upload with its parts. An upload that the store does not know is no error. A part that is
// still on its way may arrive afterwards. S3 then lists the upload again, and the next pass over the list aborts it
// again.
func (s *Store) AbortUpload(ctx context.Context, u Upload) error {
	if err := s.signable(u.Key); err != nil {
		return err
	}
	_, err := s.signer.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &s.signer.bucket, Key: &u.Key, UploadId: &u.ID,
	})
	if err = uploadError(err, u.Key); berth.CodeOf(err) == berth.CodeNotFound {
		return nil
	}
	return err
}

// errEnough ends a listing early.
var errEnough = errors.New("enough")

// each lists the unfinished uploads of keys with a prefix.
func (s PartStore) each(ctx context.Context, prefix string, each func(types.MultipartUpload) error) error {
	in := &s3.ListMultipartUploadsInput{Bucket: &s.signer.bucket, Prefix: &prefix}
	for {
		out, err := s.signer.client.ListMultipartUploads(ctx, in)
		if err != nil {
			return listError{prefix, err}
		}
		for _, u := range out.Uploads {
			if err := each(u); errors.Is(err, errEnough) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}

// parts lists the parts of an upload after a number, in order.
func (s PartStore) parts(
	ctx context.Context, key, id string, after, page int, each func(types.Part) error,
) error {
	if err := s.signable(key); err != nil {
		return err
	}
	if err := checkUpload(id); err != nil {
		return err
	}
	in := &s3.ListPartsInput{Bucket: &s.signer.bucket, Key: &key, UploadId: &id,
		PartNumberMarker: aws.String(strconv.Itoa(after)), MaxParts: aws.Int32(int32(page))}
	for {
		out, err := s.signer.client.ListParts(ctx, in)
		if err != nil {
			return uploadError(err, key)
		}
		for _, p := range out.Parts {
			if err := each(p); errors.Is(err, errEnough) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			return nil
		}
		in.PartNumberMarker = out.NextPartNumberMarker
	}
}

// checkUpload refuses text that no store gives as the id of an upload.
func checkUpload(id string) error {
	if id == "" || len(id) > 1024 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return berth.Errorf(berth.CodeInvalid, "upload %.40q: allowed are the ids that the server returns", id)
	}
	return nil
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
		return berth.Errorf(berth.CodeNotFound, "object %s: the store has no such upload", key)
	case code == "PreconditionFailed":
		return berth.Errorf(berth.CodeConflict, "object %s exists", key)
	case slices.Contains([]string{"InvalidPart", "InvalidPartOrder", "BadDigest"}, code):
		return berth.Errorf(berth.CodeInvalid, "object %s: a part was replaced meanwhile (%s)", key, code)
	}
	return fmt.Errorf("object %s in parts: %w", key, err)
}

// decodeSum reads a SHA-256 as S3 writes it.
func decodeSum(text string) (sum [32]byte, ok bool) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != len(sum) {
		return sum, false
	}
	return [32]byte(b), true
}
