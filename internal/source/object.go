package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"golang.org/x/sync/errgroup"

	"berth"
	"berth/internal/archive"
)

const kindObjects = "s3-"

// abreast is how many objects of one input are read at a time.
const abreast = 8

// bucket is where the objects of one input lie.
type bucket struct {
	client       *s3.Client
	limits       archive.Limits
	name, prefix string
	server       string // "": Amazon's
}

// object is one that is to be read.
type object struct {
	key, name string // name is where it goes, below the input's folder
	size      int64
	version   string // its ETag, or when it was written, where there is none
	etag      string
}

// findObjects lists what is to be read.
func (s *Sources) findObjects(ctx context.Context, in berth.Input, login berth.Sensitive) (*Found, error) {
	name, key, err := berth.ParseS3(in.From)
	if err != nil {
		return nil, refusedf("%v", err)
	}
	credentials, err := parseLogin(in, login)
	if err != nil {
		return nil, err
	}
	o := s3.Options{
		HTTPClient: s.objects, Credentials: credentials, Region: in.Region,
		Retryer: aws.NopRetryer{}, DisableLogOutputChecksumValidationSkipped: true,
	}
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if in.Endpoint != "" {
		o.BaseEndpoint, o.UsePathStyle = aws.String(strings.TrimRight(in.Endpoint, "/")), true
	}
	b := &bucket{client: s3.New(o), limits: s.limits, name: name, prefix: key, server: in.Endpoint}
	var list []object
	var folders []string
	if key == "" || strings.HasSuffix(key, "/") {
		list, folders, err = b.list(ctx)
	} else {
		list, err = b.head(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &Found{Kind: kindObjects, Address: b.address(list, folders), fetch: func(ctx context.Context, to *os.Root, again Again) (archive.Summary, error) {
		return b.fetch(ctx, to, again, list, folders)
	}}, nil
}

// head finds the one object.
func (b *bucket) head(ctx context.Context) ([]object, error) {
	ctx, _, end := watch(ctx)
	defer end()
	h, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &b.prefix})
	if err != nil {
		err = b.fault(b.prefix, err)
		if _, refused := errors.AsType[Refused](err); refused {
			return nil, refusedf("%v; for all objects below a prefix, write a / at its end", err)
		}
		return nil, err
	}
	o := object{key: b.prefix, name: FileName, size: aws.ToInt64(h.ContentLength)}
	o.is(h.ETag, h.LastModified)
	if o.size > b.limits.Bytes {
		return nil, b.tooMuch(1, o.size)
	}
	return []object{o}, nil
}

// list finds all objects below the prefix. A key that ends in / is a folder, as
// some tools make them.
func (b *bucket) list(ctx context.Context) (list []object, folders []string, err error) {
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &b.prefix})
	var entries []archive.Entry
	total := int64(0)
	for pages.HasMorePages() {
		limited, _, end := watch(ctx)
		page, err := pages.NextPage(limited)
		end()
		if err != nil {
			return nil, nil, b.fault(b.prefix, err)
		}
		for _, c := range page.Contents {
			key, size := aws.ToString(c.Key), aws.ToInt64(c.Size)
			name, below := strings.CutPrefix(key, b.prefix)
			switch {
			case !below || size < 0:
				return nil, nil, refusedf("%s: the server lists %q of %d bytes, which lies elsewhere or is none", b.url(b.prefix), key, size)
			case strings.HasSuffix(key, "/") && size > 0:
				return nil, nil, refusedf("%s has content, and the name of a folder", b.url(key))
			case name == "": // the folder itself
				continue
			case strings.HasSuffix(name, "/"):
				folders = append(folders, strings.TrimSuffix(name, "/"))
				entries = append(entries, archive.Entry{Name: strings.TrimSuffix(name, "/"), Kind: archive.Folder})
				continue
			}
			o := object{key: key, name: name, size: size}
			o.is(c.ETag, c.LastModified)
			list = append(list, o)
			entries = append(entries, archive.Entry{Name: name, Kind: archive.File, Size: size})
			if total += size; total > b.limits.Bytes || len(entries) > b.limits.Files {
				return nil, nil, b.tooMuch(len(entries), total)
			}
		}
	}
	if len(list) == 0 {
		return nil, nil, refusedf("%s: nothing lies there", b.url(b.prefix))
	}
	if err := archive.Judge(entries, b.limits); err != nil {
		return nil, nil, refusedf("%s: %s", b.url(b.prefix), strings.TrimPrefix(err.Error(), "archive: "))
	}
	return list, folders, nil
}

