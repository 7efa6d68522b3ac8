package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"berth"
	"berth/spec"
)

const kindS3 = "s3-"

// s3Store is a bucket of a server that speaks S3.
type s3Store struct {
	client *s3.Client
	bucket string
}

// openS3 sets up b to read from a bucket. An endpoint of its own is addressed by path: most
// servers other than Amazon's have no host name for each bucket.
func (s *Sources) openS3(b *bucket, in spec.Input, login spec.Sensitive) error {
	name, key, err := spec.ParseS3(in.From)
	if err != nil {
		return refusedf("%v", err)
	}
	credentials, err := parseS3Login(in, login)
	if err != nil {
		return err
	}
	o := s3.Options{
		HTTPClient: bounded{s.objects}, Credentials: credentials, Region: in.Region,
		Retryer: aws.NopRetryer{}, DisableLogOutputChecksumValidationSkipped: true,
	}
	// Servers other than Amazon's accept any region; the signature must name one.
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if in.Endpoint != "" {
		o.BaseEndpoint, o.UsePathStyle = aws.String(strings.TrimRight(in.Endpoint, "/")), true
	}
	b.store, b.origin, b.prefix = &s3Store{s3.New(o), name}, fmt.Sprintf("s3 %q %q", in.Endpoint, name), key
	return nil
}

// one requests an object's metadata.
func (s *s3Store) one(ctx context.Context, key string) (object, error) {
	h, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: &key})
	if err != nil {
		return object{}, s.fault(key, err)
	}
	o := object{size: told64(h.ContentLength)}
	o.isS3(h.ETag, h.LastModified)
	return o, nil
}

// all pages through the list. watch limits each page on its own.
func (s *s3Store) all(ctx context.Context, prefix string, each func(object) error) error {
	pages := s3.NewListObjectsV2Paginator(s.client,
		&s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: &prefix, MaxKeys: aws.Int32(pageSize)})
	for none := empty(0); pages.HasMorePages(); {
		limited, _, end := watch(ctx)
		page, err := pages.NextPage(limited)
		end()
		if err != nil {
			return s.fault(prefix, err)
		}
		if err := none.page(s.url(prefix), len(page.Contents)); err != nil {
			return err
		}
		for _, c := range page.Contents {
			o := object{key: aws.ToString(c.Key), size: told64(c.Size)}
			o.isS3(c.ETag, c.LastModified)
			if err := each(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// told64 returns a size, or -1 for a size that the server does not report.
func told64(size *int64) int64 {
	if size == nil {
		return -1
	}
	return *size
}

// isS3 stores the server's version of an object: its ETag, or without one the time of
// its last write.
func (o *object) isS3(etag *string, at *time.Time) {
	o.pin = aws.ToString(etag)
	o.version = o.pin
	if o.version == "" {
		o.version = aws.ToTime(at).UTC().Format(time.RFC3339Nano)
	}
}

// open requests an object with the listed ETag as a condition. An object without an ETag is
// compared by its time and size after the answer.
func (s *s3Store) open(ctx context.Context, o object, from int64) (io.ReadCloser, error) {
	want := &s3.GetObjectInput{Bucket: &s.bucket, Key: &o.key}
	if o.pin != "" {
		want.IfMatch = &o.pin
	}
	if from > 0 {
		want.Range = aws.String(fmt.Sprintf("bytes=%d-", from))
	}
	got, err := s.client.GetObject(ctx, want)
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && r.HTTPStatusCode() == http.StatusNotFound {
		return nil, Changed{s.url(o.key)}
	}
	if err != nil {
		return nil, s.fault(o.key, err)
	}
	now := object{}
	now.isS3(got.ETag, got.LastModified)
	if now.version != o.version || got.ContentLength != nil && *got.ContentLength != o.size-from {
		_ = got.Body.Close()
		return nil, Changed{s.url(o.key)}
	}
	return got.Body, nil
}

// fault returns an error of the server, or of the connection, with the object's address.
func (s *s3Store) fault(key string, err error) error {
	what := s.url(key)
	code := ""
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		code = api.ErrorCode()
	}
	r, answered := errors.AsType[*smithyhttp.ResponseError](err)
	switch {
	case !answered || r.HTTPStatusCode() < 300: // nothing came, or it broke off
		return fault(what, err)
	case code == "RequestTimeTooSkewed": // the clock of this machine
		return berth.Errorf(berth.CodeUnavailable, "%s: %s", what, code)
	case r.HTTPStatusCode()/100 == 3:
		return refusedf("%s: %d (%.64s): the bucket is in another region than the input says", what,
			r.HTTPStatusCode(), code)
	default:
		return answer(what, r.HTTPStatusCode(), fmt.Sprintf("%.64s", code))
	}
}

// url returns the address of an object in the form that jobs use.
func (s *s3Store) url(key string) string { return "s3://" + s.bucket + "/" + key }

// parseS3Login reads a secret: KEY_ID:SECRET_KEY, or the lines of an AWS
// credentials file. Without one, only public objects can be read: the machine's own
// rights are never used.
func parseS3Login(in spec.Input, login spec.Sensitive) (aws.CredentialsProvider, error) {
	if in.Secret == "" {
		return nil, nil
	}
	c := aws.Credentials{Source: "secret"}
	text := strings.TrimSpace(string(login))
	if !strings.Contains(text, "aws_access_key_id") {
		c.AccessKeyID, c.SecretAccessKey, _ = strings.Cut(text, ":")
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, "=")
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "aws_access_key_id":
			c.AccessKeyID = value
		case "aws_secret_access_key":
			c.SecretAccessKey = value
		case "aws_session_token":
			c.SessionToken = value
		}
	}
	if c.AccessKeyID == "" || c.SecretAccessKey == "" {
		return nil, refusedf("secret %s is written neither KEY_ID:SECRET_KEY nor as an AWS credentials file", in.Secret)
	}
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return c, nil }), nil
}