func (b *bucket) tooMuch(files int, bytes int64) error {
	return refusedf("%s has at least %d objects of %s: at most %d of %s", b.url(b.prefix), files, berth.BytesText(bytes), b.limits.Files, berth.BytesText(b.limits.Bytes))
}

// is takes what the server says of an object's version.
func (o *object) is(etag *string, at *time.Time) {
	o.etag = aws.ToString(etag)
	o.version = o.etag
	if o.version == "" {
		o.version = aws.ToTime(at).UTC().Format(time.RFC3339Nano)
	}
}

// address is the hash of the list.
func (b *bucket) address(list []object, folders []string) berth.Address {
	var text strings.Builder
	fmt.Fprintf(&text, "s3 %q %q %q\n", b.server, b.name, b.prefix)
	for _, o := range list {
		fmt.Fprintf(&text, "%q %d %q\n", o.key, o.size, o.version)
	}
	for _, f := range folders {
		fmt.Fprintf(&text, "%q/\n", f)
	}
	return hashOf(text.String())
}

func (b *bucket) fetch(ctx context.Context, to *os.Root, again Again, list []object, folders []string) (sum archive.Summary, err error) {
	made := map[string]bool{".": true}
	folder := func(name string) error {
		for at := name; !made[at]; at = path.Dir(at) {
			made[at] = true
			sum.Files++
		}
		if err := to.MkdirAll(name, 0o755); err != nil {
			return Local{err}
		}
		return nil
	}
	for _, name := range folders {
		if err := folder(name); err != nil {
			return sum, err
		}
	}
	for _, o := range list {
		if err := folder(path.Dir(o.name)); err != nil {
			return sum, err
		}
		sum.Files++
		sum.Bytes += o.size
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(abreast)
	for _, o := range list {
		if ctx.Err() != nil {
			break
		}
		work.Go(func() error {
			return into(to, o.name, func(f *os.File) error { return b.object(ctx, o, f, again) })
		})
	}
	return sum, work.Wait()
}

// object reads one object. A line that breaks goes on where it broke.
func (b *bucket) object(ctx context.Context, o object, to *os.File, again Again) error {
	have := int64(0)
	return again(ctx, func() error {
		if have == o.size {
			return nil
		}
		n, err := b.read(ctx, o, have, io.NewOffsetWriter(to, have))
		have += n
		return err
	})
}

func (b *bucket) read(ctx context.Context, o object, from int64, to io.Writer) (int64, error) {
	ctx, lively, end := watch(ctx)
	defer end()
	want := &s3.GetObjectInput{Bucket: &b.name, Key: &o.key}
	if o.etag != "" {
		want.IfMatch = &o.etag
	}
	if from > 0 {
		want.Range = aws.String(fmt.Sprintf("bytes=%d-", from))
	}
	got, err := b.client.GetObject(ctx, want)
	if err != nil {
		return 0, b.fault(o.key, err)
	}
	defer got.Body.Close()
	now := object{}
	now.is(got.ETag, got.LastModified)
	if now.etag != o.etag || o.etag == "" && now.version != o.version || got.ContentLength != nil && *got.ContentLength != o.size-from {
		return 0, Changed{b.url(o.key)}
	}
	n, err := copied(ctx, to, io.LimitReader(lively(got.Body), o.size-from))
	switch {
	case err == nil && n < o.size-from:
		err = io.ErrUnexpectedEOF
	case err == nil && from == 0: // at the end a checksum is looked at
		if _, err = copied(ctx, io.Discard, io.LimitReader(got.Body, 1)); err != nil {
			n = 0 // all of it again
		}
	}
	if err != nil {
		err = b.fault(o.key, err)
	}
	return n, err
}

// fault words an error of the server's, or of the way to it.
func (b *bucket) fault(key string, err error) error {
	what := b.url(key)
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
		return refusedf("%s: %d (%.64s): the bucket is in another region than the input says", what, r.HTTPStatusCode(), code)
	default:
		return answer(what, r.HTTPStatusCode(), fmt.Sprintf("%.64s", code))
	}
}

func (b *bucket) url(key string) string { return "s3://" + b.name + "/" + key }

// parseLogin reads a secret: KEY_ID:SECRET_KEY, or the lines of an AWS
// credentials file. Without one everybody's objects can be read, and nothing by
// what the machine itself may.
func parseLogin(in berth.Input, login berth.Sensitive) (aws.CredentialsProvider, error) {
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
